"""A comparison of the model of `benchmarks.scale` with measurements, at small sizes.

    python -m benchmarks.scale_check

For each size, one agent on one device:

- FLOP: the model's count against XLA's, for an update with trajectories of one step. It has no
  loops, whose body XLA would count only once.
- memory: the model's intermediate results of the meta-gradient against XLA's temporary memory.
- seconds of a meta-step: the model's FLOP, divided by the measured rate of the first size of the
  same kind, against the measured time. Sizes take turns. There are two kinds, as a CPU is slower at
  convolutions: MLPs on Catch, and networks with convolutions on Atari, with a few short
  trajectories.

The rates are also given relative to the rate of a large matrix product, measured in the same run.
"""

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from agents.compilation import supported_options
from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from benchmarks import tutorial
from benchmarks.counting import count, peak_bytes
from benchmarks.scale_model import Program, agent_cost, programs
from benchmarks.timing import time_in_turn
from launch.configs import disco57
from launch.support.settings import DiscoverSettings
from launch.support.setup import make_discovery
from meta.config import PopulationConfig

_STEPS = flags.DEFINE_integer("steps", 5, "Timed meta-steps of each size.")
_KINDS = flags.DEFINE_list("kinds", ["tutorial", "disco57"], "Kinds of sizes.")

_CLOCK = flags.DEFINE_enum(
    "clock", "wall", ["wall", "cpu"], "Wall time, or CPU time for a busy machine."
)

_SIDE = 2048  # Side of the matrices whose product is timed.


def sizes() -> dict[str, DiscoverSettings]:
    """Return settings by name.

    The part of a name before the comma is the kind. The first size of a kind calibrates its rate.
    """
    first = DiscoverSettings(
        suite=tutorial.ENVIRONMENT,
        agent=tutorial.AGENT,
        population=PopulationConfig(size=1),
        meta=tutorial.META,
    )

    def changed(settings: DiscoverSettings, **changes: Any) -> DiscoverSettings:
        of_meta = {"num_updates", "validation_trajectories", "validation_length"}
        meta = {name: changes.pop(name) for name in of_meta & set(changes)}
        return dataclasses.replace(
            settings,
            agent=dataclasses.replace(settings.agent, **changes),
            meta=dataclasses.replace(settings.meta, **meta),
        )

    games = dataclasses.replace(
        disco57.get_settings(), suite="atari/Pong", population=PopulationConfig(size=1)
    )
    games = changed(
        games,
        batch_size=4,
        num_environments=2,
        replay_ratio=0.5,
        replay_capacity=32,
        unroll_length=8,
        num_updates=2,
        validation_trajectories=2,
        validation_length=8,
    )
    small = NetworkConfig(torso=(32,), channels=(4, 8), patch=4, model=32, head=(32,))
    shrunk = changed(games, network=small)
    shrunk_rule = dataclasses.replace(
        shrunk.rule, sizes=dataclasses.replace(shrunk.rule.sizes, prediction=16)
    )
    return {
        "tutorial": first,
        "tutorial, K = 6": changed(first, num_updates=6),
        "tutorial, 96 trajectories": changed(first, batch_size=96, num_environments=96),
        "tutorial, twice as wide": changed(
            first, network=NetworkConfig(torso=(1024, 1024), model=512, head=(512,))
        ),
        "disco57": games,
        "disco57, shrunk": dataclasses.replace(shrunk, rule=shrunk_rule),
    }


def main(argv: list[str]) -> None:
    """Print a line per size."""
    del argv
    chosen = {name: x for name, x in sizes().items() if name.partition(",")[0] in _KINDS.value}
    flop: dict[str, float] = {}
    calls = {}
    for name, settings in chosen.items():
        _check_flop(name, settings)
        flop[name] = _check_memory(name, settings)
        calls[name] = _meta_steps(settings)
    x = jnp.ones((_SIDE, _SIDE))
    multiply = jax.jit(jnp.matmul)
    calls["matrix product"] = lambda: multiply(x, x)
    flop["matrix product"] = 2 * _SIDE**3
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[_CLOCK.value]
    seconds = time_in_turn(calls, _STEPS.value, clock)
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    rates = {name: flop[name] / middle[name] for name in middle}
    peak = rates["matrix product"]
    print(f"matrix product of {_SIDE}: {peak / 1e9:.0f} GFLOP/s")
    for name in chosen:
        predicted = flop[name] / rates[name.partition(",")[0]]
        print(
            f"{name}: {flop[name] / 1e9:.1f} GFLOP; predicted {predicted:.3f} s, measured"
            f" {middle[name]:.3f} ({min(seconds[name]):.3f} to {max(seconds[name]):.3f}):"
            f" {predicted / middle[name]:.2f} times; {rates[name] / 1e9:.1f} GFLOP/s,"
            f" {rates[name] / peak:.3f} of the matrix product's"
        )


def _check_flop(name: str, settings: DiscoverSettings) -> None:
    agent: AgentConfig = dataclasses.replace(settings.agent, unroll_length=1)
    short = dataclasses.replace(settings, agent=agent)
    discovery = make_discovery(short)
    update = programs(short, discovery, discovery.groups[0]).update
    work, xla = count(update.function, *update.arguments), _compiled(update).cost_analysis()
    assert xla is not None
    counted = work.flop + work.other_flop
    print(
        f"{name}: update of one step {counted / 1e6:.1f} MFLOP ({work.flop / counted:.2f} of them"
        f" of products), XLA counts {xla['flops'] / 1e6:.1f}: {counted / xla['flops']:.3f} times",
        flush=True,
    )


def _check_memory(name: str, settings: DiscoverSettings) -> float:
    """Print the comparison of the memory; return the FLOP of a meta-step."""
    discovery = make_discovery(settings)
    group = discovery.groups[0]
    program = programs(settings, discovery, group).meta_update
    model = peak_bytes(program.function, *program.arguments)
    xla = _compiled(program).memory_analysis()
    assert xla is not None
    measured = xla.temp_size_in_bytes
    print(
        f"{name}: meta-gradient {model / 1e6:.0f} MB, XLA takes {measured / 1e6:.0f}:"
        f" {model / measured:.2f} times",
        flush=True,
    )
    return agent_cost(settings, discovery, group).work.flop


def _compiled(program: Program) -> jax.stages.Compiled:
    # This compiles faster; FLOP and memory are the same.
    fast = supported_options(xla_backend_optimization_level=0)
    return jax.jit(program.function).lower(*program.arguments).compile(fast)


def _meta_steps(settings: DiscoverSettings):
    """Return a function that makes the next meta-step at each call."""
    discovery = make_discovery(settings)
    state = discovery.init()

    def step():
        nonlocal state
        state, metrics = discovery.step(state)
        assert np.all(np.asarray(metrics[0]["finite"]) == 1)
        return state

    return step


if __name__ == "__main__":
    app.run(main)
