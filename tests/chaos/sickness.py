"""NaN in one agent, and a clock that jumps."""

import dataclasses
import itertools
import json
import pathlib

import jax
import numpy as np

from launch.setup import make_discovery
from meta.discovery import Discovery
from tests.chaos import environments
from tests.chaos.bench import (
    Bench,
    Outcome,
    assert_as_uninterrupted,
    assert_finite,
    finished,
    newest_good,
)
from tests.chaos.driver import SICK_AGENT, SICK_AT
from tests.launch.discover_tiny import get_settings
from tests.launch.tiny_runs import TIMINGS, final_state, metrics
from tests.meta.common import STEPS

_META_STEPS = 8
_LONG_LIVES = (
    "--config.population.lifetimes=(1000000,)",
    "--config.population.first_rebirth=1000000",
)


def nan_in_an_agent(bench: Bench) -> Outcome:
    """NaN in one agent's parameters, rewards or observations, in JAX.

    The agent has no say in that meta-step and is reborn. So it does not matter what it was that
    made it sick: the runs end with the same state, bit for bit.
    """
    arguments = (
        "--config.suite=sick/catch",
        f"--config.meta_steps={_META_STEPS}",
        *_LONG_LIVES,
    )
    settings = dataclasses.replace(get_settings(), suite="sick/catch")
    discovery, states = make_discovery(settings), {}
    for what in ("parameters", "reward", "observation", "nothing"):
        workdir = bench.new(f"nan_{what}")
        finished(bench.disturbed(what, "launch.discover", f"--workdir={workdir}", *arguments))
        _, states[what] = final_state(workdir, discovery)
        assert_finite(states[what])
        lines = metrics(workdir)
        is_sick = [line["non_finite_agents"] for line in lines]
        expected = [int(what != "nothing" and i == SICK_AT) for i in range(_META_STEPS)]
        assert is_sick == expected, f"{what}: non_finite_agents is {is_sick}, expected {expected}"
        age = lines[SICK_AT + 1]["agents"]["life_steps"][SICK_AGENT]
        expected_age = STEPS if what != "nothing" else (SICK_AT + 2) * STEPS
        assert age == expected_age, f"{what}: the agent's age is {age}, expected {expected_age}"
    undisturbed = jax.tree.leaves(states.pop("nothing").rule)
    first, *others = states.values()
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)
    pairs = zip(jax.tree.leaves(first.rule), undisturbed, strict=True)
    assert any(np.any(a != b) for a, b in pairs), "nothing was disturbed"
    return Outcome(
        f"{', '.join(states)}: status 0, one agent left out of one meta-step and reborn; the rest"
        " is finite, and the same state whichever it was",
        "one agent's life",
    )


def nan_from_a_simulator(bench: Bench) -> Outcome:
    """NaN rewards from one agent's simulators, outside JAX, beside an agent that is well."""
    workdir, meta_steps = bench.new("nan_simulator"), 16
    suite = "corridor/nan,catch/4x3"
    finished(
        bench.disturbed(
            "nothing", "launch.discover", f"--workdir={workdir}", *mixed(suite, meta_steps)
        )
    )
    discovery = mixed_discovery(suite)
    assert newest_good(workdir, discovery) == meta_steps
    _, state = final_state(workdir, discovery)
    assert_finite(state)
    lines = metrics(workdir)
    sick = sum(line["non_finite_agents"] for line in lines)
    assert 1 <= sick < meta_steps, f"non_finite_agents adds up to {sick}"
    lives = [line["agents"]["life_steps"] for line in lines]
    assert [life[1] for life in lives] == [STEPS * (i + 1) for i in range(meta_steps)]
    reborn = sum(after[0] <= before[0] for before, after in itertools.pairwise(lives))
    assert reborn == sick - lines[-1]["non_finite_agents"], (reborn, sick)
    return Outcome(
        f"status 0, the agent was left out of {sick} of {meta_steps} meta-steps and reborn; the"
        " other one lives on, all is finite",
        f"{sick} lives of one agent",
    )


def nan_in_an_evaluation(bench: Bench) -> Outcome:
    """NaN rewards from the simulators of one of an evaluation's two tasks."""
    workdir = bench.new("nan_evaluation")
    finished(
        bench.evaluate(
            workdir,
            "--suite=corridor/nan,corridor/well",
            "--config.seeds=1",
            "--config.budget=2000",
        )
    )
    for task, is_finite in (("corridor_nan", False), ("corridor_well", True)):
        run = workdir / "runs" / "actor_critic@0.001" / task / "seed_0"
        found = json.loads((run / "result.json").read_text())["is_finite"]
        assert found == is_finite, f"{run}: is_finite is {found}, expected {is_finite}"
    return Outcome("status 0; the run is marked as not finite, the other one is not", "that run")


def jumping_clock(bench: Bench) -> Outcome:
    """The wall clock jumps by an hour or two every three seconds."""
    workdir = bench.new("clock")
    finished(bench.disturbed("clock", "launch.discover", f"--workdir={workdir}"))
    assert_as_uninterrupted(bench, workdir)
    _assert_timings_are_sane(workdir)
    return Outcome("status 0, the same state, all times and rates sane", "nothing")


def _assert_timings_are_sane(workdir: pathlib.Path) -> None:
    for line in metrics(workdir):
        for name in TIMINGS:
            assert line[name] > 0, f"{name} is {line[name]}"
        assert line["seconds"] < 600, f"seconds is {line['seconds']}"


def mixed(suite: str, meta_steps: int) -> tuple[str, ...]:
    """Flags of a discovery with one agent for each of two tasks, which live on."""
    return (
        f"--config.suite={suite}",
        f"--config.meta_steps={meta_steps}",
        "--config.checkpoint_interval=4",
        "--config.population.size=2",
        *_LONG_LIVES,
    )


def mixed_discovery(suite: str) -> Discovery:
    """That discovery, to read its checkpoints."""
    assert environments.NAN_EVERY  # Imported, so that the names are known.
    settings = get_settings()
    population = dataclasses.replace(settings.population, size=2)
    return make_discovery(dataclasses.replace(settings, suite=suite, population=population))
