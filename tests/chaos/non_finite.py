"""NaN in one agent, and a clock that jumps."""

import dataclasses
import itertools
import json
import pathlib

import jax
import numpy as np

from meta.estimators.meta_gradient import MetaGradient
from tests.chaos import environments
from tests.chaos.bench import (
    Bench,
    Outcome,
    assert_as_uninterrupted,
    assert_finite,
    finished,
    newest_good,
)
from tests.chaos.driver import NAN_AGENT, NAN_AT
from tests.launch.discover_tiny import get_settings
from tests.launch.tiny_runs import TIMINGS, discovery_of, final_state, metrics
from tests.meta.common import STEPS

_META_STEPS = 8
_NO_RESETS = (  # Experience budgets that are longer than the runs.
    "--config.population.lifetimes=(1000000,)",
    "--config.population.first_reset_after=1000000",
)


def nan_in_an_agent(bench: Bench) -> Outcome:
    """Set one agent's parameters, rewards or observations to NaN, in JAX environments.

    The agent's meta-gradient is masked out, and the agent is reset. The origin of the NaN therefore
    does not matter: all runs end with the same state, bit for bit.
    """
    arguments = (
        "--config.suite=faulty/catch",
        f"--config.meta_steps={_META_STEPS}",
        *_NO_RESETS,
    )
    settings = dataclasses.replace(get_settings(), suite="faulty/catch")
    discovery, states = discovery_of(settings), {}
    for what in ("parameters", "reward", "observation", "nothing"):
        workdir = bench.new(f"nan_{what}")
        finished(bench.disturbed(what, "launch.discover", f"--workdir={workdir}", *arguments))
        _, states[what] = final_state(workdir, discovery)
        assert_finite(states[what])
        lines = metrics(workdir)
        masked = [line["non_finite_agents"] for line in lines]
        expected = [int(what != "nothing" and i == NAN_AT) for i in range(_META_STEPS)]
        assert masked == expected, f"{what}: non_finite_agents is {masked}, expected {expected}"
        steps = lines[NAN_AT + 1]["agents"]["steps_since_reset"][NAN_AGENT]
        expected_steps = STEPS if what != "nothing" else (NAN_AT + 2) * STEPS
        assert steps == expected_steps, (
            f"{what}: steps_since_reset is {steps}, expected {expected_steps}"
        )
    undisturbed = jax.tree.leaves(states.pop("nothing").rule)
    first, *others = states.values()
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)
    pairs = zip(jax.tree.leaves(first.rule), undisturbed, strict=True)
    assert any(np.any(a != b) for a, b in pairs), "nothing was disturbed"
    return Outcome(
        f"{', '.join(states)}: status 0, one agent masked out of one meta-step and reset; the rest"
        " is finite, and the final state is the same for all",
        "one agent",
    )


def nan_from_a_simulator(bench: Bench) -> Outcome:
    """Return NaN rewards from the simulators of one of two agents."""
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
    masked = sum(line["non_finite_agents"] for line in lines)
    assert 1 <= masked < meta_steps, f"non_finite_agents adds up to {masked}"
    steps = [line["agents"]["steps_since_reset"] for line in lines]
    assert [by_agent[1] for by_agent in steps] == [STEPS * (i + 1) for i in range(meta_steps)]
    resets = sum(after[0] <= before[0] for before, after in itertools.pairwise(steps))
    assert resets == masked - lines[-1]["non_finite_agents"], (resets, masked)
    return Outcome(
        f"status 0, the agent was masked out of {masked} of {meta_steps} meta-steps and reset; the"
        " other one was not, and all numbers are finite",
        f"one agent, {masked} times",
    )


def nan_in_an_evaluation(bench: Bench) -> Outcome:
    """Return NaN rewards from the simulators of one of an evaluation's two tasks."""
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
        run = workdir / "runs" / "hand_set" / task / "seed_0"
        found = json.loads((run / "result.json").read_text())["is_finite"]
        assert found == is_finite, f"{run}: is_finite is {found}, expected {is_finite}"
    return Outcome("status 0; the run is marked as not finite, the other one is not", "that run")


def jumping_clock(bench: Bench) -> Outcome:
    """Make the wall clock jump by an hour or two every three seconds."""
    workdir = bench.new("clock")
    finished(bench.disturbed("clock", "launch.discover", f"--workdir={workdir}"))
    assert_as_uninterrupted(bench, workdir)
    _assert_timings_are_plausible(workdir)
    return Outcome("status 0, the same state, all times and rates plausible", "nothing")


def _assert_timings_are_plausible(workdir: pathlib.Path) -> None:
    for line in metrics(workdir):
        for name in TIMINGS:
            assert line[name] > 0, f"{name} is {line[name]}"
        assert line["seconds"] < 600, f"seconds is {line['seconds']}"


def mixed(suite: str, meta_steps: int) -> tuple[str, ...]:
    """Return flags of a discovery with one agent for each of two tasks, without resets."""
    return (
        f"--config.suite={suite}",
        f"--config.meta_steps={meta_steps}",
        "--config.checkpoint_interval=4",
        "--config.population.size=2",
        *_NO_RESETS,
    )


def mixed_discovery(suite: str) -> MetaGradient:
    """Return that discovery, to read its checkpoints."""
    assert environments.NAN_EVERY  # The import registers the environments.
    settings = get_settings()
    population = dataclasses.replace(settings.population, size=2)
    return discovery_of(dataclasses.replace(settings, suite=suite, population=population))
