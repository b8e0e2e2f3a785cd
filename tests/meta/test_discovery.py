"""Discovery: a population learns by the rule, and the rule from the population."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

import environments
from disco_common.checkpoints import Checkpoints
from meta.config import MetaConfig, PopulationConfig
from meta.estimators.meta_gradient import MetaGradient
from meta.population import DiscoveryState
from meta.run import run
from meta.sharding import all_gather_agents, make_mesh, shard_map_over_agents
from tests.meta.common import STEPS, Reporting, small_discovery

# Agents 0 and 2 play the one environment, 1 and 3 the other: two groups of two.
POPULATION = PopulationConfig(size=4, lifetimes=(4 * STEPS, 2 * STEPS), first_reset_after=2 * STEPS)
RATE = MetaConfig().learning_rate
CHAINS = ("short", "noisy_short", "long")


@pytest.fixture(scope="module")
def discovery() -> MetaGradient:
    """Of one seed; its meta-step is compiled once for all tests."""
    return small_discovery(population=POPULATION)


def copy(state: DiscoveryState) -> DiscoveryState:
    """On the host, before a meta-step takes the state's memory."""
    return jax.tree.map(np.array, state)


def flat(tree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0])


def states_after(discovery: MetaGradient, num_steps: int):
    """The first state and that after each meta-step, and each step's metrics, on the host."""
    state = discovery.init()
    states, metrics = [copy(state)], []
    for _ in range(num_steps):
        state, report = discovery.step(state)
        states.append(copy(state))
        metrics.append(jax.device_get(report))
    return states, metrics


@pytest.fixture(scope="module")
def history(discovery):
    return states_after(discovery, 8)


def test_does_not_recompile_and_reports_finite_numbers(discovery, tmp_path):
    compiled, reports = [], []

    def count(event: str, duration_secs: float, **_: str | int):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    def go_on(meta_steps: int):
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        run(
            discovery,
            meta_steps=meta_steps,
            checkpoints=checkpoints,
            checkpoint_interval=4,
            log_interval=1,
            observer=Reporting(reports),
        )
        checkpoints.close()

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        go_on(2)
        compiled.clear()
        go_on(10)  # With resets and checkpoints; the run is a continued one.
        assert not compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(count)

    assert [report["meta_step"] for report in reports] == list(range(1, 11))
    assert sum(report["num_resets"] for report in reports) > 0
    for report in reports:
        assert report["agents"]["task"] == ["catch/5x5", "catch/4x3"] * 2
        numbers = [
            report[name] for name in ("meta_loss", "validation_reward", "meta_gradient_norm")
        ]
        assert np.all(np.isfinite(numbers))
        assert report["non_finite_agents"] == 0
        json.dumps(report, allow_nan=False)


def test_rule_moves_by_the_mean_of_each_agents_own_adam(history):
    states, _ = history
    before, after = states[0], states[1]
    expected = mean_of_own_adams(after, [(0, 0), (0, 1), (1, 0), (1, 1)])
    assert_moved(before.rule, after.rule, expected)
    # All of it moves, but not in the first step: the initial state of the lifetime RNN is 0.
    for first, last in zip(*(jax.tree.leaves(states[i].rule) for i in (0, -1)), strict=True):
        assert np.any(first != last)


def test_average_follows_the_rule(history):
    """A plain mean at first; here the decay of 0.98 is beyond the run."""
    states, _ = history
    rules = [jax.tree.leaves(state.rule) for state in states]
    for index, state in enumerate(states[1:], 1):
        for leaf, *seen in zip(jax.tree.leaves(state.average), *rules[1 : index + 1], strict=True):
            np.testing.assert_allclose(leaf, np.mean(seen, axis=0), rtol=1e-5, atol=1e-6)


def assert_moved(before, after, expected):
    """As far as float32 resolves the move."""
    for x, y, move in zip(*map(jax.tree.leaves, (before, after, expected)), strict=True):
        resolution = np.spacing(np.max(np.abs([x, y])))
        np.testing.assert_allclose(y - x, move, rtol=1e-3, atol=max(resolution, 1e-6 * RATE))


