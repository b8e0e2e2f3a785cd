import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments.suites.pixels import SIDE, draw
from tests.environments.streams import dynamics_of


def test_a_board_is_drawn_in_grey():
    task = environments.make("pixels/catch/8x8")
    dynamics = dynamics_of(task)
    state, timestep = dynamics.reset(task.params, jax.random.key(0))
    image = np.asarray(timestep.observation)
    assert image.shape == (SIDE, SIDE, 3)
    assert image.dtype == np.uint8
    squares = image.reshape(8, 8, 8, 8, 3)
    board = np.zeros((8, 8))
    board[0, state.ball_column] = board[7, state.paddle_column] = 255
    expected = np.broadcast_to(board[:, None, :, None, None], squares.shape)
    np.testing.assert_array_equal(squares, expected)


def test_it_is_otherwise_the_same_environment():
    task, plain = environments.make("pixels/catch/5x5"), environments.make("catch/5x5")
    states = []
    for each in (task, plain):
        dynamics = dynamics_of(each)
        state, _ = dynamics.reset(each.params, jax.random.key(3))
        for action in (0, 2, 2, 1):
            state, timestep = dynamics.step(
                each.params, state, jnp.int32(action), jax.random.key(0)
            )
        states.append((state, timestep._replace(observation=None)))
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert dynamics_of(task).action_spec() == dynamics_of(plain).action_spec()


def test_numbers_are_drawn_between_the_bounds_of_their_spec():
    task = environments.make("pixels/diagnostic/value_of_observation")
    seen = set()
    for seed in range(8):
        _, timestep = dynamics_of(task).reset(jnp.asarray(task.params), jax.random.key(seed))
        seen |= set(np.unique(timestep.observation).tolist())
    assert seen == {0, 255}


def test_later_planes_cover_earlier_ones():
    planes = jnp.zeros((2, 2, 5)).at[0, 0, :2].set(1.0).at[1, 1, 0].set(1.0)
    image = np.asarray(draw(planes))
    colours = {tuple(image[row, column]) for row, column in ((0, 0), (63, 63), (0, 63))}
    assert len(colours) == 3
    only_second = np.asarray(draw(planes.at[:, :, 0].set(0.0)))
    np.testing.assert_array_equal(image[0, 0], only_second[0, 0])


def test_sides_that_do_not_divide_the_image():
    image = np.asarray(draw(jnp.eye(5)))
    np.testing.assert_array_equal(image[0, 0], [255, 255, 255])
    np.testing.assert_array_equal(image[-1, -1], [255, 255, 255])
    np.testing.assert_array_equal(image[0, -1], [0, 0, 0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sokoban/none", "no environment 'sokoban/none'"),
        ("bsuite/catch/0", "outside JAX"),
        ("craftax_classic/symbolic", r"shape \(1345,\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        environments.make(f"pixels/{name}")
