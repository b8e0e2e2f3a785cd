"""A discovery run of seconds, as a config file: `--config=tests/launch/discover_tiny.py`."""

from ml_collections import ConfigDict

from disco_common.configuration import to_config
from launch.support.discovery_config import DiscoveryRunConfig, RuleConfig
from meta.config import MetaConfig, PopulationConfig, ValueFunctionConfig
from tests.meta.common import AGENT, NUM_UPDATES, SIZES, STEPS

META_STEPS = 40


def get_settings() -> DiscoveryRunConfig:
    """Agents replay and are reset on the way; checkpoints are frequent."""
    return DiscoveryRunConfig(
        suite="catch/4x3",
        meta_steps=META_STEPS,
        checkpoint_interval=2,
        log_interval=1,
        rule=RuleConfig(sizes=SIZES, num_bins=11, max_value=5.0, policy_prior=0.9),
        agent=AGENT,
        value_function=ValueFunctionConfig(hidden=(8,)),
        population=PopulationConfig(size=3, lifetimes=(9 * STEPS, 5 * STEPS)),
        meta=MetaConfig(num_updates=NUM_UPDATES, validation_trajectories=2, validation_length=6),
    )


def get_config() -> ConfigDict:
    """For `--config`."""
    return to_config(get_settings())
