import collections
import dataclasses
import functools
import hashlib
import heapq
import itertools
import zlib
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import EnvironmentNameError, registry, stream
from environments.suites import sokoban
from environments.suites.sokoban import Sokoban, generator
from environments.suites.sokoban.levels import BOX, PLAYER, TARGET, WALL
from tests.environments.streams import dynamics_of
from tests.environments.suites import boxoban

UP, RIGHT, DOWN, LEFT = range(4)
STEPS = (-10, 1, 10, -1)
KEY = jax.random.key(0)
SOKOBAN = Sokoban(capacity=1)
step = jax.jit(SOKOBAN.step)


def padded(drawing):
    """Rows of a level, with walls to the right of and below what is drawn."""
    rows = [row.ljust(10, "#") for row in drawing]
    return rows + ["#" * 10] * (10 - len(rows))


def read(tmp_path, *drawings):
    """Drawings by way of a file, as the module reads no others."""
    path = tmp_path / "levels.txt"
    path.write_text("\n".join("\n".join(["; 0", *padded(rows), ""]) for rows in drawings))
    return boxoban.read(path)


def rows_of(level):
    return boxoban.to_text(level[None]).split("\n")[1:11]


def play(level, actions):
    """The time steps from the first on, and the results."""
    task = sokoban.make_task(SOKOBAN, level[None])
    state, timestep = SOKOBAN.reset(task, KEY)
    timesteps = [timestep]
    for action in actions:
        state, timestep = step(task, state, jnp.int32(action), KEY)
        timesteps.append(timestep)
    results = {name: float(value) for name, value in SOKOBAN.results(task, state).items()}
    return timesteps, results


def drawn(timestep):
    """The rows that an observation shows."""
    walls, targets, boxes, player = np.moveaxis(np.asarray(timestep.observation, np.uint8), -1, 0)
    return rows_of(WALL * walls + TARGET * targets + BOX * boxes + PLAYER * player)


@pytest.mark.parametrize(
    ("before", "action", "after"),
    [
        (["#####", "#   #", "# @ #", "#$. #", "#####"], UP, ["#####", "# @ #", "#   #", "#$. #"]),
        (["#####", "# @ #", "#   #", "#$. #", "#####"], DOWN, ["#####", "#   #", "# @ #", "#$. #"]),
        (["####", "#@ #", "#$.#", "####"], RIGHT, ["####", "# @#", "#$.#"]),
        (["####", "#@ #", "#$.#", "####"], UP, ["####", "#@ #", "#$.#"]),
        (["####", "#@ #", "#$.#", "####"], LEFT, ["####", "#@ #", "#$.#"]),
        (["####", "#  #", "#.@#", "#$ #", "####"], LEFT, ["####", "#  #", "#+ #", "#$ #"]),
        # A box is pushed, on a target and off one, but neither into a wall nor into a box.
        (["#######", "#@$  .#", "#######"], RIGHT, ["#######", "# @$ .#"]),
        (["#######", "#. $@ #", "#######"], LEFT, ["#######", "#.$@  #"]),
        (["#####", "#@$.#", "#.$ #", "#####"], RIGHT, ["#####", "# @*#", "#.$ #"]),
        (["#####", "#@* #", "#.$ #", "#####"], RIGHT, ["#####", "# +$#", "#.$ #"]),
        (["####", "#@$#", "#. #", "####"], RIGHT, ["####", "#@$#", "#. #"]),
        (["#######", "#@$$..#", "#######"], RIGHT, ["#######", "#@$$..#"]),
        (["#######", "#@$*. #", "#######"], RIGHT, ["#######", "#@$*. #"]),
    ],
)
def test_moves_and_pushes(tmp_path, before, action, after):
    (level,) = read(tmp_path, before)
    (start, end), _ = play(level, [action])
    assert drawn(start) == padded(before)
    assert drawn(end) == padded(after)


@pytest.mark.parametrize(
    ("drawing", "actions", "rewards"),
    [
        (["######", "#@  $#", "#   .#", "######"], [RIGHT, UP, LEFT], [-0.1, -0.1, -0.1]),
        (["######", "#@$. #", "#.$  #", "######"], [RIGHT, RIGHT], [0.9, -1.1]),
        (["######", "#@$..#", "#   $#", "######"], [RIGHT, RIGHT], [0.9, -0.1]),
        (["######", "#@$ .#", "######"], [RIGHT, RIGHT], [-0.1, 10.9]),
    ],
)
def test_rewards(tmp_path, drawing, actions, rewards):
    (level,) = read(tmp_path, drawing)
    timesteps, _ = play(level, actions)
    np.testing.assert_allclose([t.reward for t in timesteps[1:]], rewards, rtol=1e-6)


