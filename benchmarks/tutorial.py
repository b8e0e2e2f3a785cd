"""The published meta-training notebook's configuration, on Catch 5x5, for several benchmarks."""

from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from meta.config import MetaConfig

ENVIRONMENT = "catch/5x5"
AGENT = AgentConfig(
    network=NetworkConfig(torso=(512, 512), model=256, head=(256,)),
    learning_rate=5e-4,
    num_environments=32,
    unroll_length=16,
    batch_size=32,
    replay_ratio=0.0,
)
META = MetaConfig(num_updates=2, validation_trajectories=32, validation_length=32)
