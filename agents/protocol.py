"""The protocol that an agent implements.

An agent is a set of pure functions over pytrees, which JAX traces. It does not open files, step
environments or measure time: the trainer (`training`) does. The same agent trains inside one
compiled program with JAX environments, and beside host environments. An agent is a frozen
dataclass. It may be registered as a pytree (`disco_common.pytrees.register_dataclass`); then agents
that differ in their arrays only (a rule's parameters, a learning rate) share one compiled program.
Otherwise it must be hashable.

An environment step is one action in one environment. The transition from an episode's last
observation to the first observation of the next episode counts as one, too (`Batch.mask` is False
there). Budgets, `ReplaySpec`, `UpdateSpec` and all records count these steps over all of a run's
environments.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import chex
import dm_env
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from agents.history import HistorySpec
from disco.types import Leaf
from environments.simulators import Episode

State = Any
"""A pytree of arrays: all that an update changes. Evaluations count its `params`, if any."""
Memory = Any
"""A pytree of arrays `[B, ...]`: the recurrent state that an agent carries from step to step while
it acts; None for an agent without one.

The trainer does not reset it. The agent itself resets an environment's entry where an episode
begins: where `timestep.first()` or, for agents with a `History`, where `History.age` is 0."""
Extras = Any
"""A pytree of arrays `[B, ...]`: what an agent stores with each step, such as the behaviour
policy's logits."""
Metrics = dict[str, Float[Array, ""]]


class Mode(enum.Enum):
    """The purpose of acting.

    TRAINING: collection of experience to learn from, whose returns are an evaluation's scores.
    EVALUATION: a trained agent's analyses, pictures and examinations (`evaluation.playing`).
    """

    TRAINING = "training"
    EVALUATION = "evaluation"


@chex.dataclass(frozen=True)
class Batch:
    """B sequences of T transitions. Transition t leads from row t to row t + 1.

    Several replayed sequences may be of one environment.

    Attributes:
      observation: `[T+1, B, ...]`; a `History` with earlier rows where the agent asks for one.
      action: `[T, B, ...]`, as `act` returned it.
      reward: `[T, B]`, of the transition.
      discount: `[T, B]`, 0 where the transition terminates its episode, otherwise 1.
      last: `[T, B]`, whether the transition ends its episode, by termination or by truncation, or
        by a lost life (`Requirements.ends_at_life_loss`).
      mask: `[T, B]`, False where the transition only leads from an episode's last observation to
        the first one of the next; its action had no effect.
      extras: leaves `[T, B, ...]`, what `act` returned at the row; fewer rows of those that
        `UpdateSpec.extras_rows` names.
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
    """A replay of each environment's last steps.

    Attributes:
      capacity: environment steps that it holds, over all environments.
      anywhere: whether sequences begin at any step; otherwise they are unrolls as collected.
      online: whether each new sequence is learned from once, in order and without overlap, before
        sequences are drawn at random (DreamerV3, Nature version, "Experience replay"). Only with
        `anywhere`.
      in_checkpoints: whether checkpoints of runs in host environments contain the replay, as
        those in JAX environments do; if not, a restored run starts with an empty one.
    """

    capacity: int
    anywhere: bool = False
    online: bool = False
    in_checkpoints: bool = False


@dataclasses.dataclass(frozen=True)
class UpdateSpec:
    """One kind of update: what it learns from, and when it is due.

    Attributes:
      name: the argument `name` of `Agent.update`.
      batch_size: B, sequences of a batch.
      num_replayed: how many of these are drawn from the replay. The others, the first in the
        batch, are the unroll that was just collected, one sequence per environment.
      length: T, transitions of a sequence; None for the unroll length.
      context: additional earlier steps of each replayed sequence, with their actions and extras.
        The batch then has `context + T` transitions.
      updates_per_step: mean number of updates per environment step, from the first unroll after
        which one is due; None for one update per unroll.
      first_step: environment steps before the first update.
      min_sequences: sequences that the replay must contain before the first update.
      gradient_steps: steps of the optimiser in one update, for comparisons of their number.
      priority: name of an extra `[B]` of numbers that are not negative. A sequence is drawn with a
        probability proportional to the extra in its first row (Schaul et al. 2016, arXiv
        1511.05952); empty for uniform draws. Only with `anywhere`, and without `context`.
      extras_rows: by name of extras, the number of each sequence's first rows that the update
        reads, context included; the batch has no more. All rows of extras that are not named.
    """

    name: str = "update"
    batch_size: int = 1
    num_replayed: int = 0
    length: int | None = None
    context: int = 0
    updates_per_step: float | None = None
    first_step: int = 0
    min_sequences: int = 1
    gradient_steps: int = 1
    priority: str = ""
    extras_rows: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Requirements:
    """What an agent requires of the trainer, as data.

    Attributes:
      num_environments: number of parallel environments.
      unroll_length: steps of each environment in an unroll. Updates are made after an unroll.
      history: the past observations that an observation contains.
      replay: its replay; None for an agent that learns from each unroll once.
      updates: the kinds of update, in the order in which they are made; empty for an agent that
        does not learn.
      acts_one_behind: whether it may collect an unroll with the acting state before the latest
        updates. In host environments collection and learning then overlap.
      ends_at_life_loss: whether, in host environments whose `results` have `lives`, the loss of a
        life ends the agent's episode: the transition is terminal, and the next time step is a
        first one. No transition between episodes follows, as the game itself goes on. Episodes in
        records, and so scores, are whole games.
    """

    num_environments: int
    unroll_length: int
    history: HistorySpec = HistorySpec()
    replay: ReplaySpec | None = None
    updates: tuple[UpdateSpec, ...] = ()
    acts_one_behind: bool = True
    ends_at_life_loss: bool = False

    @property
    def steps_per_unroll(self) -> int:
        """Environment steps of one unroll, over all environments."""
        return self.num_environments * self.unroll_length

    @property
    def gradient_steps_per_step(self) -> float:
        """Mean number of the optimiser's steps per environment step, once updates are made."""
        return sum(
            x.gradient_steps
            * (1.0 / self.steps_per_unroll if x.updates_per_step is None else x.updates_per_step)
            for x in self.updates
        )


