"""Runs in JAX environments: their records, that they stop in order and go on, what is refused."""

import dataclasses
import json
import os
import signal
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.history import HistorySpec
from agents.networks import NetworkConfig
from agents.protocol import Agent, ReplaySpec, Requirements, Update, UpdateSpec
from agents.random_agent import RandomAgent
from agents.rule_agent import RuleAgent, RuleAgentConfig
from disco_common import stopping
from training import device, records
from training.records import Records, Run
from training.schedule import TrainingConfig

TASK = environments.make("catch/4x3")
CONFIG = RuleAgentConfig(
    network=NetworkConfig(torso=(4,)),
    num_environments=2,
    unroll_length=5,
    batch_size=4,
    replay_ratio=0.5,
    replay_capacity=8,
)
SETTINGS = TrainingConfig(
    num_steps=200, boundaries=(100,), interval=30, checkpoint_seconds=1e9, runs_at_once=1
)
AGENT = RuleAgent.create(CONFIG, TASK.dynamics, disco.ActorCritic())


def runs(folder, number: int = 2) -> list[Run]:
    return [Run(TASK, seed, folder / f"seed_{seed}") for seed in range(number)]


def train(folder, agent: Agent | list[Agent] = AGENT, report=lambda *_: None):
    return device.train(agent, runs(folder), SETTINGS, folder / "together", report)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    told = []
    return folder, train(folder, report=lambda *numbers: told.append(numbers)), told


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_run_has_records_of_episodes_and_of_the_rules_metrics(trained):
    folder, results, told = trained
    for number, result in enumerate(results):
        metrics = lines(folder / f"seed_{number}" / "metrics.jsonl")
        # No interval spans step 100, and none is longer than 30 steps.
        steps = [30, 60, 90, 100, 130, 160, 190, 200]
        assert [line["environment_steps"] for line in metrics] == steps
        assert all(np.isfinite(line["loss"]) and line["gradient_norm"] > 0 for line in metrics)
        assert all(line["environment_steps_per_second"] > 0 for line in metrics)
        episodes = lines(folder / f"seed_{number}" / "episodes.jsonl")
        # An episode of catch/4x3 has three steps, and a fourth leads to the next.
        assert sum(line["episodes"] for line in episodes) == 200 / 4
        assert all(line["length_sum"] == 3 * line["episodes"] for line in episodes)
        assert len(result.episodes) == len(episodes)
        assert result.is_finite
    # Calls may end within an interval, too.
    at_ends = {steps: numbers for steps, *numbers in told}
    assert {30, 60, 90, 100, 130, 160, 190, 200} <= set(at_ends)
    assert all(at_ends[steps][0] > 0 and abs(at_ends[steps][1]) <= 1 for steps in (30, 100, 200))


def test_runs_depend_on_their_seeds_only(trained, tmp_path):
    _, results, _ = trained
    three = device.train(AGENT, runs(tmp_path / "3", 3), SETTINGS, tmp_path / "3" / "together")
    assert three[0].episodes == results[0].episodes
    jax.tree.map(np.testing.assert_array_equal, three[0].learner, results[0].learner)
    assert three[0].episodes != results[1].episodes
    # Alone, it is compiled without a loop over runs, which may change the last bits.
    (alone,) = device.train(AGENT, runs(tmp_path, 1), SETTINGS, tmp_path / "together")
    assert alone.episodes == results[0].episodes
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
        alone.learner,
        results[0].learner,
    )


def test_a_signal_saves_a_checkpoint_and_the_run_goes_on_bit_for_bit(trained, tmp_path):
    folder, results, _ = trained

    def report(steps, *_):
        if steps == 100:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught, stopping.noting():
        train(tmp_path, report=report)
    assert caught.value.code == 128 + signal.SIGTERM
    assert not stopping.is_requested()
    first = lines(tmp_path / "seed_0" / "metrics.jsonl")
    assert first[-1]["environment_steps"] == 100
    told = []
    again = train(tmp_path, report=lambda steps, *_: told.append(steps))
    assert min(told) > 100
    assert {130, 160, 190, 200} <= set(told)
    for one, other in zip(again, results, strict=True):
        assert one.episodes == other.episodes
        jax.tree.map(np.testing.assert_array_equal, one.learner, other.learner)
    kept = ["environment_steps", "loss", "episode_return"]
    for name in ("seed_0", "seed_1"):
        assert [
            [line.get(x) for x in kept] for line in lines(tmp_path / name / "metrics.jsonl")
        ] == [[line.get(x) for x in kept] for line in lines(folder / name / "metrics.jsonl")]


