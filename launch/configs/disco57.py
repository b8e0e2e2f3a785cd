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
and TD(0.95) for the meta-value function, which learns from the validation trajectories; an agent
that is reset keeps its game. From the authors' release: the initial meta-network, the weights of
the regularisers, validation that goes on from the states of the training environments, and the
newest rule as the result. What the paper leaves open, and what differs, is one table:
docs/discovery.md.
"""

from agents.networks import NETWORKS
from agents.rule_agent import RuleAgentConfig
from launch.support.discovery_config import DiscoveryRunConfig, RuleConfig
from meta.config import MetaConfig, ObjectiveConfig, PopulationConfig, ValueFunctionConfig

LENGTH = 29
REPLAYED_FRAMES = 100_000  # By each agent.


def get_config() -> DiscoveryRunConfig:
    """Return the settings of the run."""
    return DiscoveryRunConfig(
        suite="atari57",
        meta_steps=12_000,
        checkpoint_interval=50,
        log_interval=5,
        rule=RuleConfig(is_published_init=True),
        agent=RuleAgentConfig(
            network=NETWORKS["impala"],
            learning_rate=3e-4,
            num_environments=10,
            unroll_length=LENGTH,
            batch_size=96,
            replay_ratio=0.9,
            replay_capacity=REPLAYED_FRAMES // LENGTH,
            frame_stack=4,
        ),
        value_function=ValueFunctionConfig(
            learning_rate=3e-4, discount=0.997, lambda_=0.95, learns_from_batches=False
        ),
        objective=ObjectiveConfig(),
        population=PopulationConfig(
            size=128,
            lifetimes=(200_000_000, 100_000_000, 50_000_000, 20_000_000),
            counts_frames=True,
            keeps_tasks=True,
        ),
        meta=MetaConfig(
            num_updates=20,
            validation_trajectories=48,
            validation_length=LENGTH,
            validation_from_training=True,
            average_decay=0.0,  # The newest rule.
            learning_rate=1e-3,
            max_gradient_norm=1.0,
        ),
    )