def adam_of(state: DiscoveryState, group: int) -> Any:
    """The Adam states of a group's agents."""
    chain: Any = state.groups[group].meta_optimizer
    return chain[1]


def mean_of_own_adams(after: DiscoveryState, agents: list[tuple[int, int]]):
    """The rule's first update, from the Adam states of the agents (group, number) after it."""
    updates = []
    for group, number in agents:
        adam = adam_of(after, group)
        mu, nu = adam.mu[number], adam.nu[number]
        assert adam.count[number] == 1
        assert np.linalg.norm(mu / 0.1) < 1 + 1e-5  # Clipped before Adam.
        updates.append((mu / 0.1) / (np.sqrt(nu / 0.001) + 1e-8))
    _, unravel = ravel_pytree(after.rule)
    return unravel(-RATE * np.mean(updates, axis=0))


def test_agents_are_reset_when_their_budget_is_spent(history):
    states, metrics = history
    num_resets = 0
    for before, after, report in zip(states, states[1:], metrics, strict=False):
        for old, new, seen in zip(before.groups, after.groups, report, strict=True):
            for i in range(2):
                was, now = (jax.tree.map(lambda x, i=i: x[i], g) for g in (old, new))
                over = was.lifetime.steps + STEPS >= was.lifetime.budget
                assert bool(seen["reset"][i]) == over
                assert now.meta_optimizer[1].count == was.meta_optimizer[1].count + 1
                if over:
                    num_resets += 1
                    assert_initial(now)
                    assert now.lifetime.resets == was.lifetime.resets + 1
                    assert now.lifetime.budget in POPULATION.lifetimes
                else:
                    assert now.lifetime.steps == was.lifetime.steps + STEPS
                    assert now.lifetime.budget == was.lifetime.budget
                    assert now.agent.updates == was.agent.updates + 2
                    assert now.agent.replay.num_unrolls == was.agent.replay.num_unrolls + 2
    assert num_resets >= 4
    first = states[0].groups
    budgets = np.concatenate([group.lifetime.budget for group in first])
    assert budgets.min() >= POPULATION.first_reset_after
    assert len(set(budgets)) == 4  # Staggered.


def assert_initial(member):
    agent = member.agent
    assert agent.updates == 0
    assert agent.replay.num_unrolls == 0
    assert member.lifetime.steps == 0
    assert np.all(agent.actor.episode_return == 0)
    nothing = [agent.learner.optimizer, member.value.optimizer]
    nothing += [agent.learner.rule_state.memory.lifetime]
    assert all(np.all(x == 0) for x in jax.tree.leaves(nothing))
    assert member.value.advantage.decay_product == 1
    jax.tree.map(
        np.testing.assert_array_equal, agent.learner.params, agent.learner.rule_state.target_params
    )


def test_an_agent_that_is_reset_has_new_parameters(history):
    states, metrics = history
    resets = [
        (step + 1, number)
        for step, report in enumerate(metrics)
        for number in range(2)
        if report[0]["reset"][number]
    ]
    initial = [(0, 0), (0, 1), *resets]
    weights = [
        np.concatenate([x[number].ravel() for x in parameters(states[step])])
        for step, number in initial
    ]
    for i, one in enumerate(weights):
        for other in weights[:i]:
            assert not np.any((one == other) & (one != 0))


def parameters(state: DiscoveryState) -> list[np.ndarray]:
    """Of the first group."""
    return jax.tree.leaves(state.groups[0].agent.learner.params)


def test_same_seed_same_result_and_other_seed_other_result(discovery, history):
    again, _ = states_after(discovery, 8)
    jax.tree.map(np.testing.assert_array_equal, again, history[0])

    other = copy(small_discovery(population=POPULATION, seed=1).init())
    assert not np.array_equal(parameters(other)[-1], parameters(history[0][0])[-1])
    budgets = [group.lifetime.budget for group in other.groups]
    assert not np.array_equal(budgets, [group.lifetime.budget for group in history[0][0].groups])


