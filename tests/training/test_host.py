"""Runs in host environments: they learn, and go on where they were stopped."""

import dataclasses
import json
import os
import signal
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest

import environments
from agents.networks import NetworkConfig
from agents.protocol import ReplaySpec, Requirements, Update, UpdateSpec
from agents.random_agent import RandomAgent
from agents.rule_agent import RuleAgentConfig
from disco_common import stopping
from disco_common.json_lines import JsonLines
from environments import SimulatorError
from environments.processes import SerialSimulators
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import Experiment, evaluate, tasks_of
from tests.agents.common import HostCorridors
from tests.evaluation import common
from training import host
from training.records import Run
from training.schedule import TrainingConfig

CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(8,), model=4, head=(4,)),
        num_environments=3,
        unroll_length=5,
        batch_size=6,
        replay_ratio=0.5,
        replay_capacity=12,
        frame_stack=2,
    ),
    seeds=2,
    budget=20 * 15,
    baselines=("hand_set",),
    num_points=4,
    updates_per_call=5,
)
TASK = environments.Environment("corridor/host", HostCorridors(3), True)


class Stopped(Exception):
    pass


def train(folder, *, stop_at: int | None = None, config=CONFIG):
    """Actor-critic's history; stopped at a step if asked for."""
    (contender,) = [c for c in make_contenders([], config) if c.kind == "hand_set"]

    def report(steps, *_):
        if steps == stop_at:
            raise Stopped

    return common.train([TASK], contender, config, folder, report)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return folder, train(folder)


def test_every_episode_is_recorded(history):
    folder, outcome = history
    # Of 100 steps in each environment, every fourth leads from an end to a start.
    assert outcome.curve.count.sum(axis=-1).tolist() == [[75.0, 75.0]]
    assert np.all(outcome.curve.mean_return == 6.0)
    assert np.all(outcome.window.mean_return == 6.0)
    assert outcome.results["length"].tolist() == [[3.0, 3.0]]
    assert outcome.results["reached"].tolist() == [[3.0, 3.0]]
    assert outcome.is_finite.all()
    assert outcome.updates[-1] == 20
    run = folder / "runs" / "hand_set" / "corridor_host" / "seed_0"
    lines = JsonLines(run / "episodes.jsonl").read()
    assert len(lines) == 75
    assert (lines[0]["episodes"], lines[0]["return_sum"]) == (1.0, 6.0)
    assert lines[0]["result_sums"] == {"reached": 3.0}
    metrics = JsonLines(run / "metrics.jsonl").read()
    assert [line["environment_steps"] for line in metrics] == [75, 150, 225, 240, 300]
    assert all(0.0 <= line["learner_idle_fraction"] <= 1.0 for line in metrics)
    assert all(np.isfinite(line["loss"]) for line in metrics)


def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_seconds=0.0, seeds=1)
    with pytest.raises(Stopped):
        train(tmp_path, stop_at=150, config=config)
    run = tmp_path / "runs" / "hand_set" / "corridor_host" / "seed_0"
    steps = sorted(int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdigit())
    assert steps[-1] in (9, 10)
    before = (run / "episodes.jsonl").read_text().splitlines()
    outcome = train(tmp_path, config=config)
    lines = JsonLines(run / "episodes.jsonl").read()
    saved = steps[-1] * CONFIG.agent.steps_per_update
    kept = [line for line in lines if line["environment_steps"] <= saved]
    assert [json.loads(x) for x in before if json.loads(x)["environment_steps"] <= saved] == kept
    assert sorted({line["environment_steps"] for line in lines})[-1] == 300
    # Its environments start new episodes where it went on, which costs less than one of each.
    assert 72 <= outcome.curve.count.sum() <= 75
    assert [line["environment_steps"] for line in JsonLines(run / "metrics.jsonl").read()][
        -1
    ] == 300


