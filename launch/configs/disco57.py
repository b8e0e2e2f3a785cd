r"""Discovery of Disco57 as in the paper: 128 agents on 57 Atari games (DiscoRL, Methods).

For a cluster: the paper took 64 hours on 1,024 TPUv3 cores. With smaller sizes it runs anywhere:

    python -m launch.discover --workdir=runs/tiny57 --config=launch/configs/disco57.py \\
        --config.suite=atari/Pong,atari/Breakout --config.population.size=2 --config.meta_steps=3 \\
        --config.agent.batch_size=4 --config.agent.num_environments=2 \\
        --config.agent.replay_ratio=0.5 --config.agent.replay_capacity=32 \\
        --config.agent.unroll_length=8 --config.agent.network.channels='(4,8)' \\
        --config.agent.network.patch=4 --config.agent.network.torso='(32,)' \\
        --config.agent.network.model=32 --config.agent.network.head='(32,)' \\
        --config.rule.sizes.prediction=16 --config.meta.num_updates=2 \\
        --config.meta.validation_trajectories=2 --config.meta.validation_length=8

From the paper: batches of 96 trajectories of 29 steps, 90% of them replayed; K = 20; 48 validation
trajectories; Adam with a learning rate of 3e-4 for agents and meta-value functions and 1e-3 for the
rule; meta-gradients clipped to 1; lifetimes of 200, 100, 50 and 20 million frames; discount 0.997
and TD(0.95) for the meta-value function; entropy and KL regularisers. The paper does not give the
agents' network in discovery (here IMPALA's deep residual net), the replay's capacity in discovery,
and the number of meta-steps (here 600 million frames per game, at which its best rule was found).
"""

from ml_collections import ConfigDict

import environments
from agents.networks import NETWORKS
from agents.rule_agent import AgentConfig
from disco_common.configuration import to_config
from launch.settings import DiscoverSettings, RuleSettings
from meta.config import MetaConfig, PopulationConfig
from meta.objective import ObjectiveConfig
from meta.value_function import ValueFunctionConfig

LENGTH = 29
REPLAYED_FRAMES = 100_000  # By each agent.


def get_settings() -> DiscoverSettings:
    """Return the settings of the run."""
    return DiscoverSettings(
        suite="atari57",
        meta_steps=12_000,
        checkpoint_interval=50,
        log_interval=5,
        rule=RuleSettings(),
        agent=AgentConfig(
            network=NETWORKS["impala"],
            learning_rate=3e-4,
            num_environments=10,
            unroll_length=LENGTH,
            batch_size=96,
            replay_ratio=0.9,
            replay_capacity=REPLAYED_FRAMES // LENGTH,
            frame_stack=4,
        ),
        value_function=ValueFunctionConfig(learning_rate=3e-4, discount=0.997, lambda_=0.95),
        objective=ObjectiveConfig(),
        population=PopulationConfig(
            size=128,
            # Agents count actions.
            lifetimes=tuple(
                frames // environments.protocol("atari57").frames_per_action
                for frames in (200_000_000, 100_000_000, 50_000_000, 20_000_000)
            ),
        ),
        meta=MetaConfig(
            num_updates=20,
            validation_trajectories=48,
            validation_length=LENGTH,
            learning_rate=1e-3,
            max_gradient_norm=1.0,
        ),
    )


def get_config() -> ConfigDict:
    """Return the config for `--config`."""
    return to_config(get_settings())
