"""Agents of finished runs: loaded, acting, filmed."""

import dataclasses
import json
import pathlib
import re
import shutil
from typing import Any

import dm_env
import jax
import numpy as np
import pytest
from PIL import Image

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco_common import plugins
from evaluation import films, playing
from evaluation.config import EvaluationConfig
from evaluation.evaluate import Experiment, tasks_of
from evaluation.loading import load_agent
from launch.support import evaluations
from tests.launch.common import evaluate_flags, outcomes

AGENT = RuleAgentConfig(
    network=NetworkConfig(torso=(8,), model=8, head=(8,), memory=6),
    frame_stack=3,
    num_environments=2,
    unroll_length=8,
    batch_size=2,
)
CONFIG = EvaluationConfig(
    agent=AGENT,
    seeds=1,
    budget=2048,
    baselines=("actor_critic",),
    num_points=4,
    resamples=20,
)
TASKS = ("gymnasium/CartPole-v1", "catch/5x5")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> pathlib.Path:
    """An evaluation of a rule whose file is gone, of an agent with settings, of a baseline."""
    folder = tmp_path_factory.mktemp("watched")
    sizes = disco.MetaNetworkSizes(prediction=6, trajectory=8, lifetime=8)
    rule = disco.DiscoveredRule.create(jax.random.key(0), sizes, num_bins=11, max_value=5.0)
    disco.save(rule, folder / "mine.npz")
    values = evaluate_flags(folder / "mine.npz", agent=["ppo/learning_rate=0.001"])
    evaluations.run_evaluation(values, Experiment(tasks_of(TASKS), CONFIG, folder / "runs"))
    (folder / "mine.npz").unlink()
    return folder / "runs"


def run_of(workdir, contender, task="catch_5x5") -> pathlib.Path:
    return workdir / "runs" / contender / task / "seed_0"


@pytest.mark.slow
@pytest.mark.parametrize("contender", ["mine", "actor_critic", "random"])
def test_a_loaded_agent_acts_as_the_trained_one(workdir, contender):
    """As an evaluation's actor does, frame stack and memory included."""
    agent = load_agent(run_of(workdir, contender, "gymnasium_CartPole-v1"))
    assert (agent.name, agent.task.name) == (contender, "gymnasium/CartPole-v1")
    steps, seed = 60, 3
    played = playing.play(agent.agent, agent.learner, agent.task, steps, 1, seed)
    # The key of the first half of the actor's environments.
    key = jax.random.fold_in(jax.random.key(seed), 0)
    memory = dataclasses.replace(agent.initial_memory(1), key=key)
    simulators = environments.start(agent.task, 1, seed, workers=1)
    timestep, actions = simulators.reset(), []
    for _ in range(steps):
        memory, action = agent.act(memory, timestep)
        actions.append(action)
        timestep = simulators.step(action)
    simulators.close()
    np.testing.assert_array_equal(np.stack(actions), played.action)
    assert played.last.any()


@pytest.mark.slow
def test_the_example_of_the_docstring(workdir):
    agent = load_agent(run_of(workdir, "ppo_learning_rate=0.001"))
    simulators = environments.start(agent.task, 1, seed=0)
    memory, timestep = agent.initial_memory(1), simulators.reset()
    steps = 0
    while not timestep.last():
        memory, action = agent.act(memory, timestep)
        timestep = simulators.step(action)
        steps += 1
    assert steps == 4  # An episode of catch/5x5.
    assert int(memory.step) == 4
    assert isinstance(timestep, dm_env.TimeStep)