class Update(NamedTuple):
    """The result of one update.

    Attributes:
      state: the learning state after the update.
      metrics: scalars to record.
      refreshed: new values of some extras, by name, `[T, B, ...]`; None for none. They replace the
        replay's values in the last T rows of each sequence (without its context); if they have
        fewer rows, in the first of these. In host environments they do so after the next update's
        batch is drawn, or before the next unroll is stored. Only allowed where all sequences of the
        update are replayed.
    """

    state: State
    metrics: Metrics
    refreshed: Extras | None = None


@runtime_checkable
class Agent(Protocol):
    """An agent for environments of given specs."""

    @property
    def requirements(self) -> Requirements:
        """What it requires of the trainer."""
        ...

    def init(self, key: PRNGKeyArray) -> State:
        """Return the initial learning state."""
        ...

    def acting_state(self, state: State) -> Any:
        """Return the part of a learning state that `act` needs."""
        ...

    def initial_memory(self, batch_size: int, /) -> Memory:
        """Return the memory before the first step of B environments.

        The trainer calls it once, before a run's first episodes.
        """
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
          acting_state: of the learning state.
          memory: after the previous step, possibly of an earlier episode. `act` must reset it where
            an episode begins: where `timestep.first()`, or where the observation is a `History`
            and its last `age` is 0.
          timestep: the current one of each environment, leaves `[B, ...]`. Its observation is a
            `History` where `requirements.history` asks for one. Where it is an episode's last, the
            action has no effect: the environment starts its next episode.
          key: random key of the actions.
          mode: the purpose of acting.

        Returns:
          The memory after the step; the actions `[B, ...]`, of the shape and dtype that the
          environment's `action_spec` accepts (an int32 choice `[B]`, or a float32 vector `[B, A]`);
          and the extras to store with the step.
        """
        ...

    def update(self, state: State, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        """Make one update of a kind, by its `UpdateSpec.name`."""
        ...


class Examination(NamedTuple):
    """The result of `ExaminedAgent.examine`: numbers, and PNG files' contents, by name."""

    metrics: dict[str, float]
    pictures: dict[str, bytes]


@runtime_checkable
class ExaminedAgent(Agent, Protocol):
    """An agent with a final examination besides its scores, such as of its model's predictions."""

    def examine(self, state: State, batch: Batch, key: PRNGKeyArray) -> Examination:
        """Examine a trained agent by its final learning state. JAX does not trace it.

        The batch, NumPy, is of new episodes in `Mode.EVALUATION`, from their first steps.
        """
        ...


class OpenLoop(NamedTuple):
    """Observations of one environment, and a world model's predictions of them.

    Attributes:
      observed: what happened, `[T+1, H, W, ...]`.
      predicted: likewise, by the model, which reads some observations only; between two of them it
        predicts from the actions alone.
      steps: `[T+1]`, steps since it read an observation; 0 where `predicted` reconstructs this one.
    """

    observed: np.ndarray
    predicted: np.ndarray
    steps: Int[np.ndarray, "T_plus_1"]


@runtime_checkable
class ImaginingAgent(Agent, Protocol):
    """An agent with a model of the world that predicts observations."""

    def imagine(self, state: State, batch: Batch, key: PRNGKeyArray, interval: int, /) -> OpenLoop:
        """Predict observations from actions, started anew at intervals. JAX does not trace it.

        The batch is of T transitions of one environment, NumPy, from an episode's first step.

        Returns:
          The first observation that is a picture (`agents.pictures`), and its predictions.

        Raises:
          ValueError: if no observation is a picture, or the interval is too short to predict
            anything.
        """
        ...


@dataclasses.dataclass(frozen=True)
class TrainingReport:
    """The progress of an algorithm that trains itself, since its last report.

    Attributes:
      environment_steps: of the run so far, over all of its environments.
      episodes: that ended since the last report.
      metrics: to record, by name, such as losses. A metric that is not finite marks the run as not
        finite.
    """

    environment_steps: int
    episodes: Sequence[Episode] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
