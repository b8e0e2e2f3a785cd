"""Streams of host environments, recorded, what holds for each of them, and a best policy."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np
from dm_env import specs

from environments import Environment, HostEnvironment, Simulators, TaskGroup, num_actions
from environments.exact_returns import FiniteMDP

FIRST, MID, LAST = dm_env.StepType


def dynamics_of(made: Environment | TaskGroup) -> Any:
    """Its dynamics, of whose class a test knows more than a type checker."""
    return made.dynamics


class Recording(NamedTuple):
    """A stream's time steps and results, with leaves `[T, B, ...]`."""

    timestep: dm_env.TimeStep
    results: Mapping[str, np.ndarray]

    def is_(self, step_type: dm_env.StepType) -> np.ndarray:
        return self.timestep.step_type == step_type


def record(simulators: Simulators, actions: np.ndarray) -> Recording:
    """A reset, and a step for each row of actions. Closes the simulators."""
    try:
        rows = [_copied(simulators, simulators.reset())]
        rows += [_copied(simulators, simulators.step(action)) for action in actions]
    finally:
        simulators.close()
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def _copied(simulators: Simulators, timestep: dm_env.TimeStep) -> Recording:
    return jax.tree.map(np.copy, Recording(timestep, dict(simulators.results)))


def random_actions(
    dynamics: HostEnvironment, steps: int, batch_size: int, seed: int = 0
) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(num_actions(dynamics), size=(steps, batch_size))


def optimal_policy(mdp: FiniteMDP) -> np.ndarray:
    """The best action `[horizon, states]` in each state after each number of steps."""
    actions, values = [], np.zeros(mdp.num_states)
    for _ in range(mdp.horizon):
        action_values = mdp.rewards + (mdp.transitions @ values).reshape(mdp.rewards.shape)
        actions.append(np.argmax(action_values, axis=-1))
        values = np.max(action_values, axis=-1)
    return np.stack(actions[::-1])


def assert_same(one: Recording, other: Recording) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_valid(stream: Recording, dynamics: HostEnvironment) -> None:
    """Observations are what the specs say, and episodes follow `dm_env`'s convention."""
    observation_spec, timestep = dynamics.observation_spec(), stream.timestep
    is_dictionary = isinstance(observation_spec, dict)
    for name, spec in (observation_spec if is_dictionary else {"": observation_spec}).items():
        seen = timestep.observation[name] if is_dictionary else timestep.observation
        assert (seen.shape[2:], seen.dtype) == (spec.shape, spec.dtype)
        if isinstance(spec, specs.BoundedArray):
            assert spec.minimum <= seen.min()
            assert seen.max() <= spec.maximum
    assert not is_dictionary or timestep.observation.keys() == observation_spec.keys()
    first = stream.is_(FIRST)
    assert first[0].all()
    np.testing.assert_array_equal(first[1:], stream.is_(LAST)[:-1])
    assert (timestep.reward[first] == 0.0).all()
    assert np.isfinite(timestep.reward).all()
    assert (timestep.discount[~stream.is_(LAST)] == 1.0).all()
    assert np.isin(timestep.discount, [0.0, 1.0]).all()
    assert timestep.reward.dtype == timestep.discount.dtype == np.float32
    assert all(values.dtype == np.float32 for values in stream.results.values())