@pytest.mark.slow
def test_folders_that_are_no_runs(workdir, tmp_path):
    with pytest.raises(FileNotFoundError, match="'nowhere' is not a folder"):
        load_agent("nowhere")
    with pytest.raises(ValueError, match="is not the folder of a run; expected"):
        load_agent(workdir)
    copy = tmp_path / "copy"
    shutil.copytree(workdir, copy)
    unknown = run_of(copy, "unknown")
    unknown.mkdir(parents=True)
    with pytest.raises(
        ValueError,
        match=r"unknown.* is no run of its evaluation, which has the contenders random, ",
    ):
        load_agent(unknown)
    (run_of(copy, "actor_critic") / "agent.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"agent\.npz is missing"):
        load_agent(run_of(copy, "actor_critic"))
    folder = run_of(copy, "mine")
    (folder / ".." / "seed_7").mkdir()
    with pytest.raises(ValueError, match=r"seed_7' is no run of its evaluation.* and 1 seeds"):
        load_agent(folder / ".." / "seed_7")
    assert load_agent(folder / ".." / "seed_0").name == "mine"
    (copy.parent / "link").symlink_to(folder)
    assert load_agent(copy.parent / "link").name == "mine"
    shutil.copy(pathlib.Path(disco.__file__).parent / "zoo" / "grid57.npz", copy / "rules/mine.npz")
    with pytest.raises(ValueError, match=r"The rule 'mine' is gone: .*other rules now"):
        load_agent(run_of(copy, "mine"))
    manifest = json.loads((copy / "manifest.json").read_text())
    for contender in manifest["contenders"]:
        if contender["name"].startswith("ppo"):  # As older versions wrote it.
            del contender["algorithm"], contender["settings"]
            contender |= {"kind": "agent", "agent": {}}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="was trained by an older version"):
        load_agent(run_of(copy, "ppo_learning_rate=0.001"))


@pytest.mark.slow
def test_frames_of_a_board(workdir):
    agent = load_agent(run_of(workdir, "mine"))
    found = list(films.frames(agent, episodes=2, seed=0, most_steps=100))
    assert len(found) == 2 * (1 + 4 + 7)  # First, steps, the last one held.
    assert {x.shape for x in found} == {found[0].shape}
    assert found[0].dtype == np.uint8
    assert not np.array_equal(found[0], found[4])
    np.testing.assert_array_equal(found[5], found[11])
    same = list(films.frames(agent, episodes=2, seed=0, most_steps=100))
    np.testing.assert_array_equal(found, same)
    assert len(list(films.frames(agent, episodes=1, seed=0, most_steps=2))) == 3 + 7


@pytest.mark.slow
def test_frames_that_the_environment_draws(workdir):
    agent = load_agent(run_of(workdir, "random", "gymnasium_CartPole-v1"))
    first, *_ = films.frames(agent, episodes=1, seed=0, most_steps=1)
    assert first.shape == (416, 600, 3)  # Gymnasium's picture, and the caption.
    assert (first[:400] == 255).mean() > 0.5


def shades() -> list[np.ndarray]:
    """Seven pictures of odd size, of one colour each."""
    random = np.random.default_rng(0)
    return [np.full((33, 50, 3), random.integers(256), np.uint8) for _ in range(7)]


def test_a_gif(tmp_path):
    path = tmp_path / "new" / "film.gif"
    assert films.write(path, iter(shades()), fps=5.0) == 7
    with Image.open(path) as image:
        found: Any = image
        assert (found.n_frames, found.size, found.info["duration"]) == (7, (50, 33), 200)


def test_names_in_files_import_nothing(tmp_path, monkeypatch):
    (tmp_path / "named_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (
        "named_module:make/x",
        "pixels/named_module:make/x",
        "gymnasium/named_module:A-v0",
        "pixels/gymnasium/named_module:A-v0",
    ):
        with (
            plugins.names_from_files(imports=False),
            pytest.raises(ValueError, match=r"named_module:.*for which a module would be imported"),
        ):
            environments.make(name)
    with pytest.raises(plugins.PluginError, match="SystemExit: imported"):
        environments.make("named_module:make/x")


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in '\.avi'; expected \.gif"):
        films.check(tmp_path / "film.avi")


@pytest.mark.slow
def test_the_command(workdir):
    run = f"--run={run_of(workdir, 'mine')}"
    film = run_of(workdir, "mine") / "film.gif"
    film.unlink(missing_ok=True)
    missing = run_of(workdir, "mine").with_name("seed_9")
    cases = {
        "good": [run, "--episodes=2"],
        "suffix": [run, "--output=film.avi"],
        "missing": [f"--run={missing}"],
    }
    found = outcomes("launch.watch", cases)
    status, output = found["good"]
    assert status == 0, output
    assert film.is_file()
    assert re.search(r"Written: .*film\.gif, 24 pictures", output)
    status, output = found["suffix"]
    assert status != 0
    assert "expected .gif" in output
    status, output = found["missing"]
    assert status == 2
    assert f"--run={missing} is not a folder" in output
    assert not missing.exists()
