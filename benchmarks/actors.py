"""Steps per second of a whole actor against its engine alone, and of the replay.

    python -m benchmarks.actors
    python -m benchmarks.actors --suite=crafter/reward --num_environments=16

For each environment, in turns:

- `engine`: the engine with precomputed random actions, all instances on all processors;
- `actor`: `training.host_collection`, the same number of instances in two halves: engine, inference
  with a small network, recording of trajectories. The cost of the policy is printed, too.

Then the host replay, filled with these trajectories: the time to draw a batch, the time of an
actor-critic update of the small network on that batch, and the memory for a million steps.
"""

import time
from typing import Any

import dm_env
import jax
import numpy as np
from absl import app, flags

import disco
import environments
from agents.history import History
from agents.networks import NetworkConfig
from agents.protocol import Batch
from agents.rule_agent import AgentConfig, RuleAgent, to_trajectory
from training import replay
from training.host_collection import HostActor, make_act

_SUITE = flags.DEFINE_string("suite", "atari/Pong,procgen/coinrun", "Environments, by commas.")
_ENVIRONMENTS = flags.DEFINE_integer(
    "num_environments", 128, "Instances of each environment.", lower_bound=2
)
_SECONDS = flags.DEFINE_float("seconds", 4.0, "Duration of each turn.")
_TURNS = flags.DEFINE_integer("turns", 3, "Turns of engine and actor.", lower_bound=1)
_STACK = flags.DEFINE_integer("frame_stack", 1, "Frames that the policy reads.", lower_bound=1)
_LENGTH = 29
_NETWORK = NetworkConfig(torso=(16,), model=16, head=(16,))


def main(argv: list[str]) -> None:
    """Print rates and ratios."""
    del argv
    for name in _SUITE.value.split(","):
        task = environments.make(name.strip())
        dynamics, batch = task.dynamics, _ENVIRONMENTS.value
        assert isinstance(dynamics, environments.HostEnvironment)
        config = AgentConfig(
            network=_NETWORK,
            num_environments=batch,
            unroll_length=_LENGTH,
            batch_size=96,
            replay_ratio=1.0,
            replay_capacity=4096,
            frame_stack=_STACK.value,
        )
        agent = RuleAgent.create(config, dynamics, disco.ActorCritic())
        params = agent.network.init(jax.random.key(0))
        actor = HostActor(agent, dynamics, task.params, batch, seed=0)
        engine = dynamics.start(task.params, batch, 0)
        engine.reset()
        actions = np.random.default_rng(0).integers(
            environments.num_actions(dynamics), size=(997, batch), dtype=np.int32
        )
        collected = actor.collect(params, jax.random.key(0), _LENGTH)  # Compiles.
        rates: dict[str, list[float]] = {"engine": [], "actor": []}
        for turn in range(_TURNS.value):
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < _SECONDS.value:
                engine.step(actions[steps % len(actions)])
                steps += 1
            rates["engine"].append(steps * batch / (time.perf_counter() - began))
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < _SECONDS.value:
                collected = actor.collect(params, jax.random.key(turn), _LENGTH)
                steps += _LENGTH
            rates["actor"].append(steps * batch / (time.perf_counter() - began))
        ratios = np.array(rates["actor"]) / np.array(rates["engine"])
        policy = _policy_seconds(agent, params, collected.batch) / batch
        print(
            f"{task.name}, {batch} instances: engine {np.median(rates['engine']):.0f} steps/s,"
            f" actor {np.median(rates['actor']):.0f}, ratio {np.median(ratios):.2f}"
            f" ({ratios.min():.2f} to {ratios.max():.2f}, {len(ratios)} turns); the policy takes"
            f" {1e6 * policy:.0f} µs of a processor per step, the engine"
            f" {1e6 * environments.available_processors() / np.median(rates['engine']):.0f}",
            flush=True,
        )
        _replay(agent, collected.batch)
        actor.close()
        engine.close()


def _policy_seconds(agent: RuleAgent, params: disco.Params, batch: Batch) -> float:
    """Return the seconds of inference per step, for both halves."""
    half: Any = jax.tree.map(lambda x: x[:, : x.shape[1] // 2], batch.observation)
    if isinstance(half, History):
        first = History(frames=half.frames[: agent.config.frame_stack], age=half.age[:1])
    else:
        first = half[0]
    act, key, number = make_act(agent), jax.random.key(0), batch.action.shape[1] // 2
    zeros = np.zeros(number, np.float32)
    seen = dm_env.TimeStep(np.ones(number, np.int32), zeros, zeros, first)
    times = []
    for _ in range(50):
        began = time.perf_counter()
        jax.device_get(act(params, None, seen, key, np.int32(0))[1:])
        times.append(time.perf_counter() - began)
    return 2 * float(np.median(times))


def _replay(agent: RuleAgent, collected: Batch) -> None:
    """Print the time to draw a batch, the time to learn from it, and the size in memory."""
    spec = agent.experience
    (update,) = spec.updates
    layout, capacity = replay.layout(spec), agent.config.replay_capacity
    kept = replay.init(layout, collected, np)
    for _ in range(layout.num_kept):
        kept = replay.insert(spec, kept, collected)
    random, learner = np.random.default_rng(0), agent.init(jax.random.key(0))
    learn = jax.jit(lambda learner, batch: agent.learn(learner, to_trajectory(batch))[0])
    times = {"draw": [], "learn": []}
    for _ in range(6):
        began = time.perf_counter()
        index = random.integers(capacity, size=update.batch_size)
        kept, batch, _ = replay.sample(spec, kept, update, index)
        drawn = time.perf_counter()
        learner = jax.block_until_ready(learn(learner, jax.device_put(batch)))
        times["draw"].append(drawn - began)
        times["learn"].append(time.perf_counter() - drawn)
    draw, learn_time = (float(np.median(x[1:])) for x in times.values())
    per_million = replay.num_bytes(layout, collected) / (capacity * _LENGTH) * 1e6 / 2**30
    print(
        f"  replay: a batch of {agent.config.batch_size} x {_LENGTH} is drawn in"
        f" {1e3 * draw:.1f} ms; an update of this small network takes {1e3 * learn_time:.1f} ms;"
        f" a million steps take {per_million:.2f} GiB",
        flush=True,
    )


if __name__ == "__main__":
    app.run(main)
