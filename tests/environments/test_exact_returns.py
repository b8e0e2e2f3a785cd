"""Returns by dynamic programming: by hand, and those of the simulator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import exact_returns
from environments.exact_returns import expected_returns, finite_mdp
from environments.suites.grid_heldout import DYNAMICS
from environments.suites.grid_worlds import GridWorld, Object, make_task, mazes
from tests.environments.streams import optimal_policy

EPISODES = 2_000
RESET = jax.jit(jax.vmap(lambda task, key: DYNAMICS.reset(task, key)[0], (None, 0)))


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0))
def step(task, state, action, key):
    """The next state, the reward and the discount; nothing computes an observation."""
    state, timestep = DYNAMICS.step(task, state, action, key)
    return state, timestep.reward, timestep.discount


@pytest.mark.parametrize(
    ("name", "random", "optimal"),
    [
        ("grid_heldout/chain_noisy_long", 0.0, 1.0),
        # Right with probability 1/2 at each of five steps; each costs 0.002.
        ("grid_heldout/deep_sea_5", 1 / 32 - 5 * 0.5 * 0.01 / 5, 0.99),
        ("catch/2x3", 2 / 3 - 1, 1.0),  # One step: the paddle ends in each column as often.
        ("grid_heldout/near_or_far", None, 3.0),
        ("grid_heldout/key_door", None, 1.1),
        ("grid_heldout/zigzag", None, 2.75),
        ("grid_heldout/cliff", None, 1.0),
    ],
)
def test_returns_by_hand(name, random, optimal):
    found = expected_returns(finite_mdp(environments.make(name)))
    assert found.optimal == pytest.approx(optimal, abs=1e-6)
    assert random is None or found.random == pytest.approx(random, abs=1e-6)


def rollouts(task: environments.Environment, policy: np.ndarray | None) -> np.ndarray:
    """Returns of the simulator's episodes, by a policy on the states' numbers or at random."""
    values = exact_returns.grid_world_values(DYNAMICS, jax.device_get(task.params))
    states = RESET(task.params, jax.random.split(jax.random.key(0), EPISODES))
    rng = np.random.default_rng(0)
    total, lives = np.zeros(EPISODES), np.ones(EPISODES, bool)
    for time in range(int(task.params.horizon)):
        actions = rng.integers(0, 5, EPISODES)
        if policy is not None:
            actions = policy[time, exact_returns.grid_world_number(values, jax.device_get(states))]
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), time), EPISODES)
        states, reward, discount = step(task.params, states, jnp.asarray(actions), keys)
        total += np.where(lives, reward, 0.0)
        lives &= np.asarray(discount) > 0.0
    return total


@pytest.mark.parametrize(
    "name",
    [
        "tiny_dense_fixed",  # Objects respawn in their cells,
        "corridor_random",  # or elsewhere;
        "key_door_random",  # a door opens,
        "slippery_random",  # actions slip,
        "moving_goods",  # objects walk, collide, and respawn.
        "costly_steps",
    ],
)
def test_a_grid_worlds_returns_are_those_of_the_simulator(name):
    task = environments.make(f"grid_heldout/{name}")
    mdp = finite_mdp(task)
    sums = mdp.transitions.sum(axis=1)
    assert np.all((sums > -1e-9) & (sums < 1.0 + 1e-9))
    expected = expected_returns(mdp)
    for policy, value in ((None, expected.random), (optimal_policy(mdp), expected.optimal)):
        found = rollouts(task, policy)
        error = max(found.std() / np.sqrt(EPISODES), 1e-6)
        assert abs(found.mean() - value) < 4.0 * error, (found.mean(), value, error)


def test_an_object_that_walks_into_the_agent_is_touched():
    """One free cell beside the agent: the object there comes with probability 1/4 per step."""
    dynamics = GridWorld(height=1, width=2, max_objects=1, kinds=1)
    thing = Object(1.0, 1.0, 0.0, cell=(0, 1), walk=1.0)
    task = make_task(dynamics, mazes.room(1, 2), (thing,), horizon=1, start=(0, 0))
    found = expected_returns(finite_mdp(environments.Environment("two cells", dynamics, task)))
    assert found.optimal == pytest.approx(1.0)  # By walking to it.
    assert found.random == pytest.approx(1 / 5 + 4 / 5 * 1 / 4)


def test_what_has_no_description_or_is_too_large_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"catch/5x5/recall has no description .* DeepSea"):
        finite_mdp(environments.make("catch/5x5/recall"))
    with pytest.raises(ValueError, match="113,030,440 states; expected at most 300,000"):
        finite_mdp(environments.make("grid_heldout/large_rewards_random"))
    monkeypatch.setattr(exact_returns, "MAX_STATES", 5)
    with pytest.raises(ValueError, match="deep_sea/4 has more than 5 states"):
        finite_mdp(environments.make("deep_sea/4"))