def test_a_signal_within_an_interval_loses_nothing(trained, tmp_path, monkeypatch):
    """An interval may take hours. Each call is one unroll here."""
    folder, results, _ = trained
    monkeypatch.setattr(device, "_call_seconds", lambda _: (0.0, 4.0))
    told = []

    def report(steps, *_):
        told.append(steps)
        if steps == 120:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit), stopping.noting():
        train(tmp_path, report=report)
    assert told == list(range(10, 130, 10))
    assert lines(tmp_path / "seed_0" / "metrics.jsonl")[-1]["environment_steps"] == 100
    again = train(tmp_path, report=lambda steps, *_: told.append(steps))
    assert told == list(range(10, 210, 10))
    for one, other in zip(again, results, strict=True):
        assert one.episodes == other.episodes
        jax.tree.map(np.testing.assert_array_equal, one.learner, other.learner)
    kept = ["environment_steps", "loss", "episode_return", "updates"]
    for name in ("seed_0", "seed_1"):
        found, expected = (lines(x / name / "metrics.jsonl") for x in (tmp_path, folder))
        assert [[x.get(k) for k in kept] for x in found] == [
            [x.get(k) for k in kept] for x in expected
        ]


def test_calls_take_seconds_however_long_an_unroll_takes(tmp_path, monkeypatch):
    """The number of unrolls of a call doubles and halves by the time that calls took."""
    overhead = 0.0
    made, seconds = [], iter([0.5, 0.5, 0.5, 2.0, 9.0, 9.0, *[2.0] * 50])

    def advance(self, number):
        self._unrolls += number
        made.append(number)
        return next(seconds) if number else overhead

    monkeypatch.setattr(device._Runs, "_advance", advance)
    settings = dataclasses.replace(SETTINGS, interval=10_000, boundaries=())
    device.train(AGENT, runs(tmp_path), settings, tmp_path / "together")
    assert made == [0, 0, 1, 2, 4, 8, 5]
    made.clear()
    settings = dataclasses.replace(settings, num_steps=400)
    seconds = iter([0.5, 0.5, 0.5, 9.0, 9.0, 2.0, *[2.0] * 50])
    device.train(AGENT, runs(tmp_path / "2"), settings, tmp_path / "2" / "together")
    assert made == [0, 0, 1, 2, 4, 8, 4, *[2] * 10, 1]
    # A call that makes no unroll takes 2 seconds: at least 8 seconds, then, and at most 16.
    made.clear()
    overhead, seconds = 2.0, iter([2.5, 3.0, 4.0, 9.0, 17.0, 9.0, *[9.0] * 50])
    device.train(AGENT, runs(tmp_path / "3"), settings, tmp_path / "3" / "together")
    assert made == [0, 0, 1, 2, 4, 8, 8, *[4] * 4, 1]


def test_a_checkpoint_ahead_of_its_runs_records_is_not_used(trained, tmp_path, caplog):
    """As after the runs were trained in other job groups meanwhile."""
    _, results, _ = trained
    settings = dataclasses.replace(SETTINGS, checkpoint_seconds=0.0)

    def report(steps, *_):
        if steps == 160:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        device.train(AGENT, runs(tmp_path), settings, tmp_path / "together", report)
    path = tmp_path / "seed_1" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    again = train(tmp_path)
    assert "its runs' records end before it" in caplog.text
    for one, other in zip(again, results, strict=True):
        assert one.episodes == other.episodes


