"""Delayed chains and DeepSea."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments.suites import small_tasks


@functools.cache
def compiled_step(dynamics):
    return jax.jit(dynamics.step)


def episode(environment, policy, seed=0):
    dynamics, task = environment.dynamics, environment.params
    step = compiled_step(dynamics)
    state, timestep = dynamics.reset(task, jax.random.key(seed))
    timesteps = [timestep]
    while not timesteps[-1].last():
        key = jax.random.fold_in(jax.random.key(seed), len(timesteps))
        state, timestep = step(task, state, jnp.int32(policy(state)), key)
        timesteps.append(timestep)
    return timesteps


@pytest.mark.parametrize(("name", "length"), [("short", 8), ("long", 30)])
def test_only_the_first_action_matters_and_pays_at_the_end(name, length):
    environment = environments.make(f"delayed_chain/{name}")
    good = int(environment.params.good_action)
    for first, reward in ((good, 1.0), (1 - good, -1.0)):
        for later in (0, 1):
            timesteps = episode(environment, lambda s, f=first, x=later: f if s.time == 0 else x)
            rewards = [float(t.reward) for t in timesteps[1:]]
            assert rewards == [0.0] * (length - 1) + [reward]
            assert timesteps[-1].discount == 0.0


def test_chain_observations_tell_every_place_apart():
    environment = environments.make("delayed_chain/short")
    seen = {
        np.asarray(t.observation).tobytes()
        for first in (0, 1)
        for t in episode(environment, lambda s, f=first: f)
    }
    assert len(seen) == 1 + 2 * 8


def test_noise_and_distraction():
    noisy = episode(environments.make("delayed_chain/noisy_long"), lambda s: 0)
    rewards = np.array([float(t.reward) for t in noisy[1:-1]])
    assert 0.15 < rewards.std() < 0.45
    assert abs(rewards.mean()) < 0.25
    distracting = episode(environments.make("delayed_chain/distractor"), lambda s: 0)
    bits = [timestep.observation[62:] for timestep in distracting]
    assert 0.3 < np.mean(bits) < 0.7
    assert len({np.asarray(b).tobytes() for b in bits}) == len(bits)
    quiet = episode(environments.make("delayed_chain/short"), lambda s: 0)
    assert not any(t.observation[62:].any() for t in quiet)


@pytest.mark.parametrize("name", ["deep_sea/6", "grid_heldout/deep_sea_5"])
def test_always_right_finds_the_treasure(name):
    environment = environments.make(name)
    right, size = np.asarray(environment.params.right), int(environment.params.size)
    timesteps = episode(environment, lambda s: right[s.row, s.column])
    assert len(timesteps) == 1 + size
    assert sum(float(t.reward) for t in timesteps) == pytest.approx(0.99)
    assert timesteps[-1].discount == 0.0
    assert not timesteps[-1].observation.any()
    for i, timestep in enumerate(timesteps[:-1]):
        assert timestep.observation[i, i] == 1.0
        assert timestep.observation.sum() == 1.0


def test_one_step_left_misses_the_treasure():
    environment = environments.make("deep_sea/5")
    right = np.asarray(environment.params.right)
    timesteps = episode(
        environment, lambda s: right[s.row, s.column] if s.row != 2 else 1 - right[2, s.column]
    )
    assert sum(float(t.reward) for t in timesteps) == pytest.approx(-0.01 * 4 / 5)


def test_the_meaning_of_actions_differs_between_cells():
    task = small_tasks.make_deep_sea(small_tasks.DeepSea(max_size=10), 10)
    assert 0.3 < float(task.right.mean()) < 0.7


@pytest.mark.parametrize("size", ["0", "-1", "x", "3.5"])
def test_malformed_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"'{size}'; expected a positive integer"):
        environments.make(f"deep_sea/{size}")
