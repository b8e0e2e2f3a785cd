"""Speed and compile time of discovery and evaluation.

    python -m benchmarks.speed --what=discovery
    python -m benchmarks.speed --what=evaluation

- `discovery`: a meta-step of the published meta-training notebook (Catch 5x5, MLP 512-512, model
  LSTM and heads of 256, 32 trajectories of 16 steps, 32 validation trajectories of 32, Disco103's
  sizes): 2 agents, K = 2, on one device per core, as `launch.discover` runs it. The published code
  took 1.18 seconds, and 18 to compile (two cores).
- `evaluation`: an iteration (act, replay, update) of the published evaluation on Catch 8x8: 64
  replayed trajectories of 29 steps. The published code made about 5.8 iterations per second (two
  cores).

The compile time is that of the step alone, from tracing to the program: first with an empty
persistent cache, then with the cache that this has filled.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import app, flags

import disco
import environments
from agents.rule_agent import AgentConfig, RuleAgent
from benchmarks import tutorial
from benchmarks.timing import text
from launch.support import commands
from meta.config import PopulationConfig
from meta.discovery import Discovery
from meta.objective import ObjectiveConfig
from meta.value_function import ValueFunctionConfig
from training import iteration

_WHAT = flags.DEFINE_enum("what", "discovery", ["discovery", "evaluation"], "What to time.")
_STEPS = flags.DEFINE_integer("steps", 20, "Timed steps, after three untimed ones.")


def discovery() -> tuple[Callable[[], Any], Callable[[Any], Callable]]:
    """Return functions for a discovery: one for an initial state, and one to compile its step."""
    run = Discovery(
        (environments.make(tutorial.ENVIRONMENT),),
        disco.DiscoveredRule.create(jax.random.key(0)),
        tutorial.AGENT,
        ValueFunctionConfig(),
        ObjectiveConfig(),
        PopulationConfig(size=2),
        tutorial.META,
        seed=0,
    )

    def compile_step(state):
        run.compile()
        return lambda state: run.step(state)[0]

    return run.init, compile_step


def evaluation() -> tuple[Callable[[], Any], Callable[[Any], Callable]]:
    """Return functions for an agent: one for an initial state, and one to compile its iteration."""
    rule = disco.DiscoveredRule.create(jax.random.key(0))
    environment = environments.make("catch/8x8")
    dynamics, task = environment.dynamics, environment.params
    assert isinstance(dynamics, environments.JaxEnvironment)
    agent = RuleAgent.create(AgentConfig(learning_rate=1e-2), dynamics, rule)

    def init():
        key = jax.random.key(0)
        return key, agent, jax.jit(lambda key: iteration.init(agent, dynamics, task, key))(key)

    def iterate(carry):
        key, agent, state = carry
        key, update_key = jax.random.split(key)
        state, _, _ = iteration.advance(agent, dynamics, task, state, update_key, state.updates)
        return key, agent, state

    return init, lambda carry: jax.jit(iterate, donate_argnums=0).lower(carry).compile()


def main(argv: list[str]) -> None:
    """Print compile times, and the median and range of a step's time."""
    del argv
    if _WHAT.value == "discovery":
        commands.use_all_cores()
    make = {"discovery": discovery, "evaluation": evaluation}[_WHAT.value]
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        for name in ("cold", "warm"):
            init, compile_step = make()
            began = time.perf_counter()
            state = jax.block_until_ready(init())
            print(f"initial state, {name} cache: {time.perf_counter() - began:.1f} s", flush=True)
            began = time.perf_counter()
            program = compile_step(state)
            print(f"step compiled, {name} cache: {time.perf_counter() - began:.1f} s", flush=True)
            if name == "cold":
                jax.clear_caches()
        seconds = []
        for _ in range(3 + _STEPS.value):
            began = time.perf_counter()
            state = jax.block_until_ready(program(state))
            seconds.append(time.perf_counter() - began)
    rate = 1 / statistics.median(seconds[3:])
    print(
        f"{_WHAT.value}: a step {text(seconds[3:])}, {rate:.2f} a second,"
        f" {jax.device_count()} devices"
    )


if __name__ == "__main__":
    app.run(main)