def test_a_non_finite_meta_gradient_is_masked_out_and_its_agent_reset(discovery, history):
    healthy = history[0]
    params = jax.tree.map(np.copy, healthy[0].groups[0].agent.learner.params)
    for leaf in jax.tree.leaves(params):
        leaf[1] = np.nan
    start, params = jax.tree.map(jnp.asarray, (healthy[0], params))
    agents = start.groups[0]
    learner = dataclasses.replace(agents.agent.learner, params=params)
    agents = dataclasses.replace(agents, agent=dataclasses.replace(agents.agent, learner=learner))
    before = dataclasses.replace(start, groups=(agents, start.groups[1]))

    state, metrics = discovery.step(jax.device_put(before, discovery.sharding))
    after = copy(state)

    assert [list(report["finite"]) for report in metrics] == [[1, 0], [1, 1]]
    assert [list(report["reset"]) for report in metrics] == [[0, 1], [0, 0]]
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(after))
    # Its meta-optimiser is as it was; the others, and their updates, as without it.
    masked, unmasked = adam_of(after, 0), adam_of(healthy[1], 0)
    assert list(masked.count) == [1, 0]
    assert all(np.all(x[1] == 0) for x in jax.tree.leaves(masked.mu))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), masked, unmasked)
    jax.tree.map(np.testing.assert_array_equal, after.groups[1], healthy[1].groups[1])
    expected = mean_of_own_adams(healthy[1], [(0, 0), (1, 0), (1, 1)])
    assert_moved(before.rule, after.rule, expected)
    member = jax.tree.map(lambda x: x[1], after.groups[0])
    assert_initial(member)
    assert member.lifetime.resets == 1
    # Its returns are left out of the report.
    for group in metrics:
        group["episodes"] = np.array([2.0, 2.0])
        group["episode_return_sum"] = np.array([3.0, 3.0])
    metrics[0]["episode_return_sum"][1] = np.nan
    report = discovery.summarize([metrics])
    assert report["episode_return"] == 1.5
    json.dumps(report, allow_nan=False)


MIXED = "catch/5x5,catch/4x3,catch/6x3,delayed_chain/short"


def test_gathered_leaves_keep_their_shapes():
    rows = 2 * jax.device_count()
    tree = {
        "reward": jnp.arange(3.0 * rows).reshape(rows, 3),
        "finite": jnp.arange(1.0 * rows),
        "task": jnp.arange(rows),
    }
    mesh = make_mesh(1, None)
    gathered = jax.jit(shard_map_over_agents(mesh, all_gather_agents, "a", P()))(tree)
    jax.tree.map(np.testing.assert_array_equal, gathered, tree)


def test_every_group_of_tasks_has_agents():
    """Also those whose tasks stand behind as many as there are agents."""
    discovery = small_discovery(MIXED, population=PopulationConfig(size=5, lifetimes=(STEPS,)))
    assert [group.indices.tolist() for group in discovery.groups] == [[0, 4], [1], [2], [3]]
    few = "grid57,gymnax/CartPole-v1"
    tasks = tuple(task for name in few.split(",") for task in environments.suite(name))
    discovery = small_discovery(tasks, population=PopulationConfig(size=20, lifetimes=(STEPS,)))
    assert [len(group.indices) for group in discovery.groups] == [19, 1]
    assert discovery.groups[1].names == ("gymnax/CartPole-v1",)
    assert discovery.groups[1].indices.tolist() == [19]


def test_fewer_agents_than_groups_are_refused():
    with pytest.raises(
        ValueError, match=r"population\.size is 3; expected at least 4, .*chain/short"
    ):
        small_discovery(MIXED, population=PopulationConfig(size=3, lifetimes=(STEPS,)))


