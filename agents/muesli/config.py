"""Muesli's settings, and the paper's."""

import dataclasses
from typing import Annotated

from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco.checks import odd_number
from disco_common.ranges import AtLeast0, Count, Fraction, Positive


@dataclasses.dataclass(frozen=True)
class MuesliConfig(RuleAgentConfig):
    """Settings of Muesli (Hessel et al. 2021, arXiv 2104.06159), by default for a laptop.

    Acting, replay and optimiser are those of all agents that learn by unrolls (`RuleAgentConfig`).

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
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), model=64, head=(64,))
    learning_rate: AtLeast0[float] = 3e-3
    num_environments: Count = 8
    unroll_length: Count = 16
    batch_size: Count = 32
    replay_ratio: Fraction = 0.75
    replay_capacity: Count = 1024
    discount: Fraction = 0.99
    lambda_: Fraction = 0.95
    num_bins: Annotated[int, odd_number(at_least=1)] = 41
    max_value: Positive = 15.0
    model_steps: Count = 5
    advantage_clip: Positive = 1.0
    target_rate: Fraction = 0.1
    regularizer_cost: AtLeast0[float] = 1.0
    reward_cost: AtLeast0[float] = 1.0
    value_cost: AtLeast0[float] = 0.25
    model_policy_cost: AtLeast0[float] = 1.0
    images: tuple[int, ...] = ()

    _PREFIX = ""


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
