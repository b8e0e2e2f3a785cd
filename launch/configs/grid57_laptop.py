"""Discovery on `grid57` at the size of a laptop: minutes on two cores.

A small rule (about 15,000 meta-parameters) and small agents. Tuned on discovery tasks only.
20 agents at a time take the 57 tasks in turn. No agent is reborn before the rule has taken off:
agents need some hundreds of updates until their values tell actions apart, and until then a
rule that reads values is of no use to them.
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

STEPS_PER_META_STEP = 6 * 8 * 16  # K updates, of T steps, in each of 8 environments.


def get_settings() -> DiscoverSettings:
    """The run as a dataclass."""
    return DiscoverSettings(
        suite="grid57",
        meta_steps=240,
        checkpoint_interval=50,
        log_interval=10,
        rule=RuleSettings(
            sizes=MetaNetworkSizes(prediction=16, action_embedding=8, trajectory=32, lifetime=16),
            num_bins=41,
            max_value=10.0,
        ),
        agent=AgentConfig(
            network=NetworkConfig(torso=(32,), model=32, head=(32,)),
            learning_rate=5e-3,
            num_environments=8,
            unroll_length=16,
            batch_size=8,
            replay_ratio=0.0,
        ),
        value_function=ValueFunctionConfig(hidden=(64,), learning_rate=1e-3),
        population=PopulationConfig(
            size=20,
            lifetimes=tuple(n * STEPS_PER_META_STEP for n in (400, 200, 100, 50)),
            first_rebirth=150 * STEPS_PER_META_STEP,
        ),
        meta=MetaConfig(
            num_updates=6,
            validation_trajectories=32,
            validation_length=16,
            learning_rate=1e-3,
            max_gradient_norm=0.2,
            adam_b2=0.98,
        ),
    )


def get_config() -> ConfigDict:
    """For `--config`."""
    return to_config(get_settings())
