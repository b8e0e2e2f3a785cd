"""Replays that do not fit in memory are refused, whoever bounds it."""

import dataclasses
from typing import Any, cast

import jax
import pytest

import environments
from agents.protocol import ReplaySpec
from agents.random_agent import RandomAgent
from tests.agents.common import HostCorridors
from training import iteration, memory_budget
from training.memory_budget import require_memory_for_replays, require_memory_for_runs


@pytest.fixture
def free(monkeypatch):
    """Sets the free memory, of which all may be taken."""
    monkeypatch.setattr(memory_budget, "_MARGIN", 1.0)
    return lambda value: monkeypatch.setattr(memory_budget, "free_memory", lambda: value)


def test_replays_must_fit_together(free):
    free(300)
    require_memory_for_replays({"here": 200, "there": 100})
    require_memory_for_replays({})
    free(150)
    with pytest.raises(ValueError, match=r"replay_capacity .*here.*there.* 50% of that"):
        require_memory_for_replays({"here": 200, "there": 100})


@dataclasses.dataclass(frozen=True)
class Replaying:
    """The random policy with a learning state and a replay."""

    random: RandomAgent
    replay: ReplaySpec = ReplaySpec(4000)
    initial_memory = property(lambda self: self.random.initial_memory)
    act = property(lambda self: self.random.act)
    update = property(lambda self: self.random.update)

    @property
    def requirements(self):
        return dataclasses.replace(self.random.requirements, replay=self.replay)

    def init(self, key):
        del key
        return {"weights": jax.numpy.zeros(10_000)}

    def acting_state(self, state):
        del state
        return ()


@pytest.mark.parametrize(("devices", "per_device"), [(1, 5), (2, 3)])
def test_runs_that_are_trained_together_must_fit_together(free, monkeypatch, devices, per_device):
    """Their states and replays on all devices, and the copy that is saved."""
    task = environments.make("catch/5x5")
    assert isinstance(task.dynamics, environments.JaxEnvironment)
    dynamics, agent = task.dynamics, cast(Any, Replaying(RandomAgent(task.dynamics, 2, 10)))
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    state = jax.eval_shape(
        lambda: iteration.init(agent, dynamics, task.params, jax.random.key(0), 4000)
    )
    leaves = jax.tree.leaves((state.learner, state.replay))
    one = sum(x.size * x.dtype.itemsize for x in leaves)
    needed = devices * 2 * per_device * one
    free(needed)
    require_memory_for_runs("catch", agent, dynamics, 5, 4000)
    free(needed - 1)
    with pytest.raises(ValueError, match=r"catch, 5 runs at once: .*The host needs"):
        require_memory_for_runs("catch", agent, dynamics, 5, 4000)
    require_memory_for_runs("catch", agent, dynamics, 4, 4000)


def test_runs_in_host_environments_need_a_learning_state_and_their_replay(free, monkeypatch):
    dynamics = HostCorridors(2)
    agent = cast(Any, Replaying(RandomAgent(dynamics, 2, 10)))
    replays = memory_budget.replay_bytes(agent, dynamics, 4000)
    needed = 2 * 40_000 + replays  # The copy that is saved, too.
    free(needed)
    require_memory_for_runs("corridor", agent, dynamics, 1, 4000)
    free(needed - 1)
    with pytest.raises(ValueError, match="corridor, 1 run at once: more memory"):
        require_memory_for_runs("corridor", agent, dynamics, 1, 4000)

    class Device:
        def memory_stats(self):
            return {"bytes_limit": 40_000}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    free(40_000 + replays)
    require_memory_for_runs("corridor", agent, dynamics, 1, 4000)
    monkeypatch.setattr(Device, "memory_stats", lambda self: {"bytes_limit": 39_999})
    with pytest.raises(ValueError, match=r"A device needs .* are free"):
        require_memory_for_runs("corridor", agent, dynamics, 1, 4000)


@pytest.mark.parametrize("in_checkpoints", [False, True])
def test_a_checkpoint_has_the_replay_in_jax_or_if_the_agent_asks_for_it(in_checkpoints):
    spec = ReplaySpec(4000, in_checkpoints=in_checkpoints)
    for dynamics in (environments.make("catch/5x5").dynamics, HostCorridors(2)):
        agent = cast(Any, Replaying(RandomAgent(dynamics, 2, 10), spec))
        state, stored, checkpoint = memory_budget.bytes_of_run(agent, dynamics, 4000)
        assert state == 40_000
        assert stored == memory_budget.replay_bytes(agent, dynamics, 4000) > 4000
        is_in_jax = isinstance(dynamics, environments.JaxEnvironment)
        assert checkpoint == state + stored * (is_in_jax or in_checkpoints)
