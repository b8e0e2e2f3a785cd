"""Two tasks of one kind: walk along a corridor to the end that pays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

import environments

LONGEST = 16


@dataclasses.dataclass(frozen=True)
class Corridor:
    """The middle of a corridor is the start; its right end pays 1, its left end 0.1."""

    def observation_spec(self):
        return specs.BoundedArray((LONGEST,), np.float32, 0.0, 1.0, name="place")

    def action_spec(self):
        return specs.DiscreteArray(2, name="direction")

    def reset(self, task, key):
        place = task // 2
        return (place, jnp.int32(0)), environments.restart(self._observe(place))

    def step(self, task, state, action, key):
        place, count = state
        place, count = place + 2 * action - 1, count + 1
        at_right, at_left = place == task - 1, place == 0
        reward = jnp.where(at_right, 1.0, jnp.where(at_left, 0.1, 0.0))
        return (place, count), environments.transition(
            self._observe(place), reward, terminated=at_right | at_left, truncated=count == 40
        )

    def _observe(self, place):
        return jax.nn.one_hot(place, LONGEST, dtype=jnp.float32)


def corridor(length):
    """From what stands behind the slash, the number of places, to a task."""
    return environments.Environment(
        name=f"corridor/{length}", dynamics=Corridor(), params=np.int32(length)
    )
