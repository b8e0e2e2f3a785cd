"""Discovers on 1, 2, 4 and 8 simulated devices; writes what came out of each.

python -m tests.meta.devices OUTPUT.npz
"""

import sys

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks.weak_scaling import messages
from meta.discovery import Discovery
from meta.population import PopulationConfig
from tests.meta.common import STEPS, small_discovery

META_STEPS = 3
AGENTS = 12
# Groups of four agents, which do not divide among eight devices.
SUITE = "catch/4x3,catch/5x5,deep_sea/4"


def make(num_devices: int, agents_at_once: int | None) -> Discovery:
    """A mixed population, some of which is reborn on the way."""
    return small_discovery(
        SUITE,
        population=PopulationConfig(size=AGENTS, lifetimes=(2 * STEPS,)),
        mesh=Mesh(np.array(jax.devices()[:num_devices]), ("agents",)),
        agents_at_once=agents_at_once,
    )


def discover(num_devices: int, agents_at_once: int | None) -> tuple[np.ndarray, str]:
    """The meta-parameters in one vector, and the compiled meta-step."""
    discovery = make(num_devices, agents_at_once)
    state = discovery.init()
    program = discovery.compile_step(state)
    reborn = 0
    for _ in range(META_STEPS):
        state, metrics = program(state)
        assert [group["finite"].shape for group in metrics] == [(AGENTS // 3,)] * 3
        reborn += sum(group["reborn"].sum() for group in metrics)
    assert reborn > 0
    rule = np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.rule)])
    return rule, program.as_text()


def main(output: str) -> None:
    """One device has all agents at once; several have one after the other."""
    assert jax.device_count() == 8
    rules, program = {}, ""
    for number in (1, 2, 4, 8):
        rules[str(number)], program = discover(number, None if number == 1 else 1)
    kinds, sizes = zip(*messages(program), strict=True)
    np.savez(output, kinds=kinds, sizes=sizes, **rules)


if __name__ == "__main__":
    main(sys.argv[1])
