"""What an agent is.

An agent is a set of pure functions over pytrees. It never opens a file, steps an environment or
keeps time: the trainer (`training`) does, and asks the agent

- for a first learning state (`init`) and a first memory (`initial_memory`);
- to act (`act`) on a batch of time steps;
- what experience it needs (`experience`): environments, unroll length, replay, updates;
- to learn from one batch (`update`).

The functions are traced: the same agent trains inside one compiled program with JAX environments,
and beside host environments. An agent is a frozen dataclass, and may be registered as a pytree:
then agents that differ in their arrays only (a rule's parameters, a learning rate) share one
compiled program. Otherwise it must be hashable.

`docs/agents.md` checks the protocol against the algorithms that it is made for.
"""

import dataclasses
import enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import chex
import dm_env
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from agents.history import HistorySpec
from disco.types import Leaf

State = Any
"""A pytree of arrays: whatever learning changes."""
Memory = Any
"""A pytree of arrays `[B, ...]`: what an agent carries from step to step while it acts; None for
an agent without."""
Extras = Any
"""A pytree of arrays `[B, ...]`: what an agent stores beside each step."""
Metrics = dict[str, Float[Array, ""]]


class Mode(enum.Enum):
    """What an agent acts for."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@chex.dataclass(frozen=True)
class Batch:
    """Sequences of T transitions of B environments. Transition t leads from row t to row t + 1.

    Attributes:
      observation: `[T+1, B, ...]`; a `History` with earlier rows where the agent asks for one.
      action: `[T, B, ...]`.
      reward: `[T, B]`, of the transition.
      discount: `[T, B]`, 0 where the transition terminates its episode, otherwise 1.
      last: `[T, B]`, whether the transition ends its episode, by termination or by a cut.
      mask: `[T, B]`, False where the transition only leads from an episode's last observation to
        the first one of the next; its action had no effect.
      extras: leaves `[T, B, ...]`, what `act` returned at the row.
      memory: leaves `[B, ...]`, the agent's memory before the first row of `observation`; None
        unless the agent's observations are a `History` (`HistorySpec.is_history`).
    """

    observation: PyTree[Leaf]
    action: Int[Leaf, "T B *action"] | Float[Leaf, "T B *action"]
    reward: Float[Leaf, "T B"]
    discount: Float[Leaf, "T B"]
    last: Bool[Leaf, "T B"]
    mask: Bool[Leaf, "T B"]
    extras: PyTree[Leaf]
    memory: PyTree[Leaf] | None = None


@dataclasses.dataclass(frozen=True)
class ReplaySpec:
    """A replay of the last steps of each environment.

    Attributes:
      capacity: environment steps that it holds, of all environments together.
      anywhere: whether sequences begin at any step, across episodes; otherwise they are unrolls
        as they were collected.
      online: whether each new sequence is learned from once, in order and without overlap, before
        sequences are drawn at random (DreamerV3, Nature version, "Experience replay"). Only with
        `anywhere`.
      in_checkpoints: whether checkpoints of runs in host environments hold it. Otherwise it fills
        anew after an interruption. In JAX environments they always do.
    """

    capacity: int
    anywhere: bool = False
    online: bool = False
    in_checkpoints: bool = False


@dataclasses.dataclass(frozen=True)
class UpdateSpec:
    """One kind of update: what it learns from, and when it is due.

    Attributes:
      name: handed to `Agent.update`.
      batch_size: B, sequences of a batch.
      num_replayed: of these, the sequences drawn from the replay. The others are the unroll that
        was just collected, one sequence per environment; they come first in the batch.
      length: T, transitions of a sequence; None for the unroll's.
      context: earlier steps that each replayed sequence has besides, with their actions and
        extras: the batch then has `context + T` transitions.
      updates_per_step: updates per environment step, on average, once any is due; None for one
        update per unroll.
      first_step: environment steps before which none is due.
      min_sequences: sequences that the replay must offer before the first is due.
    """

    name: str = "update"
    batch_size: int = 1
    num_replayed: int = 0
    length: int | None = None
    context: int = 0
    updates_per_step: float | None = None
    first_step: int = 0
    min_sequences: int = 1


@dataclasses.dataclass(frozen=True)
class Experience:
    """The experience that an agent needs, as data.

    Attributes:
      num_environments: environments that it acts in at once.
      unroll_length: steps of each environment after which the updates that are due are made.
      history: what its observations hold of the past.
      replay: None for an agent that learns from each unroll once.
      updates: the kinds of update, in the order in which they are made; none for an agent that
        does not learn.
      acts_one_behind: whether it may act by the state of one update ago while a host environment
        is stepped and the device learns.
    """

    num_environments: int
    unroll_length: int
    history: HistorySpec = HistorySpec()
    replay: ReplaySpec | None = None
    updates: tuple[UpdateSpec, ...] = ()
    acts_one_behind: bool = True

    @property
    def steps_per_unroll(self) -> int:
        """Environment steps of one unroll."""
        return self.num_environments * self.unroll_length


class Update(NamedTuple):
    """The result of one update.

    Attributes:
      state: the learning state after it.
      metrics: scalars for the log.
      refreshed: new values of some of the extras, by name, `[T, B, ...]`, which replace those of
        the last T rows of each sequence (without its context) in the replay; None for none. Only
        of updates whose sequences are all replayed.
    """

    state: State
    metrics: Metrics
    refreshed: Extras | None = None


@runtime_checkable
class Agent(Protocol):
    """An agent for environments of given specs."""

    @property
    def experience(self) -> Experience:
        """What it needs to learn from."""
        ...

    def init(self, key: PRNGKeyArray) -> State:
        """Return a first learning state."""
        ...

    def acting_state(self, state: State) -> Any:
        """Return the part of a learning state that acting reads."""
        ...

    def initial_memory(self, batch_size: int, /) -> Memory:
        """Return the memory before the first step of B environments."""
        ...

    def act(
        self,
        acting_state: Any,
        memory: Memory,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[Memory, Array, Extras]:
        """Choose an action in each of B environments.

        Args:
          acting_state: from `acting_state`.
          memory: after the previous step.
          timestep: the present one of each environment, leaves `[B, ...]`. Its observation is a
            `History` where `experience.history` asks for one. Where it is an episode's last, the
            action has no effect.
          key: of the actions.
          mode: what the agent acts for.

        Returns:
          The memory, the actions `[B, ...]`, and what to store beside the step.
        """
        ...

    def update(self, state: State, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        """Learn from one batch.

        Args:
          state: before the update.
          batch: as the update's specification asks for.
          key: of the update's randomness.
          name: of the kind of update.
        """
        ...


class Examination(NamedTuple):
    """The result of an agent's own examination.

    Attributes:
      metrics: numbers by name.
      pictures: PNG files by their names.
    """

    metrics: dict[str, float]
    pictures: dict[str, bytes]


@runtime_checkable
class ExaminedAgent(Agent, Protocol):
    """An agent of which more can be told at its end than its scores: what its model predicts."""

    def examine(self, state: State, batch: Batch, key: PRNGKeyArray) -> Examination:
        """Examine a trained agent; not traced.

        Args:
          state: the final learning state.
          batch: what it did in new episodes (`Mode.EVALUATION`), NumPy. Nothing was learned from
            it, and each environment's first row begins an episode.
          key: of the examination's randomness.
        """
        ...