def test_what_happened_before_an_interruption_is_not_forgotten(tmp_path, monkeypatch):
    config = dataclasses.replace(CONFIG, checkpoint_seconds=0.0, seeds=1)
    steps = SerialSimulators.step

    def step(simulators, action):  # Rewards that no agent survives, and a death.
        simulators.restarts = 1
        timestep = steps(simulators, action)
        return timestep._replace(reward=timestep.reward * np.nan)

    with monkeypatch.context() as patch:
        patch.setattr(SerialSimulators, "step", step)
        with pytest.raises(Stopped):
            train(tmp_path, stop_at=150, config=config)
    evaluate(Experiment([TASK], config, tmp_path), make_contenders([], config))
    run = tmp_path / "runs" / "hand_set" / "corridor_host" / "seed_0"
    result = json.loads((run / "result.json").read_text())
    assert not result["is_finite"]
    assert result["restarts"] == 2  # Of two halves.


@dataclasses.dataclass(frozen=True)
class Counting:
    """Counts its updates, which need 30 sequences of a replay that checkpoints do not contain."""

    random: RandomAgent
    initial_memory = property(lambda self: self.random.initial_memory)
    act = property(lambda self: self.random.act)

    @property
    def requirements(self):
        update = UpdateSpec("count", 4, 4, length=2, min_sequences=30)
        return Requirements(3, 2, replay=ReplaySpec(1000, anywhere=True), updates=(update,))

    def init(self, key):
        del key
        return jnp.zeros((), jnp.int32)

    def acting_state(self, state):
        del state
        return ()

    def update(self, state, batch, key, name):
        del batch, key, name
        return Update(state + 1, {"counted": (state + 1).astype(jnp.float32)})


def test_only_updates_that_were_made_are_counted(tmp_path):
    """A restored run makes none until its replay has filled anew."""
    agent, run = cast(Any, Counting(RandomAgent(TASK.dynamics))), Run(TASK, 0, tmp_path)
    settings = TrainingConfig(num_steps=240, interval=6, checkpoint_seconds=0.0)

    def stop(steps, *_):
        if steps == 120:
            raise Stopped

    with pytest.raises(Stopped):
        host.train(agent, run, settings, stop)
    result = host.train(agent, run, settings)
    lines = JsonLines(tmp_path / "metrics.jsonl").read()
    assert all(line["updates"] == line["counted"] for line in lines if line.get("counted"))
    assert 240 / 6 - 14 < lines[-1]["updates"] < 240 / 6 - 6
    assert lines[-1]["updates"] == result.learner
    assert result.train_seconds > 0


@dataclasses.dataclass(frozen=True)
class Numbering(Counting):
    """Writes each update's number, from 1 on, into all rows of its only sequence."""

    @property
    def requirements(self):
        update = UpdateSpec("number", 1, 1, length=4, updates_per_step=3.0)
        replay = ReplaySpec(4, anywhere=True, in_checkpoints=True)
        return Requirements(1, 1, replay=replay, updates=(update,), acts_one_behind=False)

    def act(self, acting_state, memory, timestep, key, mode):
        memory, action, _ = self.random.act(acting_state, memory, timestep, key, mode)
        return memory, action, {"number": jnp.zeros_like(timestep.step_type)}

    def update(self, state, batch, key, name):
        del key, name
        refreshed = {"number": jnp.full_like(batch.extras["number"], state + 1)}
        return Update(
            state + 1, {"found": batch.extras["number"].max().astype(jnp.float32)}, refreshed
        )


def test_extras_are_written_back_one_update_late(tmp_path):
    """Three updates after each unroll: the first finds all extras, the second not the first's."""
    agent, run = cast(Any, Numbering(RandomAgent(TASK.dynamics))), Run(TASK, 0, tmp_path)
    settings = TrainingConfig(num_steps=12, interval=1, checkpoint_seconds=0.0)

    def stop(steps, *_):
        if steps == 8:
            raise Stopped

    with pytest.raises(Stopped):
        host.train(agent, run, settings, stop)
    host.train(agent, run, settings)
    lines = [x for x in JsonLines(tmp_path / "metrics.jsonl").read() if x["updates"]]
    assert [x["updates"] for x in lines] == list(range(3, 3 * 9 + 1, 3))
    for line in lines:  # Also where it was restored from a checkpoint.
        before = line["updates"] - 3
        assert line["found"] == pytest.approx(before + (0 + 0 + 1) / 3)


