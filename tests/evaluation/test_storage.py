"""Where results are kept: in a folder of its own for each run, whatever names say."""

import dataclasses
import itertools
import re

import pytest

import environments
from evaluation import folder_names, storage
from evaluation.contenders import make_contenders
from evaluation.evaluate import Execution, check, make_runs, resolve
from tests.evaluation import common

ORDINARY = {
    "catch/5x5": "catch_5x5",
    "deep_sea/10": "deep_sea_10",
    "gymnax/CartPole-v1": "gymnax_CartPole-v1",
    "grid_heldout/catch_8x8": "grid_heldout_catch_8x8",
    "sokoban/file:levels.txt": "sokoban_file:levels.txt",
    "control_proprio/cartpole_swingup,2": "control_proprio_cartpole_swingup,2",
    "lamps": "lamps",
}
ODD = [
    "sokoban/file:x/q/r.txt",
    "sokoban/file:x/q_r.txt",
    "sokoban/file:x_q/r.txt",
    "sokoban/file:x%2Fq/r.txt",
    "sokoban/file:x/q/r.txt/",
    "sokoban/file:../../x",
    "sokoban/file:/x",
    "sokoban/file:\x1b[2J",
    "sokoban/file:\n",
    "sokoban/file:\0",
    "sokoban/file:\udcff",
    "sokoban/file:\N{SNOWMAN}",
    'sokoban/file:a?*|<>\\"',
    "sokoban/file:" + "a" * 250,
    "sokoban/file:" + "a" * 251,
    "sokoban/file:" + "/" * 100,
    "sokoban/file:" + "/" * 101,
    ".",
    "..",
    "...",
    "",
]


@pytest.mark.parametrize("name", ORDINARY)
def test_folders_of_ordinary_tasks_are_readable(name):
    assert folder_names.of_task(name) == ORDINARY[name]


@pytest.mark.parametrize(
    "name",
    [
        *("random", "actor_critic@0.01", "dreamer_12m", "tiny, width x0.25", "grid57 (runs)"),
        *("a.b-c", "grid57, adam, rate 0.0003, decay 0, norm any", "grid57, y and z hidden"),
    ],
)
def test_folders_of_ordinary_contenders_have_their_names(name):
    assert folder_names.of_contender(name) == name


@pytest.mark.parametrize("folder_of", [folder_names.of_task, folder_names.of_contender])
def test_folders_are_safe_and_each_name_has_its_own(folder_of, tmp_path):
    names = [*ORDINARY, *ODD]
    folders = [folder_of(name) for name in names]
    assert len(set(folders)) == len(names)
    for folder in folders:
        assert re.fullmatch(r"[ !#$%&'()+,:;=@\[\]^{}~\w.-]{1,200}", folder, re.ASCII)
        assert folder.strip(".")
        (tmp_path / folder).mkdir()
    assert len(list(tmp_path.iterdir())) == len(names)


def test_tasks_never_share_a_result(tmp_path):
    paths = [storage.run_path(tmp_path, "random", task, 0) for task in (*ORDINARY, *ODD)]
    for one, other in itertools.combinations(paths, 2):
        assert one != other
        assert one not in other.parents
    for path in paths:
        assert path.resolve().parents[2] == tmp_path / "runs"


def test_folder_of_older_code_is_read(tmp_path):
    old = tmp_path / "runs" / "règle" / "sokoban_file:x_q_r.txt"
    task = "sokoban/file:x/q/r.txt"
    new = storage.run_path(tmp_path, "règle", task, 0)
    old.mkdir(parents=True)
    assert storage.run_path(tmp_path, "règle", task, 0) == old / "seed_0"
    new.mkdir(parents=True)
    assert storage.run_path(tmp_path, "règle", task, 0) == new
    # Names that would lead elsewhere are none of older code's folders.
    assert storage.run_path(tmp_path, "..", "..", 0).resolve().parents[2] == tmp_path / "runs"
    assert storage.run_path(tmp_path, "", "", 0).resolve().parents[2] == tmp_path / "runs"


def tasks_named(*names: str) -> list[environments.Environment]:
    (task,) = resolve(["catch/5x5"])
    return [environments.Environment(name, task.dynamics) for name in names]


def test_tasks_of_one_folder_are_refused():
    tasks = tasks_named("a/b_c", "a_b/c")
    with pytest.raises(ValueError, match="'a/b_c' and on 'a_b/c' would be in one folder, 'a_b_c'"):
        check(tasks, [], common.CONFIG)


def test_folder_of_older_code_that_two_tasks_share_is_refused(tmp_path):
    """Nobody knows whose results these are."""
    tasks = tasks_named("sokoban/file:x/q/r.txt", "sokoban/file:x/q_r.txt")
    config = dataclasses.replace(common.CONFIG, baselines=())
    contenders = make_contenders([], config)
    (tmp_path / "runs" / "random" / "sokoban_file:x_q_r.txt").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"random on '.*q/r.txt' and on '.*q_r.txt' would be in"):
        make_runs(tasks, contenders, config, tmp_path, {}, Execution())
