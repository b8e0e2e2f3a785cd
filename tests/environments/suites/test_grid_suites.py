import hashlib

import jax
import numpy as np
import pytest

import environments
from environments.suites import grid57
from tests.environments.streams import dynamics_of
from tests.environments.suites.simulation import random_and_greedy_returns
from tests.environments.suites.test_mazes import connected

GRID57_HASH = "9d4b382d78036416"


def fingerprint(suite) -> str:
    digest = hashlib.sha256()
    for environment in suite:
        digest.update(environment.name.encode())
        for leaf in jax.tree.leaves(environment.params):
            digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def grid_world_tasks(name):
    return [e for e in environments.suite(name) if hasattr(e.params, "walls")]


def test_grid57_is_57_tasks_in_one_program():
    suite = environments.suite("grid57")
    assert len({environment.name for environment in suite}) == 57
    (group,) = environments.group_by_dynamics(suite)
    assert group.dynamics == grid57.DYNAMICS
    assert group.names == tuple(environment.name for environment in suite)
    assert group.task_params.walls.shape == (57, 81)


def test_grid57_never_changes():
    """Whatever the process and its hashes of strings: the fingerprint is of another one."""
    assert fingerprint(environments.suite("grid57")) == GRID57_HASH


def test_grid57_varies():
    suite = environments.suite("grid57")
    variants = {environment.name.split("_", 1)[1] for environment in suite}
    assert len(variants) == 10
    assert len({int(e.params.horizon) for e in suite}) >= 8
    assert len({np.asarray(e.params.walls).tobytes() for e in suite}) >= 35
    assert len({fingerprint([e])[:16] for e in suite}) == 57


def test_generated_tasks_are_drawn_from_their_numbers():
    suite = environments.suite("grid_generated")
    assert len(suite) == len({environment.name for environment in suite}) == 256
    assert fingerprint(suite) == "b7546fe17e16701e"
    (group,) = environments.group_by_dynamics(suite)
    walls = np.asarray(group.task_params.task.walls)
    assert len(np.unique(walls, axis=0)) >= 150
    noise = np.asarray(group.task_params.noise)
    for variant in range(10):
        assert 0.3 <= (noise[variant::10] > 0.0).mean() <= 0.6
    goods = np.asarray(group.task_params.task.reward).max(axis=1)
    assert goods.min() < 0.5
    assert goods.max() > 1.5
    assert noise.max() > 0.8


@pytest.mark.parametrize("name", ["grid57", "grid_heldout", "lpg"])
def test_every_free_cell_can_be_reached(name):
    for environment in grid_world_tasks(name):
        dynamics, task = dynamics_of(environment), environment.params
        maze = np.asarray(task.walls).reshape(dynamics.height, dynamics.width)
        assert connected(maze), environment.name


def test_held_out_tasks_are_disjoint_from_discovery_tasks():
    def size(environment):
        dynamics, walls = dynamics_of(environment), np.asarray(environment.params.walls)
        rows, columns = np.nonzero(~walls.reshape(dynamics.height, dynamics.width))
        return int(rows.max()) + 1, int(columns.max()) + 1

    def new_mechanic(task):
        return bool(task.doors.any() | task.walk.any() | (task.slip > 0))

    discovery = {size(environment) for environment in grid_world_tasks("grid57")}
    assert not any(new_mechanic(e.params) for e in grid_world_tasks("grid57"))
    held_out = grid_world_tasks("grid_heldout")
    plain = [e for e in held_out if not new_mechanic(e.params)]
    assert len(plain) >= 10
    assert not discovery & {size(environment) for environment in plain}


def test_held_out_suite_is_few_programs():
    suite = environments.suite("grid_heldout")
    assert len({environment.name for environment in suite}) == len(suite) >= 16
    assert len(environments.group_by_dynamics(suite)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid57", "grid_heldout"])
def test_no_task_is_degenerate(name):
    """Walking straight to the goods beats chance by far, in every grid-world."""
    group = environments.group_by_dynamics(grid_world_tasks(name))[0]
    chance, greedy = random_and_greedy_returns(group, steps=600)
    for task_name, low, high in zip(group.names, chance, greedy, strict=True):
        if task_name == "grid_heldout/near_or_far":  # where the nearest is not the best
            assert high == pytest.approx(0.2, rel=1e-4)
        else:
            assert high > low + 0.5 * max(abs(low), abs(high)), task_name


def test_lpg_tasks_are_the_papers():
    sizes = {}
    for environment in environments.suite("lpg"):
        task = environment.params
        things = [
            tuple(round(float(x), 4) for x in row)
            for row, used in zip(
                zip(task.reward, task.termination, task.respawn, strict=True),
                task.used,
                strict=True,
            )
            if used
        ]
        sizes[environment.name] = (int((~task.walls).sum()), int(task.horizon), sorted(things))
    assert len(sizes) == 10
    assert sizes["lpg/tabular_longer_horizon"] == (
        63,
        2000,
        sorted([(1.0, 0.1, 0.01)] * 2 + [(-1.0, 0.8, 1.0)] * 5),
    )
    assert sizes["lpg/random_small_sparse"] == (
        35,
        50,
        sorted([(1.0, 1.0, 1.0)] + [(-1.0, 1.0, 1.0)] * 2),
    )
    assert dynamics_of(environments.make("lpg/tabular_dense")).action_spec().num_values == 9
