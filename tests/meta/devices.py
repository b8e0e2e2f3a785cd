"""Discovers on 1 and 8 simulated devices, and on 4 that share agents by two.

Writes what came out of each.

python -m tests.meta.devices OUTPUT.npz
"""

import re
import sys

import jax
import numpy as np

from meta.config import PopulationConfig
from meta.estimators.meta_gradient import MetaGradient
from tests.meta.common import STEPS, small_discovery

META_STEPS = 3
AGENTS = 12
_ITEM_BYTES = {"f64": 8, "f32": 4, "s64": 8, "s32": 4, "u32": 4, "pred": 1}
# Groups of six agents, which do not divide among eight devices.
SUITE = "catch/4x3,deep_sea/4"


def make(num_devices: int, devices_per_agent: int, agents_at_once: int | None) -> MetaGradient:
    """A mixed population, some of whose agents are reset on the way."""
    return small_discovery(
        SUITE,
        population=PopulationConfig(size=AGENTS, lifetimes=(2 * STEPS,)),
        devices=jax.devices()[:num_devices],
        devices_per_agent=devices_per_agent,
        agents_at_once=agents_at_once,
    )


def discover(
    num_devices: int, devices_per_agent: int, agents_at_once: int | None
) -> tuple[np.ndarray, MetaGradient]:
    """The meta-parameters in one vector, and what discovered them."""
    discovery = make(num_devices, devices_per_agent, agents_at_once)
    discovery.check()
    state = discovery.init()
    resets = 0
    for _ in range(META_STEPS):
        state, metrics = discovery.step(state)
        assert [group["finite"].shape for group in metrics] == [(AGENTS // 2,)] * 2
        resets += sum(group["reset"].sum() for group in metrics)
    assert resets > 0
    rule = np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.rule)])
    return rule, discovery


def main(output: str) -> None:
    """One device has all agents at once; several have one after the other."""
    assert jax.device_count() == 8
    results, discoveries = {}, {}
    for number in (1, 8):
        results[str(number)], discoveries[number] = discover(
            number, 1, agents_at_once=None if number == 1 else 1
        )
    results["4, two per agent"], shared = discover(4, 2, agents_at_once=1)
    agents, rule = (program.compile() for program in discoveries[8].lower())
    assert not messages(agents.as_text() or "")
    kinds, sizes = zip(*messages(rule.as_text() or ""), strict=True)
    # One device of two for all agents, and one of four that share them by two.
    results["flops"] = np.array([_flops(make(2, 1, agents_at_once=1)), _flops(shared)])
    np.savez(output, kinds=kinds, sizes=sizes, **results)


def messages(program: str) -> list[tuple[str, int]]:
    """The kind and the bytes of each message between devices in a program's text."""
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    found = re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", program)
    return [(kind, _num_bytes(shape)) for shape, kind in found]


def _num_bytes(shape: str) -> int:
    """Of an array, or of all in a tuple such as `(f32[4,2]{1,0}, s32[])`."""
    return sum(
        _ITEM_BYTES[dtype] * int(np.prod([int(n) for n in sizes.split(",") if n], dtype=int))
        for dtype, sizes in re.findall(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]", shape)
    )


def _flops(discovery: MetaGradient) -> float:
    """Of one device in the agents' part of a meta-step."""
    cost = next(discovery.lower()).compile().cost_analysis()
    assert cost is not None
    return cost["flops"]


if __name__ == "__main__":
    main(sys.argv[1])
