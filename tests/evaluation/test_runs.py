"""Which runs of an evaluation are trained together, and what their agents compute."""

import dataclasses
import pathlib

import jax
import pytest

import disco
import environments
from disco_common import compilation
from evaluation import runs
from evaluation.contenders import GRADIENT_STEPS, PARAMETERS, make_contenders, rule_contenders
from evaluation.runs import ContenderRun, job_groups, train_runs, with_compute
from tests.evaluation.common import CONFIG
from tests.meta.common import small_rule

TASKS = [environments.make(name) for name in ("catch/5x5", "catch/4x3")]


@pytest.mark.skipif(not compilation._MAPPINGS.exists(), reason="needs Linux's /proc")
def test_a_long_evaluation_drops_programs_between_jobs(tmp_path, monkeypatch):
    """Else the process crashes once it has too many mappings of memory."""
    traced = []
    program = jax.jit(lambda x: traced.append(x) or x + 1)
    program(1)
    monkeypatch.setattr(compilation, "_MANY_MAPPINGS", 0)
    config = dataclasses.replace(CONFIG, baselines=(), budget=2_000)
    (random,) = make_contenders((), config)
    run = ContenderRun.of(random, environments.make("catch/5x5"), 0, config, tmp_path)
    train_runs([run], config, tmp_path / "group")
    program(1)
    assert len(traced) == 2


def test_what_agents_compute_is_known_before_they_run():
    config = dataclasses.replace(CONFIG, baselines=("ppo",))
    tasks = [environments.make(name) for name in ("catch/5x5", "deep_sea/5")]
    random, ppo = (with_compute(x, tasks).source for x in make_contenders((), config))
    # 25 inputs, twice two layers of 64 units, logits of 2 or 3 actions, a value.
    torsos, value = 2 * (25 * 64 + 64 + 64 * 64 + 64), 64 + 1
    assert ppo[PARAMETERS] == [torsos + value + 2 * 65, torsos + value + 3 * 65]
    # 10 epochs of 32 minibatches for 2,048 environment steps.
    assert ppo[GRADIENT_STEPS] == 320 / 2048
    assert random[GRADIENT_STEPS] == 0
    assert PARAMETERS not in random


@pytest.fixture
def contenders(tmp_path):
    """Two rules of equal sizes, actor-critic and the random policy."""
    names = [tmp_path / "one.npz", tmp_path / "two.npz"]
    for seed, name in enumerate(names):
        disco.save(small_rule(seed), name, {})
    config = dataclasses.replace(CONFIG, baselines=("actor_critic",), budget=2_000)
    return config, make_contenders(rule_contenders(list(map(str, names)), config), config)


def groups_of(contenders, most=None):
    runs = [
        ContenderRun.of(one, task, seed, CONFIG, pathlib.Path("unused"))
        for one in contenders
        for task in TASKS
        for seed in range(2)
    ]
    return [
        sorted({run.contender.name for run in group})
        for group in job_groups(runs, most)
        if group[0].task is TASKS[0]
    ]


def test_on_a_cpu_a_job_has_one_contender(contenders):
    found = groups_of(contenders[1])
    assert sorted(found) == [["actor_critic"], ["one"], ["random"], ["two"]]


def test_on_an_accelerator_rules_of_equal_sizes_share_a_job(contenders, monkeypatch):
    monkeypatch.setattr(runs, "_mixes_contenders", lambda: True)
    found = groups_of(contenders[1])
    assert sorted(found) == [["actor_critic"], ["one", "two"], ["random"]]
    assert max(map(len, groups_of(contenders[1], most=1))) == 1


@pytest.mark.slow
def test_runs_of_a_shared_job_keep_their_own_rule(contenders, tmp_path):
    config, made = contenders
    rules = [one for one in made if one.name in ("one", "two")]
    runs = [ContenderRun.of(one, TASKS[0], 0, config, tmp_path) for one in rules]
    together = train_runs(runs, config, tmp_path / "group")
    for run, found in zip(runs, together, strict=True):
        own = tmp_path / f"alone_{run.contender.name}"
        (alone,) = train_runs([dataclasses.replace(run, folder=own)], config, own / "group")
        assert found.curve.return_sum.tolist() == alone.curve.return_sum.tolist()
