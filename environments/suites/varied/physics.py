"""A pole on a cart and a pendulum, whose masses, lengths and forces are the task's."""

import dataclasses

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import restart, transition

_SECONDS = 0.02  # Of a step of the cart.
_MOST_PLACE = 2.4  # Metres from the middle at which the cart's episode ends.
_PENDULUM_SECONDS = 0.05
_MOST_SPEED = 8.0  # Of the pendulum, in radians per second.


@chex.dataclass(frozen=True)
class PhysicsTask:
    """A cart or a pendulum.

    Attributes:
      gravity: in m/s².
      mass: of the cart by that of the pole; of the pendulum in kg.
      length: half of the pole's, or the pendulum's, in m.
      force: of the cart in N, of the pendulum a torque in Nm.
      limit: the cart's pole falls at this angle, in radians; the pendulum is up within it.
      is_sparse: whether the pendulum has a reward only where it is up.
      horizon: steps after which the episode is truncated.
    """

    gravity: Float[Array, "*tasks"]
    mass: Float[Array, "*tasks"]
    length: Float[Array, "*tasks"]
    force: Float[Array, "*tasks"]
    limit: Float[Array, "*tasks"]
    is_sparse: Float[Array, "*tasks"]
    horizon: Int[Array, "*tasks"]


@chex.dataclass(frozen=True)
class PhysicsState:
    """Positions and speeds, and the number of steps so far."""

    x: Float[Array, "*batch numbers"]
    time: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Cart:
    """A pole to be balanced on a cart (Barto et al. 1983): left, nothing, right.

    The observation is float32 `[4]`: place, speed, angle and its speed. The reward of a step is 1;
    the episode terminates when the pole falls or the cart leaves.
    """

    def observation_spec(self) -> specs.Array:
        return specs.Array((4,), np.float32, name="cart")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(3, name="push")

    def reset(self, task: PhysicsTask, key: PRNGKeyArray) -> tuple[PhysicsState, dm_env.TimeStep]:
        del task
        x = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return PhysicsState(x=x, time=jnp.int32(0)), restart(x)

    def step(
        self, task: PhysicsTask, state: PhysicsState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[PhysicsState, dm_env.TimeStep]:
        del key
        _, speed, angle, turn = state.x
        force = task.force * (action.astype(jnp.float32) - 1.0)
        sin, cos, total = jnp.sin(angle), jnp.cos(angle), 1.0 + task.mass
        push = (force + task.length * turn**2 * sin) / total
        slowed = task.length * (4.0 / 3.0 - cos**2 / total)
        turned = (task.gravity * sin - cos * push) / slowed
        moved = push - task.length * turned * cos / total
        x = state.x + _SECONDS * jnp.stack([speed, moved, turn, turned])
        new = PhysicsState(x=x, time=state.time + 1)
        fell = (jnp.abs(x[0]) > _MOST_PLACE) | (jnp.abs(x[2]) > task.limit)
        return new, transition(x, 1.0, terminated=fell, truncated=new.time >= task.horizon)


@dataclasses.dataclass(frozen=True)
class Pendulum:
    """A pendulum to be swung up, by five torques.

    The observation is float32 `[3]`: cosine and sine of the angle, and its speed. The reward is
    between 0, hanging down, and 1; or 1 where the pendulum is up, and otherwise 0. Episodes are
    truncated at the horizon.
    """

    def observation_spec(self) -> specs.Array:
        return specs.Array((3,), np.float32, name="pendulum")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(5, name="torque")

    def reset(self, task: PhysicsTask, key: PRNGKeyArray) -> tuple[PhysicsState, dm_env.TimeStep]:
        del task
        most = jnp.array([jnp.pi, 1.0], jnp.float32)
        x = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0) * most
        state = PhysicsState(x=x, time=jnp.int32(0))
        return state, restart(self._observed(state))

    def step(
        self, task: PhysicsTask, state: PhysicsState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[PhysicsState, dm_env.TimeStep]:
        del key
        angle, speed = state.x
        torque = task.force * (action.astype(jnp.float32) / 2.0 - 1.0)
        falling = 1.5 * task.gravity / task.length * jnp.sin(angle)
        turned = falling + 3.0 * torque / (task.mass * task.length**2)
        speed = jnp.clip(speed + _PENDULUM_SECONDS * turned, -_MOST_SPEED, _MOST_SPEED)
        angle = (angle + _PENDULUM_SECONDS * speed + jnp.pi) % (2.0 * jnp.pi) - jnp.pi
        new = PhysicsState(x=jnp.stack([angle, speed]), time=state.time + 1)
        is_up = (jnp.abs(angle) < task.limit).astype(jnp.float32)
        height = (1.0 + jnp.cos(angle)) / 2.0
        reward = task.is_sparse * is_up + (1.0 - task.is_sparse) * height
        return new, transition(
            self._observed(new), reward, terminated=False, truncated=new.time >= task.horizon
        )

    def _observed(self, state: PhysicsState) -> Float[Array, "3"]:
        angle, speed = state.x
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])