@pytest.fixture(scope="module")
def on_chains():
    """Two agents on three tasks."""
    suite = ",".join(f"delayed_chain/{name}" for name in CHAINS)
    population = PopulationConfig(size=2, lifetimes=(STEPS, 2 * STEPS))
    return states_after(small_discovery(suite, population=population), 9)


@pytest.mark.slow
def test_agents_train_on_all_tasks_and_it_is_counted(on_chains):
    states, metrics = on_chains
    counts = np.zeros(len(CHAINS), int)
    for before, after, (report,) in zip(states, states[1:], metrics, strict=False):
        tasks = before.groups[0].lifetime.task
        assert len(set(tasks.tolist())) == 2
        np.add.at(counts, tasks, 1)
        assert report["task"].tolist() == tasks.tolist()
        assert after.task_meta_steps[0].tolist() == counts.tolist()
    assert counts.min() >= 4


def validation_ages(state: DiscoveryState) -> list[int]:
    """The number of ages of each agent's validation episodes, of the first group."""
    validation = state.groups[0].validation
    assert validation is not None
    return [len(np.unique(ages)) for ages in validation.episode_length]


@pytest.mark.slow
def test_validation_episodes_are_of_all_ages_only_if_they_go_on_from_training(on_chains):
    """A chain's episodes have one length, so that all validation episodes begin together."""
    for after in on_chains[0][1:]:
        assert validation_ages(after) == [1, 1]
    population = PopulationConfig(size=1, lifetimes=(100 * STEPS,))
    discovery = small_discovery(
        "delayed_chain/short", population=population, validation_from_training=True
    )
    for after in states_after(discovery, 3)[0][1:]:
        assert validation_ages(after)[0] > 1


def test_meta_config_refused():
    with pytest.raises(ValueError, match=r"meta.segment_length is 3; expected a divisor .* \(20\)"):
        MetaConfig(segment_length=3)
    with pytest.raises(ValueError, match=r"meta\.num_updates is 0; expected at least 1"):
        MetaConfig(num_updates=0)
    with pytest.raises(ValueError, match=r"meta\.adam_b2 is 1\.0; expected at least 0, below 1"):
        MetaConfig(adam_b2=1.0)
    with pytest.raises(ValueError, match=r"meta\.average_decay is 1; expected at least 0, below 1"):
        MetaConfig(average_decay=1)


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    """What `tests.meta.devices` wrote.

    In float64: in float32 devices change the order of sums, and Adam, which divides a gradient by
    its size, makes the rounding of a vanishing one as large as any other's update (4e-6 of the
    rule's norm after three meta-steps, 2e-5 in single entries).
    """
    output = tmp_path_factory.mktemp("devices") / "rules.npz"
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    subprocess.run(
        [sys.executable, "-m", "tests.meta.devices", str(output)],
        cwd=pathlib.Path(__file__).parents[2],
        env=environment,
        check=True,
    )
    with np.load(output) as file:
        return dict(file)


@pytest.mark.thorough
def test_devices_and_agents_at_once_do_not_change_the_result(devices):
    one = devices["1"]
    assert one.dtype == np.float64
    # A vanishing gradient is rounding, 1e-14, which Adam divides by 1e-8: three moves of 1e-3 times
    # that are up to 1e-9. Another key or task would move some entries by 1e-3.
    for number in ("8", "4, two per agent"):
        assert np.max(np.abs(devices[number] - one)) < 1e-8


@pytest.mark.thorough
def test_devices_send_each_other_the_rules_update_once_and_metrics(devices):
    update = 8 * (devices["1"].size + 1)  # And the number of agents in the mean.
    assert update <= np.max(devices["sizes"])
    assert np.sum(devices["sizes"]) < update + 6_000
    assert devices["kinds"][np.argmax(devices["sizes"])] == "all-reduce"


@pytest.mark.thorough
def test_devices_of_one_agent_share_its_work(devices):
    alone, shared = devices["flops"]
    assert shared < 0.7 * alone
