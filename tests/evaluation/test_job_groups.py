"""Which runs of an evaluation are trained together."""

import dataclasses

import pytest

import disco
import environments
from evaluation import job_groups
from evaluation.contenders import make_contenders
from evaluation.training import Run, train_runs
from tests.evaluation.common import CONFIG
from tests.meta.common import small_rule

TASKS = [environments.make(name) for name in ("catch/5x5", "catch/4x3")]


@pytest.fixture
def contenders(tmp_path):
    """Two rules of equal sizes, actor-critic and the random policy."""
    names = [tmp_path / "one.npz", tmp_path / "two.npz"]
    for seed, name in enumerate(names):
        disco.save(small_rule(seed), name, {})
    config = dataclasses.replace(CONFIG, baselines=("actor_critic",), budget=2_000)
    return config, make_contenders(list(map(str, names)), config)


def groups_of(contenders, most=None):
    runs = [Run(one, task, seed) for one in contenders for task in TASKS for seed in range(2)]
    return [
        sorted({run.contender.name for run in group})
        for group in job_groups.job_groups(runs, most)
        if group[0].task is TASKS[0]
    ]


def test_on_a_cpu_a_job_has_one_contender(contenders):
    found = groups_of(contenders[1])
    assert sorted(found) == [["actor_critic"], ["one"], ["random"], ["two"]]


def test_on_an_accelerator_rules_of_equal_sizes_share_a_job(contenders, monkeypatch):
    monkeypatch.setattr(job_groups, "_mixes_contenders", lambda: True)
    found = groups_of(contenders[1])
    assert sorted(found) == [["actor_critic"], ["one", "two"], ["random"]]
    assert max(map(len, groups_of(contenders[1], most=1))) == 1


@pytest.mark.slow
def test_runs_of_a_shared_job_keep_their_own_rule(contenders, tmp_path):
    config, made = contenders
    rules = [one for one in made if one.name in ("one", "two")]
    runs = [Run(one, TASKS[0], 0) for one in rules]
    together = train_runs(
        runs, config, [tmp_path / f"{one.name}" for one in rules], tmp_path / "group"
    )
    for run, found in zip(runs, together, strict=True):
        own = tmp_path / f"alone_{run.contender.name}"
        (alone,) = train_runs([run], config, [own], own / "group")
        assert found.curve.return_sum.tolist() == alone.curve.return_sum.tolist()
    assert job_groups.names(runs).startswith("one and 1 more on catch/5x5")
