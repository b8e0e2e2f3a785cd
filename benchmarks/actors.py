"""Steps per second of a whole actor against its engine alone.

    python -m benchmarks.actors
    python -m benchmarks.actors --suite=crafter/reward --num_environments=16

For each environment, an unroll of all instances in turns:

- `engine`: the engine with precomputed random actions, on all processors;
- `actor`: `training.host_collection`, the instances in two halves: engine, inference with a small
  network, recording of trajectories.
"""

import statistics

import jax
import numpy as np
from absl import app, flags

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgent, RuleAgentConfig
from benchmarks import timing
from training.host_collection import HostActor

_SUITE = flags.DEFINE_string("suite", "atari/Pong,procgen/coinrun", "Environments, by commas.")
_ENVIRONMENTS = flags.DEFINE_integer(
    "num_environments", 128, "Instances of each environment.", lower_bound=2
)
_TURNS = flags.DEFINE_integer("turns", 50, "Unrolls of engine and actor.", lower_bound=1)
_LENGTH = 29
_NETWORK = NetworkConfig(torso=(16,), model=16, head=(16,))


def main(argv: list[str]) -> None:
    """Print rates and ratios."""
    del argv
    for name in _SUITE.value.split(","):
        _compare(environments.make(name.strip()), _ENVIRONMENTS.value)


def _compare(task: environments.Environment, number: int) -> None:
    """Print the rates of a task's engine and actor, and the ratio of their times."""
    dynamics = task.dynamics
    assert isinstance(dynamics, environments.HostEnvironment)
    config = RuleAgentConfig(
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
        environments.num_actions(dynamics), size=(_LENGTH, number), dtype=np.int32
    )

    def step_engine() -> None:
        for action in actions:
            engine.step(action)

    calls = {"engine": step_engine, "actor": lambda: actor.collect(params, key, _LENGTH)}
    seconds = timing.time_in_turn(calls, _TURNS.value)
    for name, each in seconds.items():
        rate = number * _LENGTH / statistics.median(each)
        print(f"{task.name}, {number} instances, {name}: {rate:.0f} steps/s")
    print(timing.ratio(seconds, "engine", "actor"), flush=True)
    actor.close()
    engine.close()


if __name__ == "__main__":
    app.run(main)
