import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from environments.suites.grid_worlds import GridWorld, Object, make_task, mazes

STAY, UP, RIGHT, DOWN, LEFT = range(5)
AGENT, WALLS, FIRST_KIND = range(3)
WORLD = GridWorld(height=3, width=4, max_objects=3, kinds=2)
DOORS = GridWorld(height=3, width=4, max_objects=3, kinds=2, doors=True)


@functools.cache
def compiled(dynamics):
    return jax.jit(dynamics.reset), jax.jit(dynamics.step)


def play(dynamics, task, actions, seed=0):
    """All states and time steps of an episode, from its first."""
    reset, step = compiled(dynamics)
    state, timestep = reset(task, jax.random.key(seed))
    states, timesteps = [state], [timestep]
    for i, action in enumerate(actions):
        key = jax.random.fold_in(jax.random.key(seed + 1), i)
        state, timestep = step(task, state, jnp.int32(action), key)
        states.append(state)
        timesteps.append(timestep)
    return states, timesteps


@functools.cache
def compiled_simulation(dynamics, length):
    def one(task, actions, key):
        reset_key, key = jax.random.split(key)
        state, first = dynamics.reset(task, reset_key)

        def step(state, xs):
            action, key = xs
            return dynamics.step(task, state, action, key)

        _, rest = jax.lax.scan(step, state, (actions, jax.random.split(key, length)))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)

    return jax.jit(jax.vmap(one, in_axes=(None, None, 0)))


def simulate(dynamics, task, actions, length=20):
    """The time steps of 2000 episodes of these actions, `[2000, T + 1, ...]`."""
    padded = jnp.array(actions + [STAY] * (length - len(actions)), jnp.int32)
    keys = jax.random.split(jax.random.key(0), 2000)
    timesteps = compiled_simulation(dynamics, length)(task, padded, keys)
    return jax.tree.map(lambda x: np.asarray(x)[:, : len(actions) + 1], timesteps)


def where(plane):
    return [tuple(cell) for cell in np.argwhere(np.asarray(plane)).tolist()]


def test_walls_borders_and_padding_hold_the_agent():
    maze = mazes.parse(".#.\n...")
    task = make_task(WORLD, maze, [], horizon=100, start=(0, 0))
    actions = [RIGHT, UP, LEFT, DOWN, DOWN, RIGHT, UP, RIGHT, RIGHT, UP, STAY]
    states, timesteps = play(WORLD, task, actions)
    cells = [divmod(int(state.agent), 4) for state in states]
    assert cells == [(0, 0)] * 4 + [(1, 0)] * 2 + [(1, 1)] * 2 + [(1, 2)] * 2 + [(0, 2)] * 2
    padded = np.array([[0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]])
    for cell, timestep in zip(cells, timesteps, strict=True):
        assert where(timestep.observation[..., AGENT]) == [cell]
        np.testing.assert_array_equal(timestep.observation[..., WALLS], padded)


def test_king_moves_go_to_all_neighbours():
    world = GridWorld(height=3, width=3, max_objects=1, kinds=1, moves="king")
    task = make_task(world, mazes.room(3, 3), [], horizon=9, start=(1, 1))
    reached = {divmod(int(play(world, task, [a])[0][1].agent), 3) for a in range(9)}
    assert world.action_spec().num_values == 9
    assert reached == {(r, c) for r in range(3) for c in range(3)}


def test_touching_rewards_once_removes_and_terminates():
    task = make_task(
        WORLD,
        mazes.room(3, 4),
        [Object(0.5, 0.0, 0.0, 0, cell=(0, 1)), Object(-2.0, 1.0, 0.0, 1, cell=(0, 3))],
        horizon=100,
        start=(0, 0),
        step_reward=-0.25,
    )
    _, timesteps = play(WORLD, task, [RIGHT, LEFT, RIGHT, RIGHT, RIGHT])
    assert [float(t.reward) for t in timesteps] == [0.0, 0.25, -0.25, -0.25, -0.25, -2.25]
    assert [int(t.step_type) for t in timesteps] == [0, 1, 1, 1, 1, 2]
    assert [float(t.discount) for t in timesteps] == [1.0] * 5 + [0.0]
    assert where(timesteps[0].observation[..., FIRST_KIND]) == [(0, 1)]
    assert where(timesteps[0].observation[..., FIRST_KIND + 1]) == [(0, 3)]
    assert all(where(t.observation[..., FIRST_KIND]) == [] for t in timesteps[1:])


