"""Where results are kept: in a folder of its own for each run, whatever names say."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest

import environments
from evaluation import storage
from evaluation.evaluate import Experiment, check, tasks_of
from evaluation.results import Episodes
from tests.evaluation import common
from training.records import EpisodeSums, Records

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
    assert storage.task_folder(name) == ORDINARY[name]


@pytest.mark.parametrize(
    "name",
    [
        *("random", "actor_critic@0.01", "dreamer_12m", "tiny, width x0.25", "grid57 (runs)"),
        *("a.b-c", "grid57, adam, rate 0.0003, decay 0, norm any", "grid57, y and z hidden"),
    ],
)
def test_folders_of_ordinary_contenders_have_their_names(name):
    assert storage.contender_folder(name) == name


@pytest.mark.parametrize("folder_of", [storage.task_folder, storage.contender_folder])
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


def tasks_named(*names: str) -> list[environments.Environment]:
    (task,) = tasks_of(["catch/5x5"])
    return [environments.Environment(name, task.dynamics) for name in names]


def test_tasks_of_one_folder_are_refused(tmp_path):
    tasks = tasks_named("a/b_c", "a_b/c")
    with pytest.raises(ValueError, match="'a/b_c' and on 'a_b/c' would be in one folder, 'a_b_c'"):
        check(Experiment(tasks, common.CONFIG, tmp_path), [])


def test_a_result_that_is_not_finite_is_json_and_is_read_again(tmp_path):
    """Also as older versions wrote it, with bare NaN and Infinity."""
    run = storage.run_path(tmp_path, "random", "catch/5x5", 0)
    window = Episodes(np.array(2.0), np.array(np.inf))
    curve = Episodes(np.array([1.0, 2.0]), np.array([np.nan, 3.0]))
    made = dataclasses.replace(
        common.result(1.0), window=window, curve=curve, results={"a": np.nan}
    )
    storage.save(run, made)
    path = run / "result.json"
    values = json.loads(path.read_text(), parse_constant=lambda x: pytest.fail(f"{x} is no JSON"))
    old = {**values, "window": {"count": 2.0, "return_sum": np.inf}, "results": {"a": np.nan}}
    del old["crc32"]
    for text in (path.read_text(), json.dumps(old | {"crc32": storage.json_lines.crc32(old)})):
        path.write_text(text)
        found = storage.load(run)
        assert found is not None
        assert found.curve.mean_return[1] == 1.5
        assert np.isnan(found.curve.mean_return[0])
        assert np.all(np.isnan(np.array([found.window.mean_return, found.results["a"]], float)))
        assert found.window.is_not_finite


def test_returns_that_are_not_finite_are_null_in_the_records(tmp_path):
    records = Records(tmp_path)
    records.add_episodes([EpisodeSums(8, 1.0, np.nan, 4.0, {"won": np.inf})])
    line = (tmp_path / "episodes.jsonl").read_text()
    json.loads(line, parse_constant=lambda x: pytest.fail(f"{x} is no JSON"))
    [found] = records.episodes()
    assert np.isnan([found.return_sum, found.result_sums["won"]]).all()
    (tmp_path / "episodes.jsonl").write_text(line.replace("null", "NaN"))
    assert np.isnan(next(iter(records.episodes())).return_sum)