def test_an_episode_terminates_when_all_boxes_are_on_targets(tmp_path):
    (level,) = read(tmp_path, ["######", "#@$. #", "# $ .#", "######"])
    actions = [RIGHT, LEFT, DOWN, RIGHT, RIGHT]
    timesteps, results = play(level, actions)
    assert [bool(t.last()) for t in timesteps] == [False] * 5 + [True]
    assert [float(t.discount) for t in timesteps] == [1.0] * 5 + [0.0]
    assert results == {"solved": 1.0, "boxes_on_target": 2.0}
    _, results = play(level, actions[:-1])
    assert results == {"solved": 0.0, "boxes_on_target": 1.0}


def test_episodes_are_cut_after_120_steps(tmp_path):
    (level,) = read(tmp_path, ["#####", "#@$.#", "#####"])
    timesteps, results = play(level, [UP] * 120)
    assert [t.step_type for t in timesteps] == [dm_env.StepType.FIRST] + [
        dm_env.StepType.MID
    ] * 119 + [dm_env.StepType.LAST]
    assert all(t.discount == 1.0 for t in timesteps)
    assert results == {"solved": 0.0, "boxes_on_target": 0.0}
    *_, last = play(level, [UP] * 119 + [RIGHT])[0]
    assert last.last()
    assert last.discount == 0.0


def test_every_level_of_a_pool_is_drawn_and_its_padding_never(tmp_path):
    drawings = [["######", "#@$" + " " * i + ".#", "######"] for i in range(3)]
    dynamics = Sokoban(capacity=8)
    task = sokoban.make_task(dynamics, read(tmp_path, *drawings))
    keys = jax.random.split(KEY, 300)
    _, timestep = jax.vmap(dynamics.reset, (None, 0))(task, keys)
    boards, counts = np.unique(timestep.observation, axis=0, return_counts=True)
    assert len(boards) == 3
    assert counts.min() > 70


# The levels that the generator makes.


@functools.cache
def generated(split, number=40):
    return generator.generate(split, number)


@pytest.mark.parametrize("split", generator.SPLITS)
def test_generated_levels_are_rooms_with_four_boxes_and_a_player(split):
    pool = generated(split)
    assert pool.shape == (40, 10, 10)
    for what, number in ((BOX, 4), (TARGET, 4), (PLAYER, 1)):
        assert (np.count_nonzero(pool & what, axis=(1, 2)) == number).all()
    border = np.ones((10, 10), bool)
    border[1:-1, 1:-1] = False
    assert (pool[:, border] == WALL).all()
    # Nothing stands in a wall, and nothing begins on a target.
    assert set(np.unique(pool)) == {0, WALL, TARGET, BOX, PLAYER}
    assert len(np.unique(pool & WALL, axis=0)) == 40


def test_generated_levels_can_be_solved():
    returns = []
    for level in generated("train"):
        solution = solve(rows_of(level))
        assert solution is not None
        task = sokoban.make_task(SOKOBAN, level[None])
        state, timestep = SOKOBAN.reset(task, KEY)
        state = dataclasses.replace(
            state, time=jnp.int32(-1000)
        )  # The solver minds pushes, not steps.
        total = 0.0
        for action in solution:
            assert not timestep.last()
            state, timestep = step(task, state, jnp.int32(action), KEY)
            total += float(timestep.reward)
        assert timestep.last()
        assert timestep.discount == 0.0
        np.testing.assert_allclose(total, 14.0 - 0.1 * len(solution), rtol=1e-3)
        returns.append(total)
    # Puzzles, if easy ones, which fit in an episode.
    assert 8.0 < np.mean(returns) < 12.0


def test_levels_depend_on_the_split_and_the_index_only():
    pools = {split: generated(split) for split in generator.SPLITS}
    for a, b in itertools.combinations(pools.values(), 2):
        assert not {level.tobytes() for level in a} & {level.tobytes() for level in b}
    np.testing.assert_array_equal(generator.generate("valid", 1000)[:40], pools["valid"])
    # They stay what they are: a change of levels would go unnoticed in scores.
    assert zlib.crc32(pools["train"].tobytes()) == 404170144


