"""MuZero's settings, and those of MuZero Reanalyze's paper."""

import dataclasses
from typing import Annotated

from agents.loss_agent import LossAgentConfig
from agents.networks import NETWORKS, NetworkConfig
from disco.checks import odd_number
from disco_common.ranges import AtLeast0, Count, Positive


@dataclasses.dataclass(frozen=True)
class MuZeroConfig(LossAgentConfig):
    """Settings of MuZero (Schrittwieser et al. 2020, arXiv 1911.08265), by default for a laptop.

    The network has no memory.

    Attributes:
      weight_decay: decoupled, as a fraction of the parameters per unit of learning rate.
      num_simulations: of a search.
      max_considered_actions: at the root (Danihelka et al. 2022, section 3).
      value_scale: c_scale, weight of rescaled action values beside the policy's logits (section 3.4
        there). The smaller, the less certain are the improved policies that are learned.
      batch_size: positions of a batch.
      updates_per_step: mean number of updates per environment step.
      reanalyses_per_step: mean number of positions per environment step whose search is made again
        with the newest parameters (Reanalyse, appendix H); 0 for none.
      priority_exponent: α of draws by priority, the error of a position's value (appendix G); 0 for
        uniform draws.
      min_steps: environment steps before the first update.
      replay_capacity: environment steps in the replay.
      model_steps: K, that the model predicts ahead.
      td_steps: n, rewards of a value's target before the value of a search.
      num_bins: N, odd, of values and rewards.
      max_value: the last bin, on the scale of the signed hyperbolic transform.
      value_cost: weight of the value's loss; that of the policy's and of the reward's is 1.
      images: side in pixels and channels of the images, in environments that offer a choice; empty
        for the environments' own.
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), model=64, head=(64,))
    weight_decay: AtLeast0[float] = 1e-4
    max_gradient_norm: AtLeast0[float] = 5.0
    num_simulations: Count = 16
    max_considered_actions: Count = 16
    value_scale: Positive = 0.1
    unroll_length: Count = 8
    batch_size: Count = 64
    updates_per_step: Positive = 0.0625
    reanalyses_per_step: AtLeast0[float] = 1.0
    priority_exponent: AtLeast0[float] = 0.0
    min_steps: AtLeast0[int] = 1024
    replay_capacity: int = 100_000
    model_steps: Count = 5
    td_steps: Count = 10
    num_bins: Annotated[int, odd_number(at_least=1)] = 41
    max_value: Positive = 15.0
    value_cost: AtLeast0[float] = 0.25
    images: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if self.network.memory:
            raise ValueError(
                f"network.memory is {self.network.memory}; expected 0: MuZero's positions begin"
                " anywhere, without a memory's state."
            )
        least = self.num_environments * (self.sequence_length + 1)
        if self.replay_capacity < least:
            raise ValueError(
                f"replay_capacity is {self.replay_capacity}; expected at least {least}, so that"
                f" each of {self.num_environments} environments has a sequence of model_steps +"
                f" td_steps + 1 ({self.sequence_length}) transitions."
            )

    @property
    def sequence_length(self) -> int:
        """Transitions of a sequence: the last target's rewards, and the row of its last value."""
        return self.model_steps + self.td_steps + 1


# MuZero Reanalyze's setting of 200 million frames (appendix H: two samples of each state, targets
# of five steps, a weight of values of 0.25, 80% of samples searched again), with the deep residual
# network of IMPALA and Gumbel MuZero's search. The input is of 32 RGB frames of 96x96 pixels
# (appendix E), and the replay of 125,000 sequences of 200 steps (appendix G).
PAPER = MuZeroConfig(
    network=NetworkConfig(
        torso=(512,), channels=NETWORKS["impala"].channels, model=512, head=(512,)
    ),
    learning_rate=2e-4,
    total_steps=50_000_000,
    num_simulations=50,
    max_considered_actions=18,
    num_environments=64,
    batch_size=1024,
    updates_per_step=0.002,
    reanalyses_per_step=1.6,
    td_steps=5,
    priority_exponent=1.0,
    min_steps=20_000,
    replay_capacity=25_000_000,
    discount=0.997,
    num_bins=601,
    max_value=300.0,
    frame_stack=32,
    images=(96, 3),
)
