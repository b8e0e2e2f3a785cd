"""Grid-worlds as an agent in them sees them, and as numbers."""

import dataclasses

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.suites.grid_worlds import GridWorld, GridWorldTask
from environments.suites.grid_worlds.dynamics import GridWorldState

_WALLS = 1  # The plane of a grid-world's observation.


@dataclasses.dataclass(frozen=True)
class View:
    """A grid-world of which agents see something else, which `_seen` returns."""

    dynamics: GridWorld

    def action_spec(self) -> specs.DiscreteArray:
        return self.dynamics.action_spec()

    def reset(
        self, task: GridWorldTask, key: PRNGKeyArray
    ) -> tuple[GridWorldState, dm_env.TimeStep]:
        return self._viewed(*self.dynamics.reset(task, key))

    def step(
        self, task: GridWorldTask, state: GridWorldState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[GridWorldState, dm_env.TimeStep]:
        return self._viewed(*self.dynamics.step(task, state, action, key))

    def _viewed(
        self, state: GridWorldState, timestep: dm_env.TimeStep
    ) -> tuple[GridWorldState, dm_env.TimeStep]:
        return state, timestep._replace(observation=self._seen(state, timestep.observation))

    def _seen(self, state: GridWorldState, planes: Float[Array, "h w p"]) -> Float[Array, "..."]:
        """Return what is seen of a state with these planes."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Egocentric(View):
    """A grid-world of which the agent sees the cells around it.

    The observation is float32 `[2 radius + 1, 2 radius + 1, planes]`, the agent in the middle; what
    lies outside of the grid is wall. So what is farther away is hidden.
    """

    radius: int = 3

    def observation_spec(self) -> specs.Array:
        side = 2 * self.radius + 1
        shape = (side, side, self.dynamics.num_planes)
        return specs.BoundedArray(shape, np.float32, 0.0, 1.0, name="planes")

    def _seen(self, state: GridWorldState, planes: Float[Array, "h w p"]) -> Float[Array, "..."]:
        around, side = ((self.radius, self.radius),) * 2, 2 * self.radius + 1
        planes = jnp.pad(planes, (*around, (0, 0)))
        outside = jnp.pad(
            jnp.zeros((self.dynamics.height, self.dynamics.width), planes.dtype),
            around,
            constant_values=1.0,
        )
        planes = planes.at[..., _WALLS].add(outside)
        row, column = state.agent // self.dynamics.width, state.agent % self.dynamics.width
        return jax.lax.dynamic_slice(
            planes, (row, column, jnp.int32(0)), (side, side, self.dynamics.num_planes)
        )


@dataclasses.dataclass(frozen=True)
class Coordinates(View):
    """A grid-world of which the agent sees where it is, and where objects are.

    The observation is float32: the agent's row and column, from 0 to 1, and whether it has the key;
    then of each object whether it is there, and how many rows and columns away, in grids. Walls are
    not seen.
    """

    def observation_spec(self) -> specs.Array:
        return specs.Array((3 + 3 * self.dynamics.max_objects,), np.float32, name="coordinates")

    def _seen(self, state: GridWorldState, planes: Float[Array, "h w p"]) -> Float[Array, "..."]:
        del planes
        there = state.present.astype(jnp.float32)
        place, objects = self._place(state.agent), self._place(state.cell)
        away = there[:, None] * (objects - place[None])
        key = state.has_key.astype(jnp.float32)[None]
        return jnp.concatenate([place, key, there, away.ravel()])

    def _place(self, cell: Int[Array, "*n"]) -> Float[Array, "*n 2"]:
        """Return the row and column of cells, from 0 to 1."""
        height, width = self.dynamics.height, self.dynamics.width
        row, column = cell // width / max(1, height - 1), cell % width / max(1, width - 1)
        return jnp.stack([row, column], axis=-1).astype(jnp.float32)
