"""Stacked frames, memories and burn-in: what is learned from is what was acted by."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import history
from agents.history import History, HistorySpec
from agents.networks import NetworkConfig
from agents.protocol import Batch, ReplaySpec, Requirements, UpdateSpec
from agents.rule_agent import to_trajectory
from tests.agents.common import Corridor, HostCorridors, network_of
from tests.training.common import logits_of, network_agent
from training import collection, replay, replay_sampling
from training.collection import concatenate
from training.host_collection import HostActor

BATCH, LENGTH, EPISODE = 3, 7, 5
AGENTS = {
    "plain": {},
    "stacked": {"frame_stack": 4},
    "stacked longer than an unroll": {"frame_stack": LENGTH + 4},
    "memory": {"memory": 6},
    "memory and stack": {"memory": 6, "frame_stack": 3},
    "burn-in": {"memory": 6, "burn_in": 2},
    "burn-in as long as an unroll": {"memory": 6, "burn_in": LENGTH, "frame_stack": 2},
}


def make(memory: int = 0, frame_stack: int = 1, burn_in: int = 0):
    """A network whose policy depends on all that it sees, and its parameters."""
    config = NetworkConfig(torso=(8,), memory=memory)
    spec = Corridor().observation_spec()
    network = network_of(config, spec, 2, {"logits": (2,)}, frame_stack, burn_in)
    params = network.init(jax.random.key(0))
    return network, jax.tree.map(lambda x: x + jnp.sign(x + 1e-9) * 0.3, params)


def requirements(network, capacity: int) -> Requirements:
    """Of an agent that replays unrolls; the capacity is a number of them."""
    update = UpdateSpec(batch_size=BATCH, num_replayed=BATCH)
    return Requirements(
        BATCH, LENGTH, network.history, ReplaySpec(capacity * LENGTH), updates=(update,)
    )


def from_jax(network, params, count: int):
    """`count` consecutive batches from the JAX environment."""
    environment, task = Corridor(EPISODE), jnp.asarray(True)
    agent = network_agent(network)
    actor = collection.start(agent, environment, task, jax.random.key(1), BATCH)
    rollout = jax.jit(
        lambda actor, key: collection.collect(agent, environment, task, params, actor, key, LENGTH)
    )
    for i in range(count):
        actor, trajectory, _ = rollout(actor, jax.random.key(2 + i))
        yield trajectory


def from_host(network, params, count: int):
    """The same from the host environment."""
    actor = HostActor(network_agent(network), HostCorridors(EPISODE), True, BATCH, seed=1)
    for i in range(count):
        yield actor.collect(params, jax.random.key(2 + i), LENGTH).batch
    actor.close()


@pytest.mark.parametrize("source", [from_jax, from_host])
@pytest.mark.parametrize("seen", AGENTS.values(), ids=AGENTS)
def test_an_unroll_gives_the_logits_that_acted(source, seen):
    network, params = make(**seen)
    spread = []
    for trajectory in source(network, params, 3):
        logits = logits_of(network, params, trajectory)
        assert logits.shape == (LENGTH + 1, BATCH, 2)
        np.testing.assert_allclose(logits[:-1], trajectory.extras["behaviour_logits"], atol=1e-5)
        spread.append(np.std(trajectory.extras["behaviour_logits"]))
    assert min(spread) > 1e-2


@pytest.mark.parametrize("seen", AGENTS.values(), ids=AGENTS)
def test_the_host_replay_gives_back_what_was_put_in(seen):
    network, params = make(**seen)
    given = list(from_host(network, params, 9))
    spec = requirements(network, 4 * BATCH - 1)
    kept = replay.init(replay.make_layout(spec), given[0], np)
    for count, trajectory in enumerate(given, 1):
        kept = replay.insert(spec, kept, trajectory)
        number = replay.num_sequences(spec, kept, spec.updates[0])
        assert number == min(count, 4) * BATCH
        index = np.random.default_rng(count).integers(number, size=6 * BATCH)
        kept, sample, _ = replay_sampling.sample(spec, kept, spec.updates[0], index)
        logits = logits_of(network, params, sample)
        np.testing.assert_allclose(logits[:-1], sample.extras["behaviour_logits"], atol=1e-5)
        whole = concatenate(given[max(0, count - 4) : count])
        drawn = {_identity(sample, i): i for i in range(6 * BATCH)}
        known = {_identity(whole, i): i for i in range(whole.action.shape[1])}
        assert set(drawn) <= set(known)
        if count == 9:
            assert len(drawn) > 2 * BATCH
        for name, i in drawn.items():
            for field in ("action", "reward", "discount", "last", "mask", "extras"):
                a, b = getattr(sample, field), getattr(whole, field)
                jax.tree.map(
                    lambda a, b, i=i, j=known[name]: np.testing.assert_array_equal(
                        a[:, i], b[:, j]
                    ),
                    a,
                    b,
                )
            jax.tree.map(
                lambda a, b, i=i, j=known[name]: np.testing.assert_array_equal(a[i], b[j]),
                sample.memory,
                whole.memory,
            )


@pytest.mark.parametrize("seen", AGENTS.values(), ids=AGENTS)
def test_the_device_replay_gives_back_what_was_put_in(seen):
    network, params = make(**seen)
    given = list(from_jax(network, params, 2))
    spec = requirements(network, 2 * BATCH)
    kept = replay.init(replay.make_layout(spec), given[0])
    for trajectory in given:
        kept = replay.insert(spec, kept, trajectory)
    index = jax.random.randint(jax.random.key(0), (8,), 0, 2 * BATCH)
    _, sample, _ = replay_sampling.sample(spec, kept, spec.updates[0], index)
    logits = logits_of(network, params, sample)
    np.testing.assert_allclose(logits[:-1], sample.extras["behaviour_logits"], atol=1e-5)


def _identity(trajectory: Batch, column: int) -> bytes:
    """Of a trajectory, by its own random observations."""
    observation = trajectory.observation
    rows = observation.frames if isinstance(observation, History) else observation
    return np.asarray(rows[-LENGTH - 1 :, column]).tobytes()


def test_stacks_hold_nothing_from_before_the_episode():
    seen = HistorySpec(frame_stack=3)
    numbers = jnp.arange(1.0, 8.0)[:, None]
    given = History(frames=numbers, age=jnp.asarray([0, 1, 2, 3, 0])[:, None])
    stacked = history.stack(seen, Corridor().observation_spec(), given)
    assert stacked[:, 0].tolist() == [[0, 0, 3], [0, 3, 4], [3, 4, 5], [4, 5, 6], [0, 0, 7]]


def test_no_gradient_flows_through_burn_in():
    network, params = make(memory=6, burn_in=3)
    (trajectory,) = from_jax(network, params, 1)

    def loss(before):
        observation = trajectory.observation
        rows = observation.frames.at[:3].add(before)
        changed = dataclasses.replace(
            trajectory, observation=History(frames=rows, age=observation.age + 1)
        )
        return jnp.sum(network.unroll(params, to_trajectory(changed))["logits"])

    zero = jnp.float32(0.0)
    assert jax.grad(loss)(zero) == 0.0
    assert loss(zero) != loss(zero + 1.0)
