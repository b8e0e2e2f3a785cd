"""The plan of a discovery: its costs grow as they should, and time and memory are of a layout."""

from collections import Counter

import pytest

from benchmarks.scale import Accelerator, Agents, Product, flop, layouts
from launch.configs import disco57
from meta.config import PopulationConfig
from tests.meta.common import small_discovery

DEVICE = Accelerator(peak=10.0, narrow_peak=20.0, bandwidth=2.0, memory=1e9)


@pytest.fixture(scope="module")
def agents() -> dict[int, Agents]:
    """By K, the number of updates."""
    population = PopulationConfig(size=4)
    return {
        k: Agents(small_discovery("catch/4x3", population=population, num_updates=k), 0)
        for k in (1, 3)
    }


def test_seconds_follow_arithmetic_or_bandwidth():
    work = Counter({Product(100, 8, "float32"): 2, Product(10, 40, "bfloat16"): 1})
    assert DEVICE.seconds(work, 0.5) == 41.0
    assert DEVICE.seconds(work, 1.0) == 2 * 100 / 10 + 40 / 2  # The second product waits.


def test_costs_grow_with_the_number_of_updates(agents):
    one, three = (agents[k].parts for k in (1, 3))
    assert flop(three["K updates"]) == 3 * flop(one["K updates"]) > 0
    assert flop(three["meta-gradient"]) > 2 * flop(one["meta-gradient"])
    assert flop(agents[3].work) == sum(map(flop, three.values()))
    assert agents[3].memory(1)["residuals"] == 3 * agents[1].memory(1)["residuals"]


@pytest.mark.slow
def test_devices_share_agents_or_an_agents_batches(agents):
    groups, settings = [agents[3]], disco57.get_config()
    alone, shared = layouts(settings, groups, 2)
    assert (alone.devices_per_agent, alone.rows) == (1, (2,))
    assert (shared.devices_per_agent, shared.rows) == (2, (4,))
    assert alone.seconds(DEVICE, groups, 0.1) == shared.seconds(DEVICE, groups, 0.1)
    for name in ("residuals", "batches", "temporary"):
        assert agents[3].memory(2)[name] < agents[3].memory(1)[name]
    state = agents[3].memory(1)["state"]
    assert agents[3].memory(2)["state"] == state
    assert shared.num_bytes > 4 * state
