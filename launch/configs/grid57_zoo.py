"""Discovery of the zoo's rule on `grid57`: about half an hour on two cores.

`grid57_laptop` with an agent on every one of the 57 tasks, so that a meta-gradient is the mean
over all of them, and more meta-steps.
"""

import dataclasses

from ml_collections import ConfigDict

from launch.configs import grid57_laptop
from launch.configuration import to_config
from launch.settings import DiscoverSettings


def get_settings() -> DiscoverSettings:
    """The run as a dataclass."""
    laptop = grid57_laptop.get_settings()
    return dataclasses.replace(
        laptop,
        meta_steps=1000,
        population=dataclasses.replace(laptop.population, size=57),
    )


def get_config() -> ConfigDict:
    """For `--config`."""
    return to_config(get_settings())
