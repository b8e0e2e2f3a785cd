import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments.suites.small_tasks import Catch
from tests.environments.streams import dynamics_of


def test_following_the_ball_catches_it_every_time():
    catch = Catch(rows=10, columns=5)
    for seed in range(20):
        state, timestep = catch.reset((), jax.random.key(seed))
        rewards = []
        while not timestep.last():
            action = jnp.sign(state.ball_column - state.paddle_column) + 1
            state, timestep = catch.step((), state, action, jax.random.key(0))
            rewards.append(float(timestep.reward))
        assert rewards == [0.0] * 8 + [1.0]
        assert timestep.discount == 0.0


def test_frames_of_a_miss():
    catch = Catch(rows=4, columns=3)
    states = (catch.reset((), jax.random.key(seed))[0] for seed in range(100))
    state = next(s for s in states if s.ball_column == 2)
    frames = []
    for action in (0, 0, 1):
        state, timestep = catch.step((), state, jnp.int32(action), jax.random.key(0))
        frames.append(timestep)
    boards = [frame.observation.astype(int).tolist() for frame in frames]
    assert boards == [
        [[0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1]],
    ]
    assert [float(frame.reward) for frame in frames] == [0.0, 0.0, -1.0]
    assert [bool(frame.last()) for frame in frames] == [False, False, True]


def test_the_ball_starts_at_every_column_and_the_paddle_in_the_middle():
    catch = Catch(rows=5, columns=5)
    keys = jax.random.split(jax.random.key(0), 1000)
    _, timestep = jax.vmap(lambda key: catch.reset((), key))(keys)
    frequencies = np.asarray(timestep.observation[:, 0].mean(0))
    np.testing.assert_allclose(frequencies, 0.2, atol=0.05)
    assert (timestep.observation[:, -1] == jnp.array([0.0, 0.0, 1.0, 0.0, 0.0])).all()


def test_recall_needs_memory():
    """The ball is seen at the top and where it lands, and no memoryless policy catches most."""
    catch = Catch(rows=5, columns=5, recall=True)
    policies = jnp.array(list(itertools.product(range(3), repeat=5)))  # By the paddle's column.

    def episode(policy, ball, first):
        state, timestep = catch.reset((), jax.random.key(0))
        state = dataclasses.replace(state, ball_column=ball)
        seen = []
        for t in range(4):
            action = first if t == 0 else policy[state.paddle_column]
            state, timestep = catch.step((), state, action, jax.random.key(0))
            seen.append(timestep.observation[:-1].sum() + timestep.observation[-1].sum())
        return timestep.reward, jnp.array(seen)

    balls, firsts = jnp.arange(5), jnp.arange(3)
    over_balls = jax.vmap(jax.vmap(episode, (None, None, 0)), (None, 0, None))
    rewards, seen = jax.jit(jax.vmap(over_balls, (0, None, None)))(policies, balls, firsts)
    assert (seen[..., :3] == 1).all()  # The paddle alone.
    assert (seen[..., 3] == jnp.where(rewards > 0, 1, 2)).all()
    best = rewards.max(axis=2).mean(axis=1).max()  # The first move knows the ball.
    np.testing.assert_allclose(best, 0.2, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "shape"),
    [("", (10, 5)), ("/5x5", (5, 5)), ("/8x12", (8, 12)), ("/6x7/recall", (6, 7))],
)
def test_sizes_by_name(size, shape):
    assert dynamics_of(environments.make(f"catch{size}")).observation_spec().shape == shape


@pytest.mark.parametrize("size", ["rows=0", "0x5", "1x5", "5x0", "5", "axb", "5x5x5", "5x5/x"])
def test_malformed_sizes_are_refused(size):
    with pytest.raises(ValueError, match=rf"'{size}'; expected <rows>x<columns>"):
        environments.make(f"catch/{size}")