def test_the_random_policy_goes_on_where_it_was_stopped(tmp_path):
    config = dataclasses.replace(CONFIG, checkpoint_seconds=0.0, seeds=1)
    (random,) = [c for c in make_contenders([], config) if c.kind == "random"]

    def report(steps, *_):
        if steps == 150:
            raise Stopped

    with pytest.raises(Stopped):
        common.train([TASK], random, config, tmp_path, report)
    run = tmp_path / "runs" / "random" / "corridor_host" / "seed_0"
    before = (run / "episodes.jsonl").read_text().splitlines()
    outcome = common.train([TASK], random, config, tmp_path)
    lines = (run / "episodes.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["environment_steps"] == 300
    kept = [line for line in before if json.loads(line)["environment_steps"] <= 135]
    assert kept
    assert lines[: len(kept)] == kept
    assert outcome.is_finite.all()


def test_an_evaluation_of_both_kinds_of_environment(tmp_path):
    tasks = (TASK, *tasks_of(["catch/3x3"]))
    found = evaluate(Experiment(tasks, CONFIG, tmp_path), make_contenders([], CONFIG)).evaluation
    assert found.scores["hand_set"][0].tolist() == [6.0, 6.0]
    assert np.isfinite(found.scores["hand_set"]).all()
    episodes = (tmp_path / "episode_means.csv").read_text().splitlines()
    assert "corridor/host,hand_set,0,reached,3.0" in episodes
    assert "catch/3x3,random,0,length,2.0" in episodes
    assert not (tmp_path / "published.csv").exists()
    (random,) = [c for c in make_contenders([], CONFIG) if c.kind == "random"]
    loaded = common.load(tmp_path, tasks, random, CONFIG)
    assert np.isnan(loaded.results["reached"][1]).all()
    assert loaded.results["length"][1].tolist() == [2.0, 2.0]


def test_what_cannot_be_trained_is_refused_before_anything_starts(tmp_path):
    large = dataclasses.replace(CONFIG.agent, replay_capacity=10**13)
    config = dataclasses.replace(CONFIG, agent=large, budget=10**14, baselines=("hand_set",))
    with pytest.raises(
        ValueError,
        match=r"hand_set on corridor/host, .* GiB are free.*agent\.replay_capacity",
    ):
        evaluate(Experiment([TASK], config, tmp_path), make_contenders([], config))
    tasks = tasks_of(["control_proprio/cartpole_swingup"])
    with pytest.raises(ValueError, match="continuous actions"):
        evaluate(Experiment(tasks, CONFIG, tmp_path), make_contenders([], CONFIG))
    assert not (tmp_path / "runs").exists()


@pytest.mark.learning
def test_actor_critic_learns_in_a_host_environment(tmp_path):
    """BSuite's Catch: 1 is a caught ball, -1 a missed one."""
    config = EvaluationConfig(
        agent=RuleAgentConfig(
            network=NetworkConfig(torso=(32,)),
            num_environments=8,
            unroll_length=16,
            batch_size=8,
            replay_ratio=0.0,
        ),
        seeds=1,
        budget=80_000,
        baselines=("actor_critic",),
    )
    contenders = {c.kind: c for c in make_contenders([], config)}
    scores = {
        kind: common.train(tasks_of(["bsuite/catch/0"]), c, config, tmp_path).window.mean_return
        for kind, c in contenders.items()
    }
    assert scores["random"] < -0.3
    assert scores["actor_critic"] > 0.5


def test_a_signal_that_ends_the_workers_too_leaves_a_checkpoint(tmp_path, monkeypatch):
    """As SIGTERM to a process group: the unroll under way fails, and what was learned is saved."""
    steps = SerialSimulators.step

    def step(self, action):
        if stopping.is_requested():
            raise SimulatorError("A worker process died while this process stops.")
        return steps(self, action)

    def report(steps, *_):
        if steps >= 150:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SerialSimulators, "step", step)
    (contender,) = [c for c in make_contenders([], CONFIG) if c.kind == "hand_set"]
    with pytest.raises(stopping.StoppedBySignal), stopping.noting():
        common.train([TASK], contender, CONFIG, tmp_path, report)
    assert list(tmp_path.rglob("checkpoints/*"))
