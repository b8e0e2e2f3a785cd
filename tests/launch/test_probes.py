"""Probes of a discovery: fresh agents learn by its rule along the way."""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest

import disco
import environments
from disco_common import stopping
from evaluation.evaluate import tasks_of
from evaluation.loading import load_agent
from evaluation.report.discoveries import Probe, best_probe, read_metrics, read_probes
from evaluation.report.stored import merge, read_manifest
from evaluation.rules import fingerprint
from evaluation.scoring import references
from launch.support import discovery_rules
from launch.support.discoveries import discover
from launch.support.discovery_config import ProbeConfig
from launch.support.discovery_rules import export
from tests.launch.discover_tiny import get_settings

SETTINGS = dataclasses.replace(
    get_settings(),
    suite="catch/5x5",
    meta_steps=5,
    checkpoint_interval=4,
    log_interval=3,
    probe=ProbeConfig(interval=2, num_tasks=3, seeds=2, budget=2_000),
)


def rules_of(folder):
    return {x.meta_step: fingerprint(disco.load(x.rule)) for x in read_probes(folder)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed")
    discover(SETTINGS, str(folder))
    return folder


@pytest.mark.slow
def test_every_second_meta_step_and_the_last_one_have_a_probe(finished):
    found = read_probes(finished)
    assert [x.meta_step for x in found] == [2, 4, 5]
    scale = references.shipped()["catch/5x5"]
    for one in found:
        assert set(one.tasks) == {"catch/5x5"}
        results = sorted(one.rule.parent.glob("runs/*/*/*/result.json"))
        assert len(results) == 2
        windows = [json.loads(x.read_text())["window"] for x in results]
        returns = [x["return_sum"] / x["count"] for x in windows]
        score = (np.mean(returns) - scale.random) / (scale.reference - scale.random)
        assert one.score == pytest.approx(score)
    records, problems = read_metrics(finished)
    assert problems == []
    assert {x["meta_step"]: x.get("probe_score") for x in records} == {
        2: found[0].score,
        3: None,
        4: found[1].score,
        5: found[2].score,
    }


@pytest.mark.slow
def test_agents_of_probes_can_be_loaded_but_not_reported(finished):
    """They are as those of an evaluation, without a random policy to compare them with."""
    folder = read_probes(finished)[0].rule.parent
    [run] = folder.glob("runs/*/*/seed_1")
    assert load_agent(run).task.name == "catch/5x5"
    with pytest.raises(ValueError, match="its contenders lack 'random'"):
        merge([read_manifest(folder)])


@pytest.mark.slow
def test_probes_do_not_change_the_rule_and_the_best_is_exported(finished, tmp_path):
    without = dataclasses.replace(SETTINGS, probe=ProbeConfig())
    discover(without, str(tmp_path / "without"))
    newest = export(str(tmp_path / "without"), str(tmp_path / "newest.npz"))
    rules = rules_of(finished)
    assert rules[5] == fingerprint(disco.load(tmp_path / "newest.npz"))
    assert len(set(rules.values())) == 3
    best = best_probe(read_probes(finished))
    assert best is not None
    found = export(str(finished), str(tmp_path / "best.npz"))
    assert found["probe_score"] == best.score
    assert found["meta_steps"] == best.meta_step
    assert fingerprint(disco.load(tmp_path / "best.npz")) == rules[best.meta_step]
    found = export(str(finished), str(tmp_path / "last.npz"), meta_step=5)
    ignored = {"probe_score"}
    assert {k: v for k, v in found.items() if k not in ignored} == newest


def test_the_best_has_the_highest_score_and_of_equal_ones_is_the_latest():
    made = [Probe(step, score, {}, None) for step, score in ((1, 0.5), (2, 0.5))]  # pyright: ignore
    assert best_probe([*made, Probe(3, 0.4, {}, None)]) == made[1]  # pyright: ignore
    assert best_probe([]) is None


@pytest.mark.slow
def test_a_run_that_is_stopped_in_a_probe_ends_the_same(finished, tmp_path, monkeypatch):
    make_runs, calls = discovery_rules.make_runs, []

    def stopped(*arguments):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return make_runs(*arguments)

    monkeypatch.setattr(discovery_rules, "make_runs", stopped)
    with pytest.raises(SystemExit, match="143"), stopping.noting():
        discover(SETTINGS, str(tmp_path))
    assert [x.meta_step for x in read_probes(tmp_path)] == [2]
    discover(SETTINGS, str(tmp_path))
    assert len(calls) == 4  # The second one is made again, the first one is not.
    assert rules_of(tmp_path) == rules_of(finished)
    scores = [[x.score for x in read_probes(folder)] for folder in (tmp_path, finished)]
    assert scores[0] == scores[1]
    discover(SETTINGS, str(tmp_path))
    assert len(calls) == 4


@pytest.mark.slow
def test_a_probe_of_another_rule_is_made_again(tmp_path, caplog):
    own = discovery_rules.Probes(SETTINGS, tasks_of([SETTINGS.suite]))
    zoo = disco.load("grid57")
    random = disco.DiscoveredRule.create(jax.random.key(1), zoo.sizes, num_bins=11, max_value=5.0)
    own.make(tmp_path, 7, random, {})
    first = rules_of(tmp_path)
    own.make(tmp_path, 7, dataclasses.replace(random, discount=0.5), {})
    assert rules_of(tmp_path) != first
    assert "is of another rule than the run has now" in caplog.text


def test_tasks_are_evenly_spaced():
    settings = dataclasses.replace(SETTINGS, probe=ProbeConfig(interval=1, num_tasks=3))
    chosen = discovery_rules.Probes(settings, environments.suite("grid57"))._chosen
    known = [x.name for x in environments.suite("grid57") if x.name in references.shipped()]
    assert list(chosen) == [known[0], known[(len(known) - 1) // 2], known[-1]]
    assert len(known) < 57  # The others have no reference scores.


def test_without_reference_scores_there_are_no_probes(caplog):
    own = discovery_rules.Probes(SETTINGS, [environments.make("catch/4x3")])
    assert own.interval == 0
    assert "No task of the suite has reference scores" in caplog.text
    assert discovery_rules.Probes(SETTINGS, tasks_of([SETTINGS.suite])).interval == 2


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"probe.seeds is 0"):
        ProbeConfig(seeds=0)
    with pytest.raises(ValueError, match=r"budget is 1 environment steps; expected at least one"):
        discovery_rules.Probes(
            dataclasses.replace(SETTINGS, probe=ProbeConfig(interval=1, budget=1)),
            tasks_of([SETTINGS.suite]),
        )


@pytest.mark.slow
def test_a_damaged_probe_is_named(finished, tmp_path):
    file = tmp_path / "probes" / "00000002" / "score.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"meta_step": 2, "score": NaN, "tasks": {}}')
    with pytest.raises(ValueError, match=r"score.json is .* expected meta_step, score and tasks"):
        read_probes(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes((finished / "metrics.jsonl").read_bytes())
    records, [problem] = read_metrics(tmp_path)
    assert len(records) == 4
    assert "score.json" in problem
