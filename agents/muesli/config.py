"""Muesli's settings."""

import dataclasses

from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, FRACTION, POSITIVE


@dataclasses.dataclass(frozen=True)
class MuesliConfig(AgentConfig):
    """Settings of Muesli (Hessel et al. 2021, arXiv 2104.06159), by default for a laptop.

    Acting, replay and optimiser are those of all agents that learn by unrolls (`AgentConfig`).

    Attributes:
      discount: gamma.
      lambda_: decay of Retrace's traces.
      num_bins: N, odd, of values and rewards.
      max_value: the last bin, on the scale of the signed hyperbolic transform.
      model_steps: K, that the model predicts ahead.
      advantage_clip: c, the bound of normalised advantages in CMPO's policy.
      target_rate: weight of the parameters in their moving average, the target network.
      regularizer_cost: λ, weight of the KL from CMPO's policy.
      reward_cost, value_cost, model_policy_cost: weights of the model's losses.
      images: side in pixels and channels of the images, in environments that offer a choice; empty
        for the environments' own.

    Raises:
      ValueError: if a setting is out of range.
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), model=64, head=(64,))
    learning_rate: float = 3e-3
    num_environments: int = 8
    unroll_length: int = 16
    batch_size: int = 32
    replay_ratio: float = 0.75
    replay_capacity: int = 1024
    discount: float = 0.99
    lambda_: float = 0.95
    num_bins: int = 41
    max_value: float = 15.0
    model_steps: int = 5
    advantage_clip: float = 1.0
    target_rate: float = 0.1
    regularizer_cost: float = 1.0
    reward_cost: float = 1.0
    value_cost: float = 0.25
    model_policy_cost: float = 1.0
    images: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        AT_LEAST_1.require(self, "", "model_steps", "num_bins")
        FRACTION.require(self, "", "discount", "lambda_", "target_rate")
        POSITIVE.require(self, "", "max_value", "advantage_clip")
        costs = "regularizer_cost reward_cost value_cost model_policy_cost".split()
        AT_LEAST_0.require(self, "", *costs)
        if self.num_bins % 2 == 0:
            raise ValueError(f"num_bins is {self.num_bins}; expected an odd number.")


# Tables 5 and 6: 75% of a batch of 96 sequences is replayed, from a replay of 6 million frames
# (1.5 million steps of 4 frames), and the learning rate falls to 0 over 200 million frames (here by
# half a cosine, there linearly). The residual net has four sections, the memory 512 units, and
# images are 96x96 RGB (`images`), by one reading of the appendix.
PAPER = MuesliConfig(
    network=NetworkConfig(
        torso=(256,), channels=(64, 128, 128, 64), memory=512, model=1024, head=(1024,)
    ),
    learning_rate=3e-4,
    end_learning_rate=0.0,
    lifetime=50_000_000,
    num_environments=24,
    unroll_length=30,
    batch_size=96,
    replay_ratio=0.75,
    replay_capacity=50_000,
    discount=0.995,
    num_bins=601,
    max_value=300.0,
    frame_stack=4,
    images=(96, 3),
)
