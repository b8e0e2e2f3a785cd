"""Evaluation at the size of a laptop: `grid_heldout` takes a few minutes on two cores."""

from ml_collections import ConfigDict

from evaluation.config import EvaluationConfig
from launch.configuration import to_config


def get_settings() -> EvaluationConfig:
    """The evaluation as a dataclass; its defaults are a laptop's."""
    return EvaluationConfig()


def get_config() -> ConfigDict:
    """For `--config`."""
    return to_config(get_settings())
