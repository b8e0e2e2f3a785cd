"""Replays that do not fit in memory are refused, whoever bounds it."""

import dataclasses
from typing import Any, cast

import jax
import numpy as np
import pytest

import environments
from agents.protocol import Batch, Experience, ReplaySpec
from agents.random_agent import RandomAgent
from tests.agents.common import HostCorridors
from training import iteration, memory_budget, replay
from training.memory_budget import Planned, require_memory, require_memory_for_runs

LENGTH, BATCH = 7, 4


def planned(capacity, name="corridor", count=1):
    def rows(dtype, *shape) -> Any:
        return np.zeros((LENGTH, BATCH, *shape), dtype)

    example = Batch(
        observation=np.zeros((LENGTH + 1, BATCH, 84, 84), np.uint8),
        action=rows(np.int32),
        reward=rows(np.float32),
        discount=rows(np.float32),
        last=rows(bool),
        mask=rows(bool),
        extras={"behaviour_logits": rows(np.float32, 2)},
    )
    experience = Experience(BATCH, LENGTH, replay=ReplaySpec(capacity * LENGTH))
    return Planned(name, replay.layout(experience), example, count)


def size(plan):
    kept = replay.init(plan.layout, plan.example, np)
    return sum(x.nbytes for x in jax.tree.leaves(kept))


@pytest.fixture
def free(monkeypatch):
    """Sets the free memory, of which all may be taken."""
    monkeypatch.setattr(memory_budget, "_MARGIN", 1.0)
    return lambda value: monkeypatch.setattr(memory_budget, "free_memory", lambda: value)


def test_what_fits_is_exact(free):
    plan = planned(40)
    free(size(plan))
    require_memory([plan])
    with pytest.raises(ValueError, match=r"44 trajectories of 7 steps \(corridor.* capacity of 40"):
        require_memory([planned(44)])
    free(size(planned(4)))
    require_memory([planned(4)])
    free(size(planned(4)) - 1)
    with pytest.raises(ValueError, match="not enough for one trajectory of each environment"):
        require_memory([planned(40)])


def test_replays_must_fit_together(free):
    plans = [planned(40, name="here", count=2), planned(20, name="there")]
    needed = 2 * size(plans[0]) + size(plans[1])
    free(needed)
    require_memory(plans)
    free(needed // 2)
    with pytest.raises(ValueError, match=r"2 of 40 .*here.*; 1 of 20 .*there.*about 50% of that"):
        require_memory(plans)


def test_nothing_is_asked_of_agents_without_a_replay(free):
    free(0)
    require_memory([])


@dataclasses.dataclass(frozen=True)
class Replaying:
    """The random policy with a learning state, a replay and updates of a stated size."""

    random: RandomAgent
    initial_memory = property(lambda self: self.random.initial_memory)
    act = property(lambda self: self.random.act)
    update = property(lambda self: self.random.update)

    @property
    def experience(self):
        return dataclasses.replace(self.random.experience, replay=ReplaySpec(4000))

    def init(self, key):
        del key
        return {"weights": jax.numpy.zeros(10_000)}

    def acting_state(self, state):
        del state
        return ()

    def update_bytes(self):
        return 1_000_000


@pytest.mark.parametrize(("devices", "per_device"), [(1, 5), (2, 3)])
def test_runs_that_are_trained_together_must_fit_together(free, monkeypatch, devices, per_device):
    """Their states and replays on all devices, one update on each, and the copy that is saved."""
    task = environments.make("catch/5x5")
    assert isinstance(task.dynamics, environments.JaxEnvironment)
    dynamics, agent = task.dynamics, cast(Any, Replaying(RandomAgent(task.dynamics, 2, 10)))
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    state = jax.eval_shape(
        lambda: iteration.init(agent, dynamics, task.params, jax.random.key(0), 4000)
    )
    leaves = jax.tree.leaves((state.learner, state.replay))
    one = sum(x.size * x.dtype.itemsize for x in leaves)
    update = 1_000_000 - 40_000
    needed = devices * (2 * per_device * one + update)
    free(needed)
    require_memory_for_runs("catch", agent, dynamics, 5, 4000)
    free(needed - 1)
    with pytest.raises(ValueError, match=r"5 runs of catch ask .* replay_capacity of about 399"):
        require_memory_for_runs("catch", agent, dynamics, 5, 4000)
    require_memory_for_runs("catch", agent, dynamics, 4, 4000)
    free(devices * update)
    with pytest.raises(ValueError, match=r"Expected a smaller agent .*--runs_per_job"):
        require_memory_for_runs("catch", agent, dynamics, 5, 4000)


def test_runs_in_host_environments_need_a_learning_state_an_update_and_their_replay(
    free, monkeypatch
):
    dynamics = HostCorridors(2)
    agent = cast(Any, Replaying(RandomAgent(dynamics, 2, 10)))
    replays = memory_budget.plan("corridor", agent, dynamics, 1, 4000).num_bytes
    needed = 1_000_000 + 40_000 + replays  # The copy that is saved, too.
    free(needed)
    require_memory_for_runs("corridor", agent, dynamics, 1, 4000)
    free(needed - 1)
    with pytest.raises(ValueError, match="1 run of corridor asks for more memory"):
        require_memory_for_runs("corridor", agent, dynamics, 1, 4000)

    class Device:
        def memory_stats(self):
            return {"bytes_limit": 1_000_000}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    free(40_000 + replays)
    require_memory_for_runs("corridor", agent, dynamics, 1, 4000)
    monkeypatch.setattr(Device, "memory_stats", lambda self: {"bytes_limit": 999_999})
    with pytest.raises(ValueError, match=r"A device needs .* are free"):
        require_memory_for_runs("corridor", agent, dynamics, 1, 4000)
