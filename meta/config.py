"""Settings of a discovery run."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Integer

from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, BELOW_1, FRACTION, POSITIVE
from meta.objective import ObjectiveConfig

_MAX_LIFETIME = 2**31 - 1  # An int32 counts environment steps.


@dataclasses.dataclass(frozen=True)
class MetaConfig:
    """The meta-step.

    Attributes:
      num_updates: K, the agent updates that a meta-gradient flows through.
      validation_trajectories: per agent and meta-step.
      validation_length: steps of each validation trajectory.
      validation_from_training: whether validation goes on from the states of the training
        environments, so that its episodes are of all ages. In JAX some validation environments, in
        turn, take these states at each meta-step. Simulators' states cannot be copied: there, the
        updated agent acts in the training environments, which go on from where validation ended.
        Their validation trajectories also enter the replay, and count in lifetimes, but not in the
        environment steps that metrics and rule files have.
      learning_rate: of the rule; the first one, if it decays.
      learning_rate_decay_steps: meta-steps in which the learning rate falls, along a cosine, to
        `end_learning_rate` times the first one, where it stays; 0 for a constant one.
      end_learning_rate: as a fraction of the first one.
      average_decay: weight of the old average in the moving average of the rules, which is the
        result of a run because single iterates are noisy. In the first meta-steps it is the plain
        mean. With 0 it is the newest rule.
      max_gradient_norm: each agent's meta-gradient is clipped to it before the agent's Adam.
      adam_b2: decay of the second moment of each agent's Adam. The first meta-gradients after a
        reset are tens of times larger than later ones. With 0.999 they suppress the agent's
        updates for hundreds of meta-steps.
      segment_length: see `meta.inner_loop.differentiable_inner_loop`; None for about the square
        root of K.
      agents_at_once: agents per device in one vectorised pass; the passes run in a loop. Fewer
        agents need less memory. None for one on a CPU and all on an accelerator.
    """

    num_updates: int = 20
    validation_trajectories: int = 48
    validation_length: int = 29
    validation_from_training: bool = False
    learning_rate: float = 1e-3
    learning_rate_decay_steps: int = 0
    end_learning_rate: float = 0.1
    average_decay: float = 0.98
    max_gradient_norm: float = 1.0
    adam_b2: float = 0.999
    segment_length: int | None = None
    agents_at_once: int | None = None

    def __post_init__(self):
        counts = "num_updates validation_trajectories validation_length".split()
        AT_LEAST_1.require(self, "meta.", *counts)
        POSITIVE.require(self, "meta.", "learning_rate", "max_gradient_norm")
        BELOW_1.require(self, "meta.", "adam_b2", "average_decay")
        AT_LEAST_0.require(self, "meta.", "learning_rate_decay_steps")
        FRACTION.require(self, "meta.", "end_learning_rate")
        if self.agents_at_once is not None and self.agents_at_once < 1:
            raise ValueError(
                f"meta.agents_at_once is {self.agents_at_once}; expected at least 1, or None."
            )
        segment = self.segment_length
        if segment is not None and (segment < 1 or self.num_updates % segment):
            raise ValueError(
                f"meta.segment_length is {segment}; expected a divisor of meta.num_updates"
                f" ({self.num_updates})."
            )

    def learning_rate_at(self, meta_step: Int[Array, ""]) -> float | Float[Array, ""]:
        """Return the rule's learning rate after some meta-steps."""
        if not self.learning_rate_decay_steps:
            return self.learning_rate
        schedule: Any = optax.cosine_decay_schedule(
            self.learning_rate, self.learning_rate_decay_steps, self.end_learning_rate
        )
        return schedule(meta_step.astype(jnp.result_type(float)))


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
    """The agents of the population and their experience budgets.

    Attributes:
      size: agents, at least one for each group of tasks with equal dynamics. Unless a group's
        agents are a multiple of its tasks, an agent that is reset takes the least-trained of the
        tasks that the fewest other agents have.
      lifetimes: the categories of experience budget, in environment steps.
      first_reset_after: environment steps that are added to the budget of each agent of the first
        generation, so that the rule has been trained before the first agents are reset.
      counts_frames: whether `lifetimes` and `first_reset_after` are frames, of which an
        environment step has as many as its suite's protocol says (4 in Atari, 1 in ProcGen).
      keeps_tasks: whether an agent that is reset keeps its task wherever a group has at least as
        many agents as tasks.
    """

    size: int = 57
    lifetimes: tuple[int, ...] = (200_000_000, 100_000_000, 50_000_000, 20_000_000)
    first_reset_after: int = dataclasses.field(default=0, metadata={"formerly": "first_rebirth"})
    counts_frames: bool = False
    keeps_tasks: bool = False

    def __post_init__(self):
        AT_LEAST_1.require(self, "population.", "size")
        AT_LEAST_0.require(self, "population.", "first_reset_after")
        if not self.lifetimes or min(self.lifetimes) < 1:
            raise ValueError(
                f"population.lifetimes is {self.lifetimes}; expected positive numbers of"
                " environment steps."
            )
        if self.first_reset_after + max(self.lifetimes) > _MAX_LIFETIME:
            raise ValueError(
                f"population.lifetimes is {self.lifetimes} and population.first_reset_after"
                f" {self.first_reset_after}; expected lifetimes of at most {_MAX_LIFETIME}"
                " environment steps, as an int32 counts them."
            )

    def in_steps(self, frames_per_action: int) -> "PopulationConfig":
        """Return the settings with budgets in environment steps of so many frames."""
        return dataclasses.replace(
            self,
            lifetimes=tuple(-(-frames // frames_per_action) for frames in self.lifetimes),
            first_reset_after=-(-self.first_reset_after // frames_per_action),
            counts_frames=False,
        )


@dataclasses.dataclass(frozen=True)
class DiscoveryConfig:
    """All settings that the agents of a population share.

    Attributes:
      meta: the meta-step.
      objective: weights of the meta-loss.
      population: its size and lifetimes.
      seed: of all randomness; an array where a program has several (`meta.seeds`).
    """

    meta: MetaConfig
    objective: ObjectiveConfig
    population: PopulationConfig
    seed: int | Integer[Array, ""]