def test_numbers_that_are_not_finite_are_noticed_on_the_way(tmp_path, caplog):
    agent = dataclasses.replace(AGENT, learning_rate=jnp.float32(np.nan))
    noticed = []
    results = train(tmp_path, agent, lambda steps, *_: noticed.append((steps, caplog.text)))
    assert [result.is_finite for result in results] == [False, False]
    assert "seed_1 has metrics that are not finite at step 30." in caplog.text
    assert caplog.text.count("not finite") == 2  # Once for each run.
    assert lines(tmp_path / "seed_0" / "metrics.jsonl")[-1]["loss"] is None
    found = Records(tmp_path / "seed_0")
    found.keep(SETTINGS.num_steps)
    assert not found.is_finite


def test_the_final_agent_is_saved_and_loaded(trained, tmp_path):
    _, (result, _), _ = trained
    records.save_agent(tmp_path, result.learner)
    like = jax.eval_shape(AGENT.init, jax.random.key(0))
    loaded = records.load_agent(tmp_path, like)
    jax.tree.map(np.testing.assert_array_equal, loaded, result.learner)
    assert jax.tree.structure(loaded) == jax.tree.structure(result.learner)


def test_another_agents_file_and_a_damaged_one_are_refused(trained, tmp_path):
    _, (result, _), _ = trained
    records.save_agent(tmp_path, result.learner)
    wide = dataclasses.replace(CONFIG, network=NetworkConfig(torso=(8,)))
    other = RuleAgent.create(wide, TASK.dynamics, disco.ActorCritic())
    with pytest.raises(records.SavedAgentError, match=r"another agent: .* is float32"):
        records.load_agent(tmp_path, jax.eval_shape(other.init, jax.random.key(0)))
    grid57 = RuleAgent.create(CONFIG, TASK.dynamics, disco.load("grid57"))
    with pytest.raises(records.SavedAgentError, match="is that of another agent: it has"):
        records.load_agent(tmp_path, jax.eval_shape(grid57.init, jax.random.key(0)))
    path = tmp_path / records.AGENT
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(records.SavedAgentError, match="is not an npz archive"):
        records.load_agent(tmp_path, result.learner)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"agent\.npz is missing"):
        records.load_agent(tmp_path, result.learner)


def test_the_random_policy_saves_nothing(tmp_path):
    (result, _) = train(tmp_path, RandomAgent(TASK.dynamics, 2, 5))
    records.save_agent(tmp_path, result.learner)
    assert not (tmp_path / records.AGENT).exists()


@dataclasses.dataclass(frozen=True)
class Asking(RandomAgent):
    """Has requirements that contradict each other."""

    asked: Requirements = Requirements(2, 5)

    @property
    def requirements(self):
        return self.asked


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"replay": ReplaySpec(100, online=True)}, "an online queue of unrolls"),
        (
            {
                "replay": ReplaySpec(100, anywhere=True, online=True),
                "updates": (UpdateSpec("a", 2, 2, length=3), UpdateSpec("b", 2, 2, length=3)),
            },
            "an online queue for several kinds of update",
        ),
        (
            {
                "replay": ReplaySpec(100, anywhere=True),
                "history": HistorySpec(memory=True),
            },
            "a recurrent memory stored with each unroll beside sequences that begin anywhere",
        ),
        ({"updates": (UpdateSpec("learn", 2, length=3),)}, "another length than the unroll's"),
        (
            {"replay": ReplaySpec(100), "updates": (UpdateSpec("learn", 2, 2, context=1),)},
            "another length than the unroll's.* for 'learn'",
        ),
        (
            {
                "replay": ReplaySpec(100, anywhere=True, online=True),
                "updates": (UpdateSpec("learn", 2, 2),),
            },
            "an online queue of sequences without a length for 'learn'",
        ),
        (
            {
                "replay": ReplaySpec(100, anywhere=True, online=True),
                "updates": (UpdateSpec("learn", 2, 2, context=1),),
            },
            "an online queue of sequences without a length for 'learn'",
        ),
        (
            {
                "replay": ReplaySpec(100),
                "updates": (UpdateSpec("learn", 2, 2, priority="error"),),
            },
            "draws by priority .*ReplaySpec.anywhere alone.* for 'learn'",
        ),
        (
            {
                "replay": ReplaySpec(100, anywhere=True),
                "updates": (UpdateSpec("learn", 2, 2, length=3, context=1, priority="error"),),
            },
            "draws by priority beside a context for 'learn'",
        ),
        (
            {
                "replay": ReplaySpec(100, anywhere=True),
                "updates": (UpdateSpec("learn", 2, 2, length=3, priority="error"),),
            },
            "'learn' draws by the priority 'error'; expected one of the extras of `act`: ",
        ),
        ({"updates": (UpdateSpec("learn", 3),)}, "a batch with 3 fresh sequences .* for 'learn'"),
        ({"updates": (UpdateSpec("learn", 2, 2),)}, "without a replay for 'learn'"),
        ({"updates": (UpdateSpec("a", 2), UpdateSpec("a", 2))}, "two kinds of update of one name"),
        ({"updates": (UpdateSpec("learn", 2, updates_per_step=0.0),)}, "0.0 updates per step"),
    ],
)
def test_requirements_that_contradict_each_other_is_refused(asked, message, tmp_path):
    agent = Asking(TASK.dynamics, asked=Requirements(2, 5, **asked))
    with pytest.raises(ValueError, match=message):
        train(tmp_path, agent)


