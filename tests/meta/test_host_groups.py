"""Discovery with agents of host environments, alone and beside those of JAX environments."""

import contextlib
import dataclasses
import itertools
import threading
from typing import Any

import jax
import numpy as np
import pytest

import environments
from agents.rule_agent import RuleAgentConfig
from disco_common.checkpoints import Checkpoints
from environments import SimulatorError, output_checks
from environments.processes import SerialSimulators
from meta.config import DiscoveryConfig, MetaConfig, PopulationConfig, ValueFunctionConfig
from meta.estimators.meta_gradient import MetaGradient
from meta.host_groups import HostAgent
from meta.run import restore, run
from tests.agents.common import HostCorridors
from tests.meta.common import AGENT, NUM_UPDATES, STEPS, Reporting, small_rule
from training import collection, memory_budget
from training.host_pipeline import DeviceClock

# Agents 0 and 2 are in the corridors, one each; 1 and 3 play Catch.
TASKS = (
    environments.Environment("corridor/ends", HostCorridors(3), True),
    environments.make("catch/4x3"),
    environments.Environment("corridor/cut", HostCorridors(3), False),
)


def make(
    lifetime: int = 3,
    agent: RuleAgentConfig = AGENT,
    tasks=(*TASKS, TASKS[1]),
    size: int = 4,
    **meta: Any,
) -> MetaGradient:
    config = DiscoveryConfig(
        agent=agent,
        value_function=ValueFunctionConfig(hidden=(8,)),
        population=PopulationConfig(
            size=size, lifetimes=(lifetime * STEPS,), first_reset_after=lifetime * STEPS
        ),
        meta=dataclasses.replace(
            MetaConfig(num_updates=NUM_UPDATES, validation_trajectories=2, validation_length=6),
            **meta,
        ),
    )
    return MetaGradient(config, tasks, small_rule())


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """A run of seven meta-steps, its reports, and what was compiled after the second one."""
    discovery = make()
    folder = tmp_path_factory.mktemp("run")
    compiled, reports = [], []

    def count(event: str, duration_secs: float, **_: str | int):
        if event == "/jax/core/compile/backend_compile_duration" and len(reports) >= 2:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(count)
    checkpoints = Checkpoints(folder)
    state = run(
        discovery,
        meta_steps=7,
        checkpoints=checkpoints,
        checkpoint_interval=7,
        log_interval=1,
        observer=Reporting(reports),
    )
    jax.monitoring.unregister_event_duration_listener(count)
    checkpoints.close()
    return state, reports, compiled, folder


def test_every_agent_has_a_finite_meta_gradient_and_moves_the_rule(outcome):
    state, reports, _, _ = outcome
    assert [report["non_finite_agents"] for report in reports] == [0] * 7
    assert all(np.isfinite(report["agents"]["validation_reward"]).all() for report in reports)
    before, after = jax.tree.leaves(small_rule()), jax.tree.leaves(state.rule)
    assert any(np.max(np.abs(a - b)) > 1e-4 for a, b in zip(after, before, strict=True))
    names = reports[0]["agents"]["task"]
    assert names == ["corridor/ends", "catch/4x3", "corridor/cut", "catch/4x3"]
    for report in reports:  # Steps pay 1, 2, 3.
        assert 1.0 < min(report["agents"]["validation_reward"][::2]) < 3.0


def test_nothing_is_compiled_after_the_second_meta_step(outcome):
    _, reports, compiled, _ = outcome
    assert sum(report["num_resets"] for report in reports[2:]) > 0
    assert compiled == []


def test_agents_that_are_reset_get_new_environments(outcome):
    _, reports, _, _ = outcome
    steps = [report["agents"]["steps_since_reset"] for report in reports]
    assert any(after[0] < before[0] for before, after in itertools.pairwise(steps))


def test_idle_time_is_reported(outcome):
    _, reports, _, _ = outcome
    for report in reports:
        assert 0.0 <= report["device_idle_fraction"] <= 1.0
        assert report["engine_seconds"] > 0.0
        assert report["policy_seconds"] > 0.0
        assert report["simulator_restarts"] == 0.0
        assert report["memory_gib"] > 0.0


@pytest.mark.slow
def test_all_groups_work_counts_as_the_devices(monkeypatch):
    """Two groups of host environments, and one in JAX: none idles while another one computes."""
    followed = []
    follow = DeviceClock.follow

    def count(clock, dispatch, watched):
        followed.append(clock)
        return follow(clock, dispatch, watched)

    monkeypatch.setattr(DeviceClock, "follow", count)
    discovery = make(tasks=(*TASKS[:2], environments.Environment("hall/1", HostCorridors(5), True)))
    with contextlib.closing(discovery):
        _, metrics = discovery.step(discovery.init())
        # Updates and a conclusion of each host group, the JAX group's part, the rule's update.
        assert len(followed) == 2 * (NUM_UPDATES + 1) + 1 + 1
        assert len(set(followed)) == 1
        assert 0.0 <= discovery.summarize([metrics])["device_idle_fraction"] < 1.0


