"""Random Markov decision processes: their kinds, and the returns by dynamic programming."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import exact_returns
from environments.errors import EnvironmentNameError
from environments.suites import mdp_generated
from environments.suites.mdp_generated import DYNAMICS
from evaluation.scoring.references import fingerprint
from tests.environments.streams import optimal_policy

EPISODES = 4_000


def test_the_tasks_are_drawn_from_their_numbers():
    suite = environments.suite("mdp_generated")
    assert len({task.name for task in suite}) == 64
    assert len({fingerprint(task) for task in suite}) == 64
    (group,) = environments.group_by_dynamics(suite)
    noise = np.asarray(group.task_params.noise).reshape(-1, 2, 4)
    assert not noise[:, 0].any()
    assert (noise[:, 1] > 0.0).all()
    horizon = np.asarray(group.task_params.task.horizon)
    assert horizon.min() < 12
    assert horizon.max() > 400


def test_every_task_can_be_learned():
    for task in environments.suite("mdp_generated"):
        returns = exact_returns.expected_returns(exact_returns.finite_mdp(task))
        scale = float(jnp.max(jnp.abs(task.params.task.living + task.params.task.arrival)))
        assert returns.optimal - returns.random > 0.1 * scale, task.name


@pytest.mark.parametrize("name", ["00_dense", "04_dense", "05_goal", "06_cost", "11_alive"])
@pytest.mark.parametrize("is_optimal", [False, True])
def test_returns_are_those_of_the_simulator(name, is_optimal):
    """Of the random policy and of the best one, without noise; with a lottery of slips."""
    task = environments.make(f"mdp_generated/{name}")
    model = exact_returns.finite_mdp(task)
    returns = exact_returns.expected_returns(model)
    policy = jnp.asarray(optimal_policy(model))
    params = task.params.replace(noise=jnp.float32(0.0))

    def episode(key):
        def step(carry, time):
            state, total, lives = carry
            action_key, step_key = jax.random.split(jax.random.fold_in(key, time))
            action = policy[time, state.state]
            if not is_optimal:
                action = jax.random.randint(action_key, (), 0, mdp_generated.NUM_ACTIONS)
            state, timestep = DYNAMICS.step(params, state, action, step_key)
            total += jnp.where(lives, timestep.reward, 0.0)
            return (state, total, lives & (timestep.discount > 0.0)), None

        state, _ = DYNAMICS.reset(params, key)
        steps = jnp.arange(model.horizon)
        (_, total, lives), _ = jax.lax.scan(step, (state, 0.0, jnp.bool_(True)), steps)
        return total, lives

    totals, lives = jax.vmap(episode)(jax.random.split(jax.random.key(0), EPISODES))
    assert not lives.any()  # At the horizon the episode terminates.
    expected = returns.optimal if is_optimal else returns.random
    error = float(jnp.std(totals)) / EPISODES**0.5
    assert float(jnp.mean(totals)) == pytest.approx(expected, abs=4.0 * error + 1e-3)


def test_what_is_observed():
    task = environments.make("mdp_generated/03_alive")
    quiet = dataclasses.replace(task, params=task.params.replace(noise=jnp.float32(0.0)))
    params = quiet.params.task
    state, timestep = DYNAMICS.reset(quiet.params, jax.random.key(0))
    np.testing.assert_array_equal(timestep.observation[:-1], params.features[state.state])
    assert timestep.observation[-1] == 0.0
    assert not params.is_last[state.state]
    state, timestep = DYNAMICS.step(quiet.params, state, jnp.int32(0), jax.random.key(1))
    assert timestep.observation[-1] == pytest.approx(1.0 / float(params.horizon))
    assert timestep.reward == params.living
    spec = mdp_generated.Ring().observation_spec()
    spec.validate(np.asarray(timestep.observation))


def test_sizes_are_those_of_all_tasks():
    with pytest.raises(TypeError, match="num_states"):
        mdp_generated.Ring(num_states=5)  # pyright: ignore[reportCallIssue]
    shown = "Ring(num_states=24, num_actions=4, num_features=16)"
    assert repr(mdp_generated.Ring()) == shown  # In the fingerprints of reference scores.


def test_refused():
    with pytest.raises(EnvironmentNameError, match="mdp_generated/00_dense"):
        environments.make("mdp_generated/00_dens")
