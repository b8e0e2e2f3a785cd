"""DiCE's settings, and the paper's."""

import dataclasses
import math
from typing import Annotated

from agents.loss_agent import LossAgentConfig
from agents.networks import NETWORKS, NetworkConfig
from agents.rule_agent import require_burn_in
from disco_common.ranges import AT_LEAST_1, AtLeast0, Count, Fraction, Positive

_EXPLORATIONS = ("bandit", "random", "fixed")


@dataclasses.dataclass(frozen=True)
class DiceConfig(LossAgentConfig):
    """Settings of DiCE (Xiao et al. 2021, arXiv 2106.00707), by default for a laptop.

    Attributes:
      exploration: how an episode's temperature is chosen: `"bandit"` by the vote of bandits;
        `"random"` by bandits that never learn; `"fixed"` is `temperature`, the paper's baseline.
      temperature: τ, if it is fixed.
      num_bandits, candidates: M, and how many tiles each proposes (`agents.dice.bandits`).
      max_inverse_temperature: the largest 1/τ that bandits choose; the least is 0.
      num_tiles: of each bandit, of equal size on the scale of log(1 + 1/τ): 0.1 in both presets.
      warmup: gradient steps in which the learning rate rises linearly from 0.
      weight_decay: decoupled, as a fraction of the parameters per unit of learning rate.
      adam_b2, adam_epsilon: of Adam.
      burn_in: steps before each sequence that only update the network's memory.
      batch_size: sequences of a gradient step.
      sample_reuse: how often each sequence is learned from.
      lambda_: decay of the traces of V-trace and Retrace.
      max_ratio: c bar and rho bar, the bound of importance ratios.
      shapes_reward: whether rewards are shaped (`shaped_reward`).
      value_cost, action_value_cost, policy_cost: weights of the losses.
      entropy_cost: weight of the policy's entropy. 0 in the algorithm, and a tenth of `policy_cost`
        in its ablation.
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), model=0)
    exploration: str = "bandit"
    temperature: Positive = 1.0
    num_bandits: Count = 7
    candidates: Count = 7
    max_inverse_temperature: Positive = 2.0
    num_tiles: Count = 11
    warmup: AtLeast0[int] = 0
    weight_decay: AtLeast0[float] = 0.0
    adam_b2: Fraction = 0.98
    adam_epsilon: Positive = 1e-6
    burn_in: int = 0
    batch_size: Count = 8
    sample_reuse: Count = 2
    lambda_: Fraction = 1.0
    max_ratio: Annotated[float, AT_LEAST_1] = 1.05
    shapes_reward: bool = True
    value_cost: AtLeast0[float] = 0.1
    action_value_cost: AtLeast0[float] = 0.1
    policy_cost: AtLeast0[float] = 1.0
    entropy_cost: AtLeast0[float] = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.candidates > self.num_tiles:
            raise ValueError(
                f"candidates is {self.candidates}; expected at most num_tiles ({self.num_tiles})."
            )
        if self.exploration not in _EXPLORATIONS:
            raise ValueError(
                f"exploration is {self.exploration!r}; expected one of {', '.join(_EXPLORATIONS)}."
            )
        if self.batch_size > self.num_environments or self.num_uses % self.batch_size:
            raise ValueError(
                f"batch_size is {self.batch_size}; expected a divisor of num_environments"
                f" ({self.num_environments}) times sample_reuse ({self.sample_reuse}), and at most"
                " num_environments, as each sequence is learned from sample_reuse times."
            )
        require_burn_in(self)

    @property
    def largest_x(self) -> float:
        """The end of the bandits' interval of x = log(1 + 1/τ), which begins at 0."""
        return math.log1p(self.max_inverse_temperature)

    @property
    def num_uses(self) -> int:
        """Sequences of an update's batches, together."""
        return self.num_environments * self.sample_reuse


# Table 5. Its random no-ops are the environment's: `atari/<Game>?noops=30&sticky=0`.
PAPER = DiceConfig(
    network=NetworkConfig(torso=(256,), channels=NETWORKS["impala"].channels, model=0, memory=256),
    max_inverse_temperature=50.0,
    num_tiles=39,
    learning_rate=5e-4,
    total_steps=50_000_000,  # Of four frames.
    warmup=4000,
    weight_decay=0.01,
    num_environments=160,
    unroll_length=80,
    burn_in=40,
    batch_size=64,
    max_gradient_norm=50.0,
    discount=0.997,
    value_cost=1.0,
    action_value_cost=10.0,
    policy_cost=10.0,
    frame_stack=4,
)
