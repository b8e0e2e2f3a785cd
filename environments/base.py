"""The two interfaces of environments, and named environments.

Both use `dm_env`: specs describe observations and actions, and time steps are
`dm_env.TimeStep`s whose `step_type` is FIRST, MID or LAST.

*JAX environments* are pure functions that run inside `jit`, `vmap` and `scan`. The task
within a family (maze, rewards, horizon, ...) is data: a pytree of arrays that is passed to
every call. Tasks with the same dynamics therefore share one compiled program, and a
population of agents, each on its own task, is a `vmap`.

*Host environments* are batched simulators outside JAX, on NumPy arrays. They too consist of
dynamics (specs, and how to start simulators) and a task (which game).

An observation is an array, or a dictionary of arrays by name. Images are single frames, uint8
`[height, width, channels]`; agents stack frames (`agents.history`).

Termination and truncation differ as in `dm_env`: a LAST step with discount 0 is a
termination; a LAST step with a positive discount was truncated (by a time limit), and agents
bootstrap from its observation.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, Int32, PRNGKeyArray

TaskParams = Any  # The parameters of a task, given the dynamics.
State = Any  # A pytree of arrays: the simulator's state.
ObservationSpec = specs.Array | dict[str, specs.Array]


@runtime_checkable
class JaxEnvironment(Protocol):
    """The dynamics of tasks with common specs, stepped inside `jit`.

    Implementations are hashable (frozen dataclasses), hold no arrays, and return the same
    pytree structures, shapes and strong dtypes from `reset` and `step`; what contradicts the specs
    is refused before the first compilation (`environments.output_checks`). They may have a method
    `results(task, state)`: see `episode_results`.
    """

    def observation_spec(self) -> ObservationSpec:
        """Return the shapes and dtypes of one observation."""
        ...

    def action_spec(self) -> specs.DiscreteArray:
        """Return the number of actions."""
        ...

    def reset(self, task: TaskParams, key: PRNGKeyArray) -> tuple[State, dm_env.TimeStep]:
        """Start an episode: a FIRST time step with reward 0 and discount 1."""
        ...

    def step(
        self, task: TaskParams, state: State, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        """Take one step. Never resets: stepping after LAST is undefined (see `stream`)."""
        ...


@runtime_checkable
class HostEnvironment(Protocol):
    """The dynamics of tasks with common specs, simulated outside JAX.

    Implementations are hashable (frozen dataclasses) and hold no simulator: `start` makes them.
    """

    def observation_spec(self) -> ObservationSpec:
        """Return the shapes and dtypes of one observation."""
        ...

    def action_spec(self) -> specs.DiscreteArray | specs.BoundedArray:
        """Return the number of actions, or the bounds of continuous ones."""
        ...

    def start(
        self, task: TaskParams, batch_size: int, seed: int, workers: int | None = None
    ) -> "Simulators":
        """Start `batch_size` simulators of a task.

        Args:
          task: a name or another hashable value.
          batch_size: number of simulators.
          seed: of all their randomness, as far as the engine allows.
          workers: threads or processes that step them; None for as many as there are processors.
            It changes speed only.
        """
        ...


@runtime_checkable
class Simulators(Protocol):
    """A batch of running simulators. All arrays are NumPy with a leading batch axis.

    A simulator whose previous step was LAST ignores its action and starts a new episode
    (`dm_env`'s convention), so every stream keeps each episode's last observation. The first
    reward of an episode is 0 and its first discount 1, where `dm_env` has None.

    Attributes:
      batch_size: number of simulators.
      restarts: how often one of their processes died and was replaced.
    """

    batch_size: int
    restarts: int

    @property
    def results(self) -> Mapping[str, np.ndarray]:
        """Return what the suite reports of an episode besides its return, by name, `[B]`.

        Valid where the last time step was LAST, unless a suite says otherwise. The names are the
        same in all steps.
        """
        ...

    def reset(self) -> dm_env.TimeStep:
        """Start a new episode in every simulator."""
        ...

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Step every simulator with its action `[B, ...]`. Other threads run meanwhile.

        The next call may overwrite the returned arrays.

        Raises:
          SimulatorError: if a simulator died and cannot be replaced.
        """
        ...

    def close(self) -> None:
        """Stop all simulators."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """A named environment: dynamics, and a task with these dynamics. Other rooms call it a task.

    Attributes:
      name: in the registry, for example `"grid57/00_dense_fixed"`.
      dynamics: static; environments with equal dynamics run in one compiled program.
      params: the task's parameters: of a JAX environment a pytree of arrays, of equal structure
        and shapes for equal dynamics; of a host environment a hashable value.
      sha256: of the file that the task was read from; None if there is none. Another file of the
        same name is another task.
    """

    name: str
    dynamics: JaxEnvironment | HostEnvironment
    params: TaskParams = ()
    sha256: str | None = None

    @property
    def is_host(self) -> bool:
        """Whether the environment is simulated outside JAX."""
        return isinstance(self.dynamics, HostEnvironment)


@runtime_checkable
class Simulator(Protocol):
    """One simulator written in Python, for `environments.processes`; a `dm_env.Environment` is one.

    It may have a method `episode_results()`, which returns numbers by name for the episode so far
    and is called at its end.
    """

    def reset(self) -> dm_env.TimeStep:
        """Start an episode."""
        ...

    def step(self, action: Any) -> dm_env.TimeStep:
        """Take one step; never called after LAST."""
        ...

    def close(self) -> None:
        """Stop."""


@runtime_checkable
class FilmedSimulator(Simulator, Protocol):
    """A simulator that draws pictures."""

    def render(self) -> np.ndarray:
        """Return a picture of the present state, uint8 `[height, width, 3]`."""
        ...


@runtime_checkable
class Filmed(HostEnvironment, Protocol):
    """Dynamics whose simulators draw pictures that are not observations."""

    def filmed(self, task: TaskParams, seed: int) -> FilmedSimulator | None:
        """Make one simulator, in this process; None if this one draws nothing."""
        ...


@runtime_checkable
class ImageSizes(Protocol):
    """Dynamics whose images may have other sizes."""

    def with_images(self, side: int, channels: int) -> JaxEnvironment | HostEnvironment:
        """Return the dynamics with square images, grey (1 channel) or in colour (3)."""
        ...


def with_images(environment: Environment, side: int, channels: int) -> Environment:
    """Return an environment with square images, or as it is if it offers no choice.

    `side` is in pixels; `channels` are 1 for grey images, 3 for RGB.
    """
    if not isinstance(environment.dynamics, ImageSizes):
        return environment
    dynamics = environment.dynamics.with_images(side, channels)
    return dataclasses.replace(environment, dynamics=dynamics)


def num_actions(environment: JaxEnvironment | HostEnvironment) -> int:
    """Return the number of actions.

    Raises:
      ValueError: if actions are not discrete.
    """
    spec = environment.action_spec()
    if not isinstance(spec, specs.DiscreteArray):
        raise ValueError(
            f"{getattr(environment, 'name', environment)} has continuous actions of shape"
            f" {spec.shape}; expected a choice among a number of actions, which update rules and"
            " most agents make. Vectors are for agents that support them, such as dreamer."
        )
    return int(spec.num_values)


def episode_results(
    environment: JaxEnvironment, task: TaskParams, state: State
) -> dict[str, Float[Array, ""]]:
    """Return what a JAX environment reports of the episode so far, besides its return.

    Environments without a method `results(task, state)` report nothing.
    """
    results = getattr(environment, "results", None)
    return {} if results is None else results(task, state)


def restart(observation: chex.Array) -> dm_env.TimeStep:
    """Return a FIRST time step inside `jit`: reward 0 and discount 1, where `dm_env` has None."""
    return dm_env.TimeStep(
        step_type=jnp.int32(dm_env.StepType.FIRST),
        reward=jnp.float32(0.0),
        discount=jnp.float32(1.0),
        observation=observation,
    )


def transition(
    observation: chex.Array,
    reward: chex.Numeric,
    *,
    terminated: chex.Numeric,
    truncated: chex.Numeric = False,
) -> dm_env.TimeStep:
    """Return a MID or LAST time step inside `jit`.

    The task's rules end a `terminated` episode (discount 0), a time limit a `truncated` one (the
    discount stays 1).
    """
    ended = jnp.logical_or(terminated, truncated)
    return dm_env.TimeStep(
        step_type=jnp.where(ended, jnp.int32(dm_env.StepType.LAST), jnp.int32(dm_env.StepType.MID)),
        reward=jnp.asarray(reward, jnp.float32),
        discount=1.0 - jnp.asarray(terminated, jnp.float32),
        observation=observation,
    )


def stream(
    environment: JaxEnvironment,
    task: TaskParams,
    state: State,
    previous: dm_env.TimeStep,
    action: Int[Array, ""],
    key: PRNGKeyArray,
) -> tuple[State, dm_env.TimeStep]:
    """Step an endless stream of episodes, in `dm_env`'s convention.

    After a LAST time step the action is ignored and a new episode starts, so that each
    episode's last observation is in the stream.
    """
    reset_key, step_key = jax.random.split(key)
    reset = environment.reset(task, reset_key)
    step = environment.step(task, state, action, step_key)
    return jax.tree.map(lambda a, b: jnp.where(previous.last(), a, b), reset, step)


def promoting() -> AbstractContextManager[None]:
    """Let environments of other packages mix dtypes, whatever JAX's setting."""
    return jax.numpy_dtype_promotion("standard")


