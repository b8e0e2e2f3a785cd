import dataclasses

import jax
import pytest

import environments
from agents import compilation
from evaluation.contenders import GRADIENT_STEPS, PARAMETERS, make_contenders
from evaluation.training import Run, train_runs, with_compute
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