def test_the_horizon_cuts_without_terminating():
    task = make_task(WORLD, mazes.room(3, 4), [], horizon=3, start=(0, 0))
    _, timesteps = play(WORLD, task, [RIGHT] * 3)
    assert [bool(t.last()) for t in timesteps] == [False, False, False, True]
    assert [float(t.discount) for t in timesteps] == [1.0] * 4
    assert where(timesteps[-1].observation[..., AGENT]) == [(0, 3)]


def test_terminating_at_the_horizon_is_terminating():
    goal = Object(1.0, 1.0, cell=(0, 1))
    task = make_task(WORLD, mazes.room(3, 4), [goal], horizon=1, start=(0, 0))
    _, timesteps = play(WORLD, task, [RIGHT])
    assert timesteps[-1].last()
    assert timesteps[-1].discount == 0.0


def test_contact_ends_the_episode_with_its_probability():
    things = [Object(1.0, 0.3, cell=(0, 1))]
    task = make_task(WORLD, mazes.room(3, 4), things, horizon=9, start=(0, 0))
    timesteps = simulate(WORLD, task, [RIGHT])
    assert np.mean(timesteps.discount[:, 1] == 0.0) == pytest.approx(0.3, abs=0.04)


def test_fixed_objects_come_back_to_their_cell_with_their_probability():
    things = [Object(1.0, 0.0, 0.25, cell=(0, 1))]
    task = make_task(WORLD, mazes.room(3, 4), things, horizon=99, start=(0, 0))
    timesteps = simulate(WORLD, task, [RIGHT, LEFT, STAY])
    there = np.asarray(timesteps.observation[:, :, 0, 1, FIRST_KIND])
    assert there.sum() == np.asarray(timesteps.observation[..., FIRST_KIND]).sum()
    assert there[:, 0].all()
    assert not there[:, 1].any()
    # Absent during the step to (0, 0) and the one after it: two chances.
    assert there[:, 2].mean() == pytest.approx(0.25, abs=0.04)
    assert there[:, 3].mean() == pytest.approx(1 - 0.75**2, abs=0.04)