def strong(leaf: Any) -> Any:
    """Convert a Python number to an array of strong 32-bit type, or an array to strong type."""
    if isinstance(leaf, bool | int | float):
        dtype = {bool: jnp.bool_, int: jnp.int32, float: jnp.float32}[type(leaf)]
        return jnp.asarray(leaf, dtype)
    return jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype)


def cast(state: Any, types: Any) -> Any:
    """Return the state with the shapes and dtypes of `types`."""
    return jax.tree.map(
        lambda leaf, kind: jnp.asarray(leaf, kind.dtype).reshape(kind.shape), state, types
    )


NUM_TOKENS = 1000


class TextSpec(specs.BoundedArray):
    """A text of a number of words at most: for each its number, then zeros."""

    def __init__(self, most_words: int, name: str):
        super().__init__((most_words,), np.int32, 0, NUM_TOKENS, name=name)

    def __reduce__(self):
        return TextSpec, (self.shape[0], self.name)

    def tokens(self, text: str) -> Int32[np.ndarray, "N"]:
        """Return the numbers of a text's words, and zeros for as many as are missing.

        Words are separated by blanks and hashed into 1000 buckets, as in IMPALA (Espeholt et al.
        2018). Bucket 0 is number 1, since 0 stands for no word. Further words are left out.
        """
        words = text.split()[: self.shape[0]]
        numbers = [1 + zlib.crc32(word.encode()) % NUM_TOKENS for word in words]
        return np.array(numbers + [0] * (self.shape[0] - len(numbers)), np.int32)
