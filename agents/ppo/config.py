"""PPO's settings."""

import dataclasses

from agents.networks import NetworkConfig
from agents.ppo.losses import DRIFTS
from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, FRACTION, POSITIVE


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO (Schulman et al. 2017, arXiv 1707.06347), by default Stable-Baselines3's.

    Attributes:
      network: sizes of the network. With a memory, minibatches consist of whole unrolls.
      separate_value_network: whether the value has a network of its own instead of a head.
      drift: `"clip"`, or `"dpo"` for Discovered Policy Optimisation (`agents.ppo.losses`).
      learning_rate: of Adam.
      total_steps: environment steps in which the learning rate falls linearly to 0; 0 for a
        constant one. None is for those of the run, where `Configured.for_run` is told
        them (`agents.registry`), and else as 0.
      num_environments: number of parallel environments.
      unroll_length: T, steps of each environment between two updates.
      num_epochs: passes over the transitions of an unroll.
      num_minibatches: gradient steps of a pass, each on as many samples; a pass leaves out the rest
        at random.
      discount: gamma.
      gae_lambda: decay of the advantage estimates.
      clip: epsilon, the range of the probability ratio; for the drift `"clip"`.
      value_clip: range of a value's change in an update; 0 for no bound.
      value_cost, entropy_cost: weights of half the squared error of values, and of the policy's
        entropy; that of the policy's loss is 1.
      normalize_advantage: whether advantages have mean 0 and deviation 1 in each minibatch.
      max_gradient_norm: global norm that gradients are clipped to; 0 for no clipping.
      adam_epsilon: added to the denominator of Adam's update.
      frame_stack: frames in one input of the network.

    Raises:
      ValueError: if a setting is out of range, or minibatches have too few samples.
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), activation="tanh")
    separate_value_network: bool = True
    drift: str = "clip"
    learning_rate: float = 3e-4
    total_steps: int | None = 0
    num_environments: int = 1
    unroll_length: int = 2048
    num_epochs: int = 10
    num_minibatches: int = 32
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_clip: float = 0.0
    value_cost: float = 1.0
    entropy_cost: float = 0.0
    normalize_advantage: bool = True
    max_gradient_norm: float = 0.5
    adam_epsilon: float = 1e-5
    frame_stack: int = 1

    def __post_init__(self):
        counts = "num_environments unroll_length num_epochs num_minibatches frame_stack".split()
        AT_LEAST_1.require(self, "", *counts)
        costs = "total_steps value_clip value_cost entropy_cost max_gradient_norm".split()
        AT_LEAST_0.require(self, "", *costs)
        FRACTION.require(self, "", "discount", "gae_lambda")
        POSITIVE.require(self, "", "learning_rate", "clip", "adam_epsilon")
        if self.drift not in DRIFTS:
            raise ValueError(f"drift is {self.drift!r}; expected one of {', '.join(DRIFTS)}.")
        if self.network.memory and self.separate_value_network:
            raise ValueError(
                f"network.memory is {self.network.memory} and separate_value_network True; expected"
                " one network where there is a memory."
            )
        # Of one transition, the normalised advantage is 0.
        least = 2 if self.normalize_advantage and not self.network.memory else 1
        if self.minibatch_size < least:
            raise ValueError(
                f"num_minibatches is {self.num_minibatches}; expected at most"
                f" {self.num_samples // least}, with at least {least} of the {self.num_samples}"
                f" {'unrolls' if self.network.memory else 'transitions'} of an update in each"
                f" (num_environments {self.num_environments}, unroll_length {self.unroll_length})."
            )

    @property
    def num_samples(self) -> int:
        """What an update's minibatches divide: transitions, or unrolls of a recurrent network."""
        return self.num_environments * (1 if self.network.memory else self.unroll_length)

    @property
    def minibatch_size(self) -> int:
        """Samples of a minibatch."""
        return self.num_samples // self.num_minibatches

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates."""
        return self.num_environments * self.unroll_length
