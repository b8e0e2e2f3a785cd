"""PPO's settings, and those of its literature as presets."""

import dataclasses
from collections.abc import Mapping

from agents.loss_agent import LossAgentConfig
from agents.networks import NetworkConfig
from disco_common.ranges import AtLeast0, Count, Fraction, Positive

_DRIFTS = ("clip", "dpo")  # `agents.ppo.losses.DRIFTS`.


@dataclasses.dataclass(frozen=True)
class PPOConfig(LossAgentConfig):
    """Settings of PPO (Schulman et al. 2017, arXiv 1707.06347), by default Stable-Baselines3's.

    With a memory of the network, minibatches consist of whole unrolls.

    Attributes:
      separate_value_network: whether the value has a network of its own instead of a head.
      drift: `"clip"`, or `"dpo"` for Discovered Policy Optimisation (`agents.ppo.losses`).
      num_epochs: passes over the transitions of an unroll.
      num_minibatches: gradient steps of a pass, each on as many samples; a pass leaves out the rest
        at random.
      gae_lambda: decay of the advantage estimates.
      clip: epsilon, the range of the probability ratio; for the drift `"clip"`.
      value_clip: range of a value's change in an update; 0 for no bound.
      value_cost, entropy_cost: weights of half the squared error of values, and of the policy's
        entropy; that of the policy's loss is 1.
      normalize_advantage: whether advantages have mean 0 and deviation 1 in each minibatch.
      adam_epsilon: added to the denominator of Adam's update.
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), activation="tanh")
    separate_value_network: bool = True
    drift: str = "clip"
    learning_rate: Positive = 3e-4
    num_environments: Count = 1
    unroll_length: Count = 2048
    num_epochs: Count = 10
    num_minibatches: Count = 32
    gae_lambda: Fraction = 0.95
    clip: Positive = 0.2
    value_clip: AtLeast0[float] = 0.0
    value_cost: AtLeast0[float] = 1.0
    entropy_cost: AtLeast0[float] = 0.0
    normalize_advantage: bool = True
    adam_epsilon: Positive = 1e-5

    def __post_init__(self):
        super().__post_init__()
        if self.drift not in _DRIFTS:
            raise ValueError(f"drift is {self.drift!r}; expected one of {', '.join(_DRIFTS)}.")
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


# CleanRL's `ppo.py` for classic control, and PureJaxRL's.
_CLEANRL = PPOConfig(
    learning_rate=2.5e-4,
    total_steps=None,
    num_environments=4,
    unroll_length=128,
    num_epochs=4,
    num_minibatches=4,
    value_clip=0.2,
    value_cost=0.5,
    entropy_cost=0.01,
)
# CleanRL's `ppo_atari.py`, with IMPALA's residual net in place of the three convolutions.
_ATARI = dataclasses.replace(
    _CLEANRL,
    network=NetworkConfig(torso=(256,), channels=(16, 32, 32)),
    separate_value_network=False,
    num_environments=8,
    clip=0.1,
    value_clip=0.1,
    frame_stack=4,
)
# gymnax-blines' settings of all MinAtar games, without their warm-up of the learning rate.
_MINATAR = dataclasses.replace(
    _CLEANRL,
    network=NetworkConfig(torso=(256, 256)),
    learning_rate=5e-4,
    total_steps=0,
    num_environments=64,
    num_minibatches=8,
    discount=0.999,
)
PRESETS: Mapping[str, PPOConfig] = {
    "sb3": PPOConfig(),
    "cleanrl": _CLEANRL,
    "minatar": _MINATAR,
    "atari": _ATARI,
}