def solve(rows, weight=2):
    """Actions that solve a level: weighted A* over pushes; None if there are none.

    The estimate of the pushes to come is of each box alone, and of the best assignment of boxes
    to targets. A configuration with a box from where no target can be reached is dead.
    """
    cells = "".join(rows)
    walls = {i for i, c in enumerate(cells) if c == "#"}
    targets = frozenset(i for i, c in enumerate(cells) if c in ".*+")
    boxes = frozenset(i for i, c in enumerate(cells) if c in "$*")
    player = next(i for i, c in enumerate(cells) if c in "@+")
    pushes_to = [push_distances(walls, target) for target in targets]

    @functools.cache
    def estimate(boxes):
        distances = [[pushes.get(box, np.inf) for pushes in pushes_to] for box in boxes]
        return min(
            sum(row[i] for row, i in zip(distances, order, strict=True))
            for order in itertools.permutations(range(len(boxes)))
        )

    tie = itertools.count()
    queue: list[Any] = [(weight * estimate(boxes), next(tie), 0, boxes, player, ())]
    seen = set()
    while queue and len(seen) < 50_000:
        _, _, pushes, boxes, player, history = heapq.heappop(queue)
        if boxes == targets:
            actions = []
            while history:
                history, walk = history
                actions = walk + actions
            return actions
        came_from = walks(player, walls | boxes)
        configuration = boxes, min(came_from)
        if configuration in seen:
            continue
        seen.add(configuration)
        for box, (action, offset) in itertools.product(boxes, enumerate(STEPS)):
            to = box + offset
            if box - offset not in came_from or to in walls or to in boxes:
                continue
            pushed = boxes - {box} | {to}
            if estimate(pushed) < np.inf:
                walk, cell = [action], box - offset
                while came_from[cell]:
                    cell, before = came_from[cell]
                    walk.insert(0, before)
                priority = pushes + 1 + weight * estimate(pushed)
                heapq.heappush(
                    queue, (priority, next(tie), pushes + 1, pushed, box, (history, walk))
                )
    return None


def walks(start, closed):
    """From where, and by which action, each cell is reached."""
    came_from: dict[int, Any] = {start: None}
    queue = collections.deque([start])
    while queue:
        cell = queue.popleft()
        for action, offset in enumerate(STEPS):
            if cell + offset not in closed and cell + offset not in came_from:
                came_from[cell + offset] = (cell, action)
                queue.append(cell + offset)
    return came_from


def push_distances(walls, target):
    """Pushes that bring a box to the target where there is no other, by its cell."""
    pushes, queue = {target: 0}, collections.deque([target])
    while queue:
        cell = queue.popleft()
        for offset in STEPS:
            box, player = cell - offset, cell - 2 * offset
            if box not in walls and player not in walls and box not in pushes:
                pushes[box] = pushes[cell] + 1
                queue.append(box)
    return pushes


# Files.

FIRST = """; 0
##########
###    . #
## .   $.#
##    .$ #
#####    #
####   ###
##### $###
#####$ ###
#####@####
##########
"""
SECOND = FIRST.replace("; 0", "; 1").replace("###    . #", "###    * #").replace("@", "+")


