"""The two kinds of environment, and what a named environment is.

Both kinds speak `dm_env`: specs describe observations and actions, and time steps are
`dm_env.TimeStep`s whose `step_type` is FIRST, MID or LAST.

*JAX environments* are pure functions that run inside `jit`, `vmap` and `scan`. What
distinguishes one task of a family from another (maze, rewards, horizon, ...) is data: a
pytree of arrays that is passed to every call. Tasks that share their dynamics therefore
share one compiled program, and a population of agents, each on its own task, is a `vmap`.

*Host environments* are batched simulators that live outside of JAX and speak NumPy. They too
are told apart into dynamics (specs, and how to start simulators) and tasks (which game).

An observation is an array, or a dictionary of arrays by name. Images are uint8 `[height, width,
channels]`, and single ones: stacking frames is the agent's affair (`agents.history`).

A termination and a cut differ as `dm_env` says: a LAST step with discount 0 is a
termination; a LAST step with a positive discount was cut (a time limit), and its
observation is one to bootstrap from.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

Task = Any  # What makes this task differ from others of its family.
State = Any  # A pytree of arrays: the simulator's state.
ObservationSpec = specs.Array | dict[str, specs.Array]


@runtime_checkable
class JaxEnvironment(Protocol):
    """A family of tasks with common specs, stepped inside `jit`.

    Implementations are hashable (frozen dataclasses), hold no arrays, and return the same
    pytree structures, shapes and strong dtypes from `reset` and `step`. One may have a method
    `results(task, state)`, see `episode_results`.
    """

    def observation_spec(self) -> ObservationSpec:
        """Shapes and dtypes of one observation."""
        ...

    def action_spec(self) -> specs.DiscreteArray:
        """Number of actions."""
        ...

    def reset(self, task: Task, key: PRNGKeyArray) -> tuple[State, dm_env.TimeStep]:
        """Starts an episode: a FIRST time step with reward 0 and discount 1."""
        ...

    def step(
        self, task: Task, state: State, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        """One step. Never resets: stepping after LAST is undefined (see `stream`)."""
        ...


@runtime_checkable
class HostEnvironment(Protocol):
    """A family of tasks with common specs, simulated outside JAX.

    Implementations are hashable (frozen dataclasses) and hold no simulator: `start` makes those.
    """

    def observation_spec(self) -> ObservationSpec:
        """Shapes and dtypes of one observation."""
        ...

    def action_spec(self) -> specs.DiscreteArray | specs.BoundedArray:
        """Number of actions, or the bounds of a continuous one."""
        ...

    def start(
        self, task: Task, batch_size: int, seed: int, workers: int | None = None
    ) -> "Simulators":
        """Starts `batch_size` simulators of a task.

        Args:
          task: which; data, as for JAX environments, here a name or other hashable value.
          batch_size: simulators.
          seed: of all their randomness, as far as the engine allows.
          workers: threads or processes that step them; None for as many as there are processors.
            It changes speed only.
        """
        ...


class Simulators(Protocol):
    """A batch of running simulators. All arrays are NumPy with a leading batch axis.

    A simulator whose previous step was LAST ignores its action and starts a new episode
    (`dm_env`'s convention), so every stream keeps each episode's last observation. The first
    reward of an episode is 0 and its first discount 1, where `dm_env` has None.

    Attributes:
      batch_size: simulators.
      restarts: how often a process of them died and was replaced.
    """

    batch_size: int
    restarts: int

    @property
    def results(self) -> Mapping[str, np.ndarray]:
        """What the suite tells of an episode besides its return, by name, `[B]`.

        Valid where the last time step was LAST, unless a suite says more. The names are the
        same in all steps.
        """
        ...

    def reset(self) -> dm_env.TimeStep:
        """Starts a new episode in every simulator."""
        ...

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Steps every simulator with its action `[B, ...]`. Other threads run meanwhile.

        The arrays that it returns may change at the next call.

        Raises:
          SimulatorError: if a simulator died and cannot be replaced.
        """
        ...

    def close(self) -> None:
        """Ends all simulators."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """A named environment: dynamics shared by a family, and the task within it.

    Attributes:
      name: how the registry knows it, for example `"grid57/12_sparse"`.
      dynamics: static; environments with equal dynamics run in one compiled program.
      task: of a JAX environment a pytree of arrays, of equal structure and shapes for equal
        dynamics; of a host environment a hashable value.
      sha256: of the file that the task was read from; None if there is none. With another file of
        that name it is another task.
    """

    name: str
    dynamics: JaxEnvironment | HostEnvironment
    task: Task = ()
    sha256: str | None = None

    @property
    def is_host(self) -> bool:
        """Whether it is simulated outside JAX."""
        return isinstance(self.dynamics, HostEnvironment)


def num_actions(environment: JaxEnvironment | HostEnvironment) -> int:
    """The number of actions.

    Raises:
      ValueError: if an action is not one choice among a number of them.
    """
    spec = environment.action_spec()
    if not isinstance(spec, specs.DiscreteArray):
        raise ValueError(
            f"{environment} has continuous actions of shape {spec.shape}; expected a discrete one,"
            " as update rules choose among a number of actions. Continuous ones are for agents"
            " that support them."
        )
    return int(spec.num_values)


def episode_results(
    environment: JaxEnvironment, task: Task, state: State
) -> dict[str, Float[Array, ""]]:
    """What a JAX environment tells of the episode so far, besides its return.

    Those without a method `results(task, state)` tell nothing.
    """
    results = getattr(environment, "results", None)
    return {} if results is None else results(task, state)


def restart(observation: chex.Array) -> dm_env.TimeStep:
    """A FIRST time step inside `jit`. Reward 0 and discount 1, where `dm_env` has None."""
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
    truncated: chex.Numeric,
) -> dm_env.TimeStep:
    """A MID or LAST time step inside `jit`.

    Args:
      observation: of the state reached.
      reward: for reaching it.
      terminated: whether the episode ended there by the task's rules (discount 0).
      truncated: whether a time limit cut it there (discount stays 1).
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
    task: Task,
    state: State,
    previous: dm_env.TimeStep,
    action: Int[Array, ""],
    key: PRNGKeyArray,
) -> tuple[State, dm_env.TimeStep]:
    """Steps an endless stream of episodes, in `dm_env`'s convention.

    After a LAST time step the action is ignored and a new episode starts, so that every
    episode's last observation is in the stream.
    """
    reset_key, step_key = jax.random.split(key)
    reset = environment.reset(task, reset_key)
    step = environment.step(task, state, action, step_key)
    return jax.tree.map(lambda a, b: jnp.where(previous.last(), a, b), reset, step)
