import dataclasses

import jax
import pytest

import environments
from agents import compilation
from evaluation.contenders import make_contenders
from evaluation.training import Run, train_runs
from tests.evaluation.common import CONFIG


@pytest.mark.skipif(not compilation._MAPPINGS.exists(), reason="needs Linux's /proc")
def test_a_long_evaluation_drops_programs_between_jobs(tmp_path, monkeypatch):
    """Else the process crashes once it has too many mappings of memory."""
    traced = []
    program = jax.jit(lambda x: traced.append(x) or x + 1)
    program(1)
    monkeypatch.setattr(compilation, "_MANY_MAPPINGS", 0)
    config = dataclasses.replace(CONFIG, baselines=(), budget=2_000)
    (random,) = make_contenders((), config)
    run = Run(random, environments.make("catch/5x5"), 0)
    train_runs([run], config, [tmp_path / "run"], tmp_path / "group")
    program(1)
    assert len(traced) == 2
