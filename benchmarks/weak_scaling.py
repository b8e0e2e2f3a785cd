"""The cost per agent of a compiled meta-step, from 1 agent to 64 on 1 to 8 devices.

    python -m benchmarks.weak_scaling
    python -m benchmarks.weak_scaling --agents_per_device=16 --devices=1,4

Needs no accelerator: it compiles the meta-step for simulated devices. FLOP, bytes accessed and
temporary memory are XLA's own counts for one device's program, divided by the number of its agents.
XLA counts a loop's body once, so FLOP and bytes are not those of a whole meta-step. Under weak
scaling, these counts are constant when agents and devices grow in proportion. The messages between
devices must not depend on the number of agents, except for the metrics: there is one all-reduce of
the rule's size.

Prints the ratio of each count to that of the first mesh, and fails if a ratio differs from 1 by
more than `--tolerance`; memory may be less. Bytes and memory are compared between meshes with the
same number of agents per device, because a device reads the rule once for all of its agents. FLOP
and messages are compared between all meshes.
"""

import re
import sys

import jax
import numpy as np
from absl import app, flags

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from meta.config import MetaConfig, PopulationConfig
from meta.discovery import Discovery
from meta.objective import ObjectiveConfig
from meta.sharding import make_mesh
from meta.value_function import ValueFunctionConfig

_LOADS = flags.DEFINE_list("agents_per_device", ["1", "8"], "Numbers of agents per device.")
_DEVICES = flags.DEFINE_list("devices", ["1", "2", "4", "8"], "Numbers of devices.")
_TOLERANCE = flags.DEFINE_float("tolerance", 0.02, "Largest relative difference of a count.")

_ITEM_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "s64": 8, "s32": 4, "u32": 4, "pred": 1}
_KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"


def messages(program: str) -> list[tuple[str, int]]:
    """Return the kind and the bytes of each message between devices in a program's text."""
    found = re.findall(rf"= (.*?) ({_KINDS})(?:-start)?\(", program)
    return [(kind, _num_bytes(shape)) for shape, kind in found]


def _num_bytes(shape: str) -> int:
    """Return the bytes of an array, or of all in a tuple such as `(f32[4,2]{1,0}, s32[])`."""
    arrays = re.findall(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]", shape)
    return sum(
        _ITEM_BYTES[dtype] * int(np.prod([int(n) for n in sizes.split(",") if n], dtype=int))
        for dtype, sizes in arrays
    )


def compile_meta_step(
    num_agents: int, num_devices: int
) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
    """Return a meta-step's programs for agents on Catch, in one vectorised pass per device."""
    rule = disco.DiscoveredRule.create(jax.random.key(0))
    discovery = Discovery(
        (environments.make("catch/5x5"),),
        rule,
        AgentConfig(
            network=NetworkConfig(torso=(256,), model=64, head=(64,)),
            num_environments=16,
            unroll_length=16,
            batch_size=16,
            replay_ratio=0.0,
        ),
        ValueFunctionConfig(hidden=(256,)),
        ObjectiveConfig(),
        PopulationConfig(size=num_agents),
        MetaConfig(
            num_updates=2,
            validation_trajectories=16,
            validation_length=16,
            agents_at_once=num_agents // num_devices,
        ),
        seed=0,
        mesh=make_mesh(devices=jax.devices()[:num_devices]),
    )
    agents_meta_step, update_rule = discovery.lower()
    return agents_meta_step.compile(), update_rule.compile()


def main(argv: list[str]) -> None:
    """Print a line for each number of agents per device and each mesh."""
    del argv
    loads, devices = (sorted(map(int, x)) for x in (_LOADS.value, _DEVICES.value))
    jax.config.update("jax_num_cpu_devices", devices[-1])
    failed, common = False, None
    for load in loads:
        first = None
        for num_devices in devices:
            programs = compile_meta_step(load * num_devices, num_devices)
            sent = [size for x in programs for _, size in messages(x.as_text() or "")]
            figures = _per_agent(programs[0], load)
            of_all = {
                "MFLOP": figures["MFLOP"],
                "messages": len(sent),
                "MB of messages": sum(sent) / 1e6,
            }
            first, common = first or figures, common or of_all
            ratios = {name: value / first[name] for name, value in figures.items()}
            same = [ratios["MB accessed"], *(of_all[name] / common[name] for name in common)]
            failed |= any(abs(ratio - 1.0) > _TOLERANCE.value for ratio in same)
            failed |= ratios["MB temporary"] > 1.0 + _TOLERANCE.value
            shown = ", ".join(f"{v:.1f} {name} ({ratios[name]:.3f})" for name, v in figures.items())
            print(
                f"{load * num_devices} agents on {num_devices} devices, per agent: {shown};"
                f" {len(sent)} messages of {sum(sent):,} bytes",
                flush=True,
            )
    sys.exit(int(failed))


def _per_agent(program: jax.stages.Compiled, num_agents: int) -> dict[str, float]:
    cost, memory = program.cost_analysis(), program.memory_analysis()
    assert cost is not None
    assert memory is not None
    return {
        "MFLOP": cost["flops"] / num_agents / 1e6,
        "MB accessed": cost["bytes accessed"] / num_agents / 1e6,
        "MB temporary": memory.temp_size_in_bytes / num_agents / 1e6,
    }


if __name__ == "__main__":
    app.run(main)
