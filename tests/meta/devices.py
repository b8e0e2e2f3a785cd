"""Discovers on several simulated devices and on one; writes the meta-parameters of both.

python -m tests.meta.devices OUTPUT.npz
"""

import sys

import jax
import numpy as np
from jax.sharding import Mesh

from meta.population import PopulationConfig
from tests.meta.common import STEPS, small_discovery

META_STEPS = 3


def discover(num_devices: int, agents_at_once: int | None) -> np.ndarray:
    """The meta-parameters in one vector.

    Ten agents do not divide among eight devices. Some are reborn on the way.
    """
    discovery = small_discovery(
        "catch/4x3",
        population=PopulationConfig(size=10, lifetimes=(2 * STEPS,)),
        mesh=Mesh(np.array(jax.devices()[:num_devices]), ("agents",)),
        agents_at_once=agents_at_once,
    )
    state = discovery.init()
    reborn = 0
    for _ in range(META_STEPS):
        state, (metrics,) = discovery.step(state)
        assert metrics["finite"].shape == (10,)
        reborn += metrics["reborn"].sum()
    assert reborn > 0
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.rule)])


def main(output: str) -> None:
    """Compares eight devices, each with one agent after the other, to one with all at once."""
    assert jax.device_count() == 8
    np.savez(output, one=discover(1, None), eight=discover(8, 1))


if __name__ == "__main__":
    main(sys.argv[1])