def test_nothing_comes_back_under_the_agent():
    things = [Object(1.0, 0.0, 1.0, cell=(0, 1))]
    task = make_task(WORLD, mazes.room(3, 4), things, horizon=99, start=(0, 0))
    _, timesteps = play(WORLD, task, [RIGHT, STAY, STAY, LEFT, RIGHT])
    assert [float(t.reward) for t in timesteps] == [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_random_positions_are_uniform_distinct_and_free():
    maze = mazes.parse("..#\n...")
    things = [Object(1.0, kind=0), Object(-1.0, kind=1, cell=(1, 2)), Object(1.0, kind=1)]
    task = make_task(WORLD, maze, things, horizon=9)
    observation = np.asarray(simulate(WORLD, task, []).observation[:, 0])
    agent, first, second = (observation[..., i] for i in (AGENT, FIRST_KIND, FIRST_KIND + 1))
    # Four cells are free: for the agent, the first object, and the last one beside the fixed.
    uniform = np.array([[0.25, 0.25, 0, 0], [0.25, 0.25, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(agent.mean(0), uniform, atol=0.04)
    np.testing.assert_allclose(first.mean(0), uniform, atol=0.04)
    fixed = np.zeros_like(uniform)
    fixed[1, 2] = 1.0
    np.testing.assert_allclose(second.mean(0), uniform + fixed, atol=0.04)
    assert (agent + first + second + observation[..., WALLS]).max() == 1.0


def test_fixed_positions_are_those_of_the_task_in_every_episode():
    things = [Object(1.0, cell=(2, 3)), Object(-1.0, kind=1, cell=(0, 2))]
    task = make_task(WORLD, mazes.room(3, 4), things, horizon=9, start=(1, 1))
    observation = np.asarray(simulate(WORLD, task, []).observation[:, 0])
    assert (observation == observation[0]).all()


def test_random_objects_come_back_anywhere_that_is_free():
    task = make_task(WORLD, mazes.room(1, 4), [Object(1.0, 0.0, 1.0)], horizon=99, start=(0, 0))
    timesteps = simulate(WORLD, task, [RIGHT, RIGHT, RIGHT, LEFT, LEFT])
    observation = np.asarray(timesteps.observation)
    came = (observation[:, :-1, ..., FIRST_KIND].sum((2, 3)) == 0) & (
        observation[:, 1:, ..., FIRST_KIND].sum((2, 3)) == 1
    )
    cells = observation[:, 1:, 0, :, FIRST_KIND][came]
    assert set(cells.argmax(-1)) == {1, 2, 3}  # the start is not a spawn cell
    assert (observation[..., AGENT] + observation[..., FIRST_KIND]).max() == 1.0


def test_doors_need_the_key():
    maze = mazes.parse("...\n#.#\n...")
    task = make_task(
        DOORS,
        maze,
        [Object(0.1, key=True, cell=(0, 2)), Object(1.0, 1.0, kind=1, cell=(2, 1))],
        horizon=99,
        start=(0, 1),
        doors=[(1, 1)],
    )
    states, timesteps = play(DOORS, task, [DOWN, RIGHT, LEFT, DOWN, DOWN])
    assert [divmod(int(s.agent), 4) for s in states] == [
        (0, 1), (0, 1), (0, 2), (0, 1), (1, 1), (2, 1),
    ]  # fmt: skip
    key_held, doors = 4, 5
    assert [t.observation[..., key_held].mean() for t in timesteps] == [0, 0, 1, 1, 1, 1]
    assert where(timesteps[0].observation[..., doors]) == [(1, 1)]
    assert timesteps[-1].last()
    assert timesteps[-1].discount == 0.0


def test_hazards_walk_and_touch_the_agent():
    things = [Object(-1.0, 1.0, 0.0, cell=(0, 1), walk=1.0)]
    task = make_task(WORLD, mazes.room(1, 2), things, horizon=99, start=(0, 0))
    timesteps = simulate(WORLD, task, [STAY])
    hit = np.asarray(timesteps.reward[:, 1] == -1.0)
    # Of its four moves one leads to the agent, the others out of the room.
    assert hit.mean() == pytest.approx(0.25, abs=0.04)
    np.testing.assert_array_equal(hit, timesteps.discount[:, 1] == 0.0)


def test_walking_objects_never_overlap_nor_enter_walls():
    things = [Object(1.0, kind=0, walk=1.0), Object(1.0, kind=1, walk=1.0)]
    task = make_task(WORLD, mazes.parse("..\n.#"), things, horizon=99)
    observation = np.asarray(simulate(WORLD, task, [STAY] * 20).observation)
    occupied = observation[..., WALLS:].sum(-1)
    assert occupied.max() == 1.0


def test_slipping_replaces_the_action_by_a_random_one():
    world = GridWorld(height=3, width=3, max_objects=1, kinds=1)
    task = make_task(world, mazes.room(3, 3), [], horizon=9, start=(1, 1), slip=0.5)
    after = np.asarray(simulate(world, task, [UP]).observation[:, 1, ..., AGENT]).mean(0)
    expected = np.array([[0, 0.6, 0], [0.1, 0.1, 0.1], [0, 0.1, 0]])
    np.testing.assert_allclose(after, expected, atol=0.04)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maze": mazes.room(4, 4)}, "4x4 does not fit in the canvas of 3x4"),
        ({"objects": [Object(1.0)] * 4}, "Found 4 objects, expected at most 3"),
        ({"objects": [Object(1.0, kind=2)]}, "kind below 2, found 2"),
        ({"objects": [Object(1.0, 1.5)]}, "termination is 1.5; expected 0 to 1"),
        ({"objects": [Object(1.0, cell=(0, 0))]}, r"for the start, found \(0, 0\)"),
        ({"objects": [Object(1.0, cell=(5, 0))]}, r"for an object, found \(5, 0\)"),
        ({"doors": [(1, 1)]}, "Keys and doors need dynamics with doors=True"),
        ({"horizon": 0}, "horizon is 0; expected at least 1"),
        ({"maze": mazes.room(1, 2), "objects": [Object(1.0)] * 2}, "more than 2 cells"),
    ],
)
def test_impossible_tasks_are_refused(settings, message):
    arguments = {"maze": mazes.room(3, 4), "objects": [], "horizon": 9, "start": (0, 0)}
    with pytest.raises(ValueError, match=message):
        make_task(WORLD, **(arguments | settings))


def test_unknown_moves_are_refused():
    with pytest.raises(ValueError, match=r"one of \['king', 'orthogonal'\], found 'queen'"):
        GridWorld(height=3, width=3, max_objects=1, kinds=1, moves="queen")
