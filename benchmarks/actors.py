"""Steps per second of a whole actor against its engine alone.

    python -m benchmarks.actors
    python -m benchmarks.actors --suite=crafter/reward --num_environments=16

For each environment, in turns:

- `engine`: the engine with precomputed random actions, all instances on all processors;
- `actor`: `training.host_collection`, the same number of instances in two halves: engine, inference
  with a small network, recording of trajectories.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig, RuleAgent
from training.host_collection import HostActor

_SUITE = flags.DEFINE_string("suite", "atari/Pong,procgen/coinrun", "Environments, by commas.")
_ENVIRONMENTS = flags.DEFINE_integer(
    "num_environments", 128, "Instances of each environment.", lower_bound=2
)
_SECONDS = flags.DEFINE_float("seconds", 4.0, "Duration of each turn.")
_TURNS = flags.DEFINE_integer("turns", 3, "Turns of engine and actor.", lower_bound=1)
_LENGTH = 29
_NETWORK = NetworkConfig(torso=(16,), model=16, head=(16,))


def main(argv: list[str]) -> None:
    """Print rates and ratios."""
    del argv
    for name in _SUITE.value.split(","):
        _compare(environments.make(name.strip()), _ENVIRONMENTS.value)


def _compare(task: environments.Environment, number: int) -> None:
    """Print the rates of a task's engine and actor, and the cost of the policy."""
    dynamics = task.dynamics
    assert isinstance(dynamics, environments.HostEnvironment)
    config = AgentConfig(
        network=_NETWORK,
        num_environments=number,
        unroll_length=_LENGTH,
        batch_size=number,
        replay_ratio=0.0,
    )
    agent = RuleAgent.create(config, dynamics, disco.ActorCritic())
    params, key = agent.network.init(jax.random.key(0)), jax.random.key(1)
    actor = HostActor(agent, dynamics, task.params, number, seed=0)
    engine = dynamics.start(task.params, number, 0)
    engine.reset()
    actions = np.random.default_rng(0).integers(
        environments.num_actions(dynamics), size=(997, number), dtype=np.int32
    )
    actor.collect(params, key, _LENGTH)  # Compiles.
    rates: dict[str, list[float]] = {"engine": [], "actor": []}
    for _ in range(_TURNS.value):
        stepped = _calls_per_second(lambda i: engine.step(actions[i % len(actions)]))
        rates["engine"].append(number * stepped)
        unrolled = _calls_per_second(lambda _: actor.collect(params, key, _LENGTH))
        rates["actor"].append(number * _LENGTH * unrolled)
    ratios = np.array(rates["actor"]) / np.array(rates["engine"])
    print(
        f"{task.name}, {number} instances: engine {np.median(rates['engine']):.0f} steps/s,"
        f" actor {np.median(rates['actor']):.0f}, ratio {np.median(ratios):.2f}"
        f" ({ratios.min():.2f} to {ratios.max():.2f}, {len(ratios)} turns)",
        flush=True,
    )
    actor.close()
    engine.close()


def _calls_per_second(call: Callable[[int], Any]) -> float:
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < _SECONDS.value:
        call(calls)
        calls += 1
    return calls / (time.perf_counter() - began)


if __name__ == "__main__":
    app.run(main)
