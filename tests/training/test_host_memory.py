"""Replays that do not fit in memory are refused, whoever bounds it."""

from typing import Any

import jax
import numpy as np
import pytest

from agents.protocol import Batch, Experience, ReplaySpec
from training import replay, replay_memory
from training.replay_memory import Planned, require_memory

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
    monkeypatch.setattr(replay_memory, "_MARGIN", 1.0)
    return lambda value: monkeypatch.setattr(replay_memory, "free_memory", lambda: value)


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
