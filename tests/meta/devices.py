"""Discovers on 1, 2, 4 and 8 simulated devices, and on 4 that share agents by two.

Writes what came out of each.

python -m tests.meta.devices OUTPUT.npz
"""

import sys

import jax
import numpy as np

from benchmarks.weak_scaling import messages
from meta.discovery import Discovery
from meta.mesh import make_mesh
from meta.population import PopulationConfig
from tests.meta.common import STEPS, small_discovery

META_STEPS = 3
AGENTS = 12
# Groups of four agents, which do not divide among eight devices.
SUITE = "catch/4x3,catch/5x5,deep_sea/4"


def make(num_devices: int, devices_per_agent: int, agents_at_once: int | None) -> Discovery:
    """A mixed population, some of which is reborn on the way."""
    return small_discovery(
        SUITE,
        population=PopulationConfig(size=AGENTS, lifetimes=(2 * STEPS,)),
        mesh=make_mesh(devices_per_agent, jax.devices()[:num_devices]),
        agents_at_once=agents_at_once,
    )


def discover(
    num_devices: int, devices_per_agent: int, agents_at_once: int | None
) -> tuple[np.ndarray, jax.stages.Compiled, jax.stages.Compiled]:
    """The meta-parameters in one vector, and the meta-step's programs."""
    discovery = make(num_devices, devices_per_agent, agents_at_once)
    discovery.check()
    state = discovery.init()
    reborn = 0
    for _ in range(META_STEPS):
        state, metrics = discovery.step(state)
        assert [group["finite"].shape for group in metrics] == [(AGENTS // 3,)] * 3
        reborn += sum(group["reborn"].sum() for group in metrics)
    assert reborn > 0
    rule = np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.rule)])
    return rule, *(program.compile() for program in discovery.lower())


def main(output: str) -> None:
    """One device has all agents at once; several have one after the other."""
    assert jax.device_count() == 8
    results, flops = {}, {}
    for number in (1, 2, 4, 8):
        results[str(number)], evolve, conclude = discover(number, 1, None if number == 1 else 1)
        flops[number] = _flops(evolve)
        assert not messages(evolve.as_text() or "")
    kinds, sizes = zip(*messages(conclude.as_text() or ""), strict=True)
    results["4, two per agent"], evolve, _ = discover(4, 2, 1)
    # One device of two for all agents, and one of four that share them by two.
    results["flops"] = np.array([flops[2], _flops(evolve)])
    np.savez(output, kinds=kinds, sizes=sizes, **results)


def _flops(program: jax.stages.Compiled) -> float:
    """Of one device."""
    cost = program.cost_analysis()
    assert cost is not None
    return cost["flops"]


if __name__ == "__main__":
    main(sys.argv[1])