def test_files_and_levels_are_the_same(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text(FIRST + "\n" + SECOND)
    assert boxoban.to_text(boxoban.read(path)) == FIRST + "\n" + SECOND
    path.write_text(boxoban.to_text(generated("test")))
    np.testing.assert_array_equal(boxoban.read(path), generated("test"))


def test_levels_of_a_file_are_an_environment(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_bytes(FIRST.replace("\n", "\r\n").encode())
    environment = environments.make(f"sokoban/file:{path}")
    assert environment.name == f"sokoban/file:{path}"
    assert environment.dynamics == Sokoban()
    _, timestep = dynamics_of(environment).reset(environment.params, KEY)
    assert drawn(timestep) == FIRST.split("\n")[1:11]


def test_levels_of_a_file_tell_which_they_are(tmp_path):
    path = tmp_path / "levels.txt"
    hashes = set()
    for content in (FIRST, FIRST + "\n", FIRST.replace("\n", "\r\n"), FIRST.replace("\n", "\r")):
        path.write_bytes(content.encode())
        environment = environments.make(f"sokoban/file:{path}")
        assert environment.sha256 == hashlib.sha256(content.encode()).hexdigest()
        assert environment.params.number == 1
        hashes.add(environment.sha256)
    assert len(hashes) == 4
    assert environments.make("sokoban/valid").sha256 is None


def test_a_file_may_have_more_levels_than_the_generated_pools(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text("\n".join([FIRST] * 10_001))
    environment = environments.make(f"sokoban/file:{path}")
    assert environment.params.levels.shape == (10_001, 10, 10)
    assert environment.dynamics == Sokoban(capacity=10_001)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FIRST, "", r": found no level, expected at least one\."),
        (FIRST, "\n\n", r": found no level"),
        ("; 0\n", "", r", line 1: found '#', expected ';'"),
        ("## .   $.#", "## .   x.#", r", level of line 1: row 3: found 'x', expected '#' ' '"),
        ("##    .$ #", "##    .$ é", r", level of line 1: row 4: found 'Ã', expected"),
        ("#####    #", "#####   #", r".* row 5: found a row of 9 char.*, expected 10\."),
        ("#####    #", "#####     #", r".* row 5: found a row of 11 char.*, expected 10"),
        ("#####    #\n", "", r".* found 9 rows, expected 10\."),
        ("#####    #\n", "\n", r".* found 4 rows, expected 10\."),
        ("#####    #\n", "#####    #\n" * 2, r".* found more than 10 rows"),
        ("#####    #", "##### @  #", r".* found 2 players, expected one\."),
        ("#####@####", "##### ####", r".* found 0 players, expected one\."),
        ("#####$ ###", "#####  ###", r".* found 3 boxes and 4 targets, expected"),
        ("#####    #", "#####     ", r".* found a gap in its border, expected '#'"),
        ("\n#####    #", "\n; 1", r".* found 4 rows, expected 10\."),
    ],
)
def test_malformed_files_are_refused(tmp_path, old, new, message):
    path = tmp_path / "levels.txt"
    assert old in FIRST
    path.write_text(FIRST.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"levels\.txt{message}"):
        environments.make(f"sokoban/file:{path}")


@pytest.mark.parametrize("row", ["# @    #", "# @  * #"])
def test_levels_with_nothing_to_do_are_refused(tmp_path, row):
    with pytest.raises(ValueError, match="line 1: found no box that is not on a target"):
        read(tmp_path, ["########", row, "########"])


def test_errors_are_placed_in_later_levels_too(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text(FIRST + "\n" + SECOND.replace("+", "?"))
    with pytest.raises(ValueError, match=r"level of line 13: row 9: found '\?'"):
        boxoban.read(path)


def test_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(EnvironmentNameError, match=r"nowhere\.txt.* cannot be read: .*No such"):
        environments.make(f"sokoban/file:{tmp_path / 'nowhere.txt'}")


@pytest.mark.parametrize("name", ["tran", "file", "train:1"])
def test_unknown_pools_are_refused(name):
    with pytest.raises(EnvironmentNameError, match=rf"'sokoban/{name}'.*'sokoban/file:PATH'"):
        environments.make(f"sokoban/{name}")


# The protocol.


@pytest.fixture(scope="module")
def environment():
    return environments.make("sokoban/valid")


def test_pools_share_their_dynamics(environment, tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text(FIRST)
    (group,) = registry.group_by_dynamics([environment, environments.make(f"sokoban/file:{path}")])
    assert hash(group.dynamics) == hash(Sokoban())
    assert group.task_params.number.tolist() == [1000, 1]
    keys = jax.random.split(KEY, 2)
    _, timestep = jax.vmap(dynamics_of(group).reset)(group.task_params, keys)
    assert timestep.observation.shape == (2, 10, 10, 4)
    assert sokoban.POOL_SIZES == {"train": 10_000, "valid": 1_000, "test": 1_000}


def test_rollouts_compile_once(environment):
    dynamics, task = dynamics_of(environment), environment.params
    traces = []

    @jax.jit
    def rollout(carry, key):
        traces.append(key)

        def step(carry, key):
            state, timestep = carry
            action = jax.random.randint(key, (), 0, 4)
            return stream(dynamics, task, state, timestep, action, key), timestep.step_type

        return jax.lax.scan(step, carry, jax.random.split(key, 121))

    carry = jax.jit(dynamics.reset)(task, KEY)
    for i in range(3):
        carry, step_types = rollout(carry, jax.random.key(i))
        assert step_types[0] == dm_env.StepType.FIRST
    assert len(traces) == 1
