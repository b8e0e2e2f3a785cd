"""An environment whose every number is known beforehand, and parameters that cost nothing."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from agents.networks import Network, NetworkConfig
from environments.base import restart, transition
from environments.processes import SerialSimulators


@dataclasses.dataclass(frozen=True)
class Corridor:
    """Episodes of `length` steps that pay 1, 2, 3, ...; the task says whether they terminate.

    The observation is the step's number, and a random number that tells apart all states.
    """

    length: int = 3

    def observation_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32)

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2)

    def reset(self, task, key):
        return jnp.int32(0), restart(self._observe(jnp.int32(0), key))

    def step(self, task, state, action, key):
        state = state + 1
        at_end = state == self.length
        return state, transition(
            self._observe(state, key),
            state.astype(jnp.float32),
            terminated=at_end & task,
            truncated=at_end & ~task,
        )

    def _observe(self, state, key):
        return jnp.stack([state.astype(jnp.float32), jax.random.uniform(key)])


@dataclasses.dataclass(frozen=True, eq=False)
class Specs:
    """What a network reads of an environment's dynamics."""

    observation: Any
    num_actions: int

    def observation_spec(self):
        return self.observation

    def action_spec(self):
        return specs.DiscreteArray(self.num_actions)

    def reset(self, task, key):
        raise NotImplementedError

    def step(self, task, state, action, key):
        raise NotImplementedError


def network_of(
    config: NetworkConfig,
    spec: Any,
    num_actions: int,
    shapes: Mapping[str, tuple[int, ...]],
    frame_stack: int = 1,
    burn_in: int = 0,
) -> Network:
    """A network with outputs of these shapes, by name."""
    dynamics = Specs(spec, num_actions)
    return Network(config, dynamics, frame_stack, burn_in, shapes=tuple(shapes.items()))


class HostCorridor(dm_env.Environment):
    """The same outside JAX, of one instance."""

    def __init__(self, length: int, terminates: bool, seed: int):
        self._length, self._terminates = length, terminates
        self._random = np.random.default_rng(seed)
        self._at = 0

    def reset(self):
        self._at = 0
        return dm_env.restart(self._observe())

    def step(self, action):
        self._at += 1
        if self._at < self._length:
            return dm_env.transition(float(self._at), self._observe())
        end = dm_env.termination if self._terminates else partial(dm_env.truncation, discount=1.0)
        return end(float(self._at), self._observe())

    def episode_results(self):
        return {"reached": float(self._at)}

    def observation_spec(self):
        return Corridor().observation_spec()

    def action_spec(self):
        return Corridor().action_spec()

    def _observe(self):
        return np.array([self._at, self._random.uniform()], np.float32)


def assert_in_all(array, expected) -> None:
    """That each column `[T]` of the array is as expected."""
    columns = np.tile(np.array(expected)[:, None], (1, array.shape[1]))
    np.testing.assert_array_equal(array, columns)


def assert_corridor(trajectory, terminates: bool) -> None:
    """That seven steps from the start of corridors of length 3 are recorded as they were.

    State 3 is an episode's last; the transition from it to state 0 is not to be learned from.
    """
    assert_in_all(trajectory.observation[..., 0], [0, 1, 2, 3, 0, 1, 2, 3])
    assert_in_all(trajectory.reward, [1, 2, 3, 0, 1, 2, 3])
    assert_in_all(trajectory.last, [False, False, True, False, False, False, True])
    assert_in_all(trajectory.mask, [True, True, True, False, True, True, True])
    end = 0.0 if terminates else 1.0
    assert_in_all(trajectory.discount, [1, 1, end, 1, 1, 1, end])
    assert set(np.unique(trajectory.action)) == {0, 1}


@dataclasses.dataclass(frozen=True)
class HostCorridors:
    """Many of them; the task is whether they terminate."""

    length: int = 3

    def observation_spec(self):
        return Corridor().observation_spec()

    def action_spec(self):
        return Corridor().action_spec()

    def start(self, task, batch_size, seed, workers=None):
        del workers
        return SerialSimulators(
            partial(HostCorridor, self.length, task), self, batch_size, seed, ("reached",)
        )


def without_speed(metrics: list[dict]) -> list[dict]:
    """A run's metrics, without those of time, which no two runs have in common."""

    def is_of_time(name: str) -> bool:
        return "per_second" in name or name.endswith("_seconds") or "idle" in name

    return [{k: x for k, x in line.items() if not is_of_time(k)} for line in metrics]


def random_params(init: Callable[..., Any], *args: Any) -> Any:
    """What `init` gives for these arguments, with other numbers, no biases of 0, uncompiled."""
    rng = np.random.default_rng(0)

    def draw(x):
        scale = np.prod(x.shape[:-1]) ** -0.5 if x.ndim > 1 else 0.1
        return (scale * rng.normal(size=x.shape)).astype(x.dtype)

    return jax.tree.map(draw, jax.eval_shape(init, *args))


def second_derivatives(loss: Callable[[Any], jax.Array], params: Any) -> tuple[Any, Any]:
    """In a random direction: forward over reverse, and as differences of gradients.

    A meta-gradient needs the former. The latter are good in float64 only.
    """
    rng = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape), params)

    @jax.jit
    def derivatives(step):
        place = jax.tree.map(lambda p, d: p + step * d, params, direction)
        return jax.jvp(jax.grad(loss), (place,), (direction,))

    step = 1e-6
    (_, exact), (before, _), (after, _) = (
        jax.device_get(derivatives(s)) for s in (0.0, -step, step)
    )
    return exact, jax.tree.map(lambda a, b: (a - b) / (2 * step), after, before)


def take_modes(monkeypatch: Any) -> None:
    """Make samples modes: the likeliest class, and the mean of a normal."""

    def categorical(key, logits):
        del key
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def normal(key, shape, dtype):
        del key
        return jnp.zeros(shape, dtype)

    monkeypatch.setattr(jax.random, "categorical", categorical)
    monkeypatch.setattr(jax.random, "normal", normal)