def test_a_budget_of_less_than_one_unroll_is_refused(tmp_path):
    settings = dataclasses.replace(SETTINGS, num_steps=9)
    with pytest.raises(ValueError, match="budget is 9 environment steps; expected at least one"):
        device.train(AGENT, runs(tmp_path), settings, tmp_path / "together")


@dataclasses.dataclass(frozen=True)
class WeaklyTyped:
    """The random policy with a learning state whose type an update makes strong."""

    random: RandomAgent
    initial_memory = property(lambda self: self.random.initial_memory)
    act = property(lambda self: self.random.act)

    @property
    def requirements(self):
        return dataclasses.replace(self.random.requirements, updates=(UpdateSpec(batch_size=2),))

    def init(self, key):
        del key
        return jnp.asarray(1.0)

    def acting_state(self, state):
        del state
        return ()

    def update(self, state, batch, key, name):
        del batch, key, name
        return Update(state + jnp.float32(1.0), {})


def test_programs_are_compiled_once(tmp_path, caplog):
    task = environments.make("catch/4x3")
    agent = cast(Any, WeaklyTyped(RandomAgent(task.dynamics, 2, 5)))
    assert agent.init(None).weak_type
    settings = TrainingConfig(num_steps=100, interval=50)
    with jax.log_compiles():
        (result,) = device.train(agent, [Run(task, 0, tmp_path / "run")], settings, tmp_path)
    compiled = [x for x in caplog.messages if x.startswith("Compiling jit(advance)")]
    assert len(compiled) == 1
    assert float(result.learner) == 11.0  # After ten updates.


def test_agents_that_differ_in_arrays_only_learn_together_what_each_learns_alone(tmp_path):
    rates = (1e-3, 1e-2)
    config = dataclasses.replace(CONFIG, learning_rate=0.0)
    agents = [
        dataclasses.replace(
            RuleAgent.create(config, TASK.dynamics, disco.ActorCritic()),
            learning_rate=jnp.float32(rate),
        )
        for rate in rates
    ]
    together = device.train(agents, runs(tmp_path / "two"), SETTINGS, tmp_path / "together")
    for number, (agent, one) in enumerate(zip(agents, together, strict=True)):
        alone = device.train(
            agent, runs(tmp_path / f"{number}"), SETTINGS, tmp_path / f"{number}" / "together"
        )[number]
        jax.tree.map(np.testing.assert_array_equal, one.learner, alone.learner)
        assert one.episodes == alone.episodes


def test_agents_that_differ_in_more_than_arrays_are_refused(tmp_path):
    other = RuleAgent.create(
        dataclasses.replace(CONFIG, unroll_length=4), TASK.dynamics, disco.ActorCritic()
    )
    with pytest.raises(ValueError, match="differ in more than arrays"):
        train(tmp_path, [AGENT, other])
