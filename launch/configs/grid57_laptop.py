"""Discovery on `grid57` at the size of a laptop: minutes on two cores.

A small rule (about 15,000 meta-parameters), small agents, few updates per meta-gradient.
Tuned on discovery tasks only. 20 agents at a time take the 57 tasks in turn: fewer agents with
larger batches gave clearer meta-gradients than 57 agents with small ones. No agent is reborn
before the rule has taken off.
"""

from ml_collections import ConfigDict

from agents.agent import AgentConfig
from agents.networks import NetworkConfig
from disco import MetaNetworkSizes
from launch.configuration import to_config
from launch.settings import DiscoverSettings, RuleSettings
from meta.discovery import MetaConfig
from meta.population import PopulationConfig
from meta.value_function import ValueFunctionConfig

STEPS_PER_META_STEP = 2 * 16 * 16  # K updates, of T steps, in each of 16 environments.


def get_settings() -> DiscoverSettings:
    """The run as a dataclass."""
    return DiscoverSettings(
        suite="grid57",
        meta_steps=800,
        checkpoint_interval=50,
        log_interval=10,
        rule=RuleSettings(
            sizes=MetaNetworkSizes(prediction=16, trajectory=32, lifetime=16),
            num_bins=41,
            max_value=10.0,
        ),
        agent=AgentConfig(
            network=NetworkConfig(torso=(32,), model=32, head=(32,)),
            learning_rate=5e-3,
            num_environments=16,
            unroll_length=16,
            batch_size=16,
            replay_ratio=0.0,
        ),
        value_function=ValueFunctionConfig(hidden=(64,), learning_rate=1e-3),
        population=PopulationConfig(
            size=20,
            lifetimes=tuple(n * STEPS_PER_META_STEP for n in (1600, 800, 400, 200)),
            first_rebirth=500 * STEPS_PER_META_STEP,
        ),
        meta=MetaConfig(
            num_updates=2,
            validation_trajectories=16,
            validation_length=16,
            learning_rate=3e-3,
        ),
    )


def get_config() -> ConfigDict:
    """For `--config`."""
    return to_config(get_settings())