@pytest.mark.slow
def test_a_run_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    threads, closed, steps = threading.active_count(), [], SerialSimulators.step
    monkeypatch.setattr(SerialSimulators, "close", lambda self: closed.append(self))

    def step(self, action):
        if len(failed) == 60:
            raise SimulatorError("It is broken.")
        failed.append(0)
        return steps(self, action)

    failed = []
    monkeypatch.setattr(SerialSimulators, "step", step)
    monkeypatch.setattr(output_checks, "_checked", set())  # Other tests have these tasks, too.
    discovery = make()
    with (
        contextlib.closing(Checkpoints(tmp_path)) as checkpoints,
        pytest.raises(SimulatorError, match="broken"),
    ):
        run(discovery, meta_steps=3, checkpoints=checkpoints, checkpoint_interval=3, log_interval=1)
    # Two agents' halves, twice, and what each task's declared outputs were checked with.
    assert len(closed) == len({id(one) for one in closed}) == 2 * 4 + 2
    assert threading.active_count() <= threads + 1


def test_replays_are_checked_together_and_before_the_start(monkeypatch):
    monkeypatch.setattr(memory_budget, "free_memory", lambda: 1_000)
    discovery = make(tasks=(TASKS[0], environments.Environment("hall/1", HostCorridors(5), True)))
    with pytest.raises(ValueError, match=r"GiB \(corridor\), .* GiB \(hall\)"):
        discovery.check()


def test_a_burn_in_longer_than_validation_is_refused():
    network = dataclasses.replace(AGENT.network, memory=4)
    agent = dataclasses.replace(AGENT, network=network, unroll_length=8, burn_in=7)
    with pytest.raises(ValueError, match=r"burn_in of corridor is 7; .*validation_length \(6\)"):
        make(agent=agent)


@pytest.mark.slow
def test_a_run_continues_from_its_checkpoint(outcome):
    state, _, _, folder = outcome
    discovery = make()
    checkpoints = Checkpoints(folder)
    restored = restore(discovery, checkpoints)
    assert restored is not None
    step, again = restored
    assert step == 7
    jax.tree.map(np.testing.assert_array_equal, again.rule, state.rule)
    after, metrics = discovery.step(again)
    assert int(after.meta_step) == 8
    assert all(np.asarray(report["finite"]).all() for report in metrics)
    discovery.close()
    checkpoints.close()


# Three trajectories in two environments: two unrolls of five steps, as those that are learned from.
FROM_TRAINING: dict[str, Any] = {
    "validation_from_training": True,
    "validation_trajectories": 3,
    "validation_length": AGENT.unroll_length,
}
LONG = environments.Environment("corridor/long", HostCorridors(1_000), True)


def test_validation_goes_on_from_training_and_training_from_validation():
    discovery = make(tasks=(LONG,), size=1, **FROM_TRAINING)
    (group,), meta = discovery.groups, discovery.config.meta
    params = jax.jit(group.agent.init)(jax.random.key(0)).params
    with contextlib.closing(HostAgent(group, True, (0,), meta, 1)) as agent:

        def learned(unroll: int):
            agent.pipeline.request(params, unroll)
            return agent.take(unroll)

        before, _ = learned(0)
        unrolls, validation = agent.validate(params, jax.random.key(1), 1)
        after, batch = learned(3)
        for _ in range(6):
            _, replayed = learned(4)
            batch = collection.concatenate([batch, replayed])

    steps = [part.batch.observation[..., 0] for part in (before, *unrolls, after)]
    for number, row in enumerate(steps):  # As one episode of each environment.
        np.testing.assert_array_equal(row[:, 0], np.arange(6) + 5 * number)
    np.testing.assert_array_equal(validation.observation[0, :, 0], [5, 5, 10])
    # What is replayed has no gap either, and the validation's steps are among it.
    first, last = batch.observation[[0, -1], :, 0]
    np.testing.assert_array_equal(last - first, 5)
    assert {5, 10} & set(first)


@pytest.mark.slow
def test_agents_that_validate_in_their_training_environments_have_no_others(monkeypatch):
    """And what they spend there is of their budget."""
    started, start = [], HostCorridors.start

    def count(self, *arguments):
        started.append(arguments[1])
        return start(self, *arguments)

    monkeypatch.setattr(HostCorridors, "start", count)
    discovery = make(100, tasks=(LONG,), size=1, **FROM_TRAINING)
    with contextlib.closing(discovery):
        state, _ = discovery.step(discovery.init())
        _, (metrics,) = discovery.step(state)
    assert started == [1, 1]  # The halves of two training environments.
    assert metrics["steps_since_reset"].tolist() == [2 * (NUM_UPDATES + 2) * AGENT.steps_per_update]
    assert np.isfinite(metrics["meta_gradient_norm"]).all()
    # The steps of a corridor pay 1, 2, 3, ...: the second validation follows on 30 of them.
    rewards = [*range(31, 36), *range(31, 36), *range(36, 41)]
    assert float(metrics["validation_reward"][0]) == pytest.approx(np.mean(rewards))


def test_validation_in_training_environments_has_their_unrolls():
    changed: Any = FROM_TRAINING | {"validation_length": 6}
    with pytest.raises(
        ValueError, match=r"validation_length is 6; expected agent.unroll_length \(5"
    ):
        make(**changed)
