"""An agent's update, its acting, and its replay in host environments: time, memory, compile time.

    python -m benchmarks.agent
    python -m benchmarks.agent --agent=dreamer/nature,paper,200m --repeats=0

Of Dreamer: images of 64x64x3, 17 actions, batches of 16 sequences of 64 steps, 16 environments.
docs/measurements/dreamer.md compares an update with the authors' code. Nothing is simulated; the
replay is filled with one observation.

Training waits for the storing of an unroll and for the draw of a batch. The latents of an update
are written back while the next one is computed. A checkpoint has the rows that are filled: training
waits while they are copied, and goes on while they are written.
"""

import contextlib
import pathlib
import tempfile
import time
from typing import Any

import dm_env
import jax
import numpy as np
from absl import app, flags, logging

import environments
from agents import registry
from agents.protocol import Agent, Batch, Mode
from benchmarks.timing import compiled, text, time_in_turn
from disco_common.checkpoints import Checkpoints
from training import collection, replay, replay_sampling

_AGENTS = flags.DEFINE_multi_string(
    "agent",
    ["dreamer/nature,paper,1m", "dreamer/nature,paper,12m"],
    "Agents with a replay, as in `launch.evaluate`.",
)
_ENVIRONMENT = flags.DEFINE_string("environment", "crafter/reward", "Host environment.")
_REPEATS = flags.DEFINE_integer("repeats", 10, "Timed updates; 0 for the replay alone.", 0)
_UNROLLS = flags.DEFINE_integer("unrolls", 1000, "Unrolls of each environment in the replay.", 1)
_TURNS = 30  # Of the replay's operations.


def main(argv: list[str]) -> None:
    """Print the times of each agent."""
    del argv
    logging.set_verbosity(logging.WARNING)  # Orbax logs each step of a checkpoint.
    task = environments.make(_ENVIRONMENT.value)
    for name in _AGENTS.value:
        print(f"{name} in {task.name}")
        agent = registry.configured(name).make(task)
        drawn = _show_replay(agent, task.dynamics)
        if _REPEATS.value:
            _show_update(agent, drawn)


def _show_update(agent: Agent, batch: Batch) -> None:
    """Print the time of an update and of acting."""
    (update,), key = agent.requirements.updates, jax.random.key(0)
    state = jax.jit(agent.init)(key)

    def learn(state, batch, key):
        return agent.update(state, batch, key, update.name)

    def act(acting_state, memory, timestep, key):
        return agent.act(acting_state, memory, timestep, key, Mode.TRAINING)

    began = time.perf_counter()
    call, megabytes, _ = compiled(learn, state, batch, key)
    print(
        f"  update: compiled in {time.perf_counter() - began:.1f} s, {megabytes:.0f} MB temporary"
    )
    calls = {"update": call}
    for number in (1, 16):
        first = jax.tree.map(lambda x, n=number: x[0, :1].repeat(n, axis=0), batch.observation)
        zeros = np.zeros(number, np.float32)
        seen = dm_env.TimeStep(np.ones(number, np.int32), zeros, zeros, first)
        calls[f"a step in {number} environments"], *_ = compiled(
            act,
            agent.acting_state(state),
            agent.initial_memory(number),
            seen,
            key,
        )
    for name, seconds in time_in_turn(calls, _REPEATS.value).items():
        print(f"  {name}: {text(seconds)}", flush=True)


def _show_replay(agent: Agent, dynamics: Any) -> Batch:
    """Print the CPU times of the replay's operations and its size; return a drawn batch."""
    spec = agent.requirements
    (update,) = spec.updates
    example = collection.example(agent, dynamics, spec.num_environments, spec.unroll_length)
    unroll = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), example)
    unroll.last[:] = False
    layout = replay.make_layout(spec, _UNROLLS.value * spec.steps_per_unroll)
    kept = replay.init(layout, example, np)
    for _ in range(layout.num_kept):
        kept = replay.insert(spec, kept, unroll)
    number = layout.num_sequences(update, layout.num_kept)
    index = np.random.default_rng(0).integers(number, size=update.batch_size)
    _, batch, sequences = replay_sampling.sample(spec, kept, update, index)
    shapes = jax.eval_shape(
        lambda key: agent.update(agent.init(key), batch, key, update.name).refreshed,
        jax.random.key(0),
    )
    refreshed = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes)
    calls = {
        "storing an unroll": lambda: replay.insert(spec, kept, unroll).num_unrolls,
        "drawing": lambda: replay_sampling.sample(spec, kept, update, index)[1],
    }
    if refreshed:
        calls["writing back"] = lambda: (
            replay_sampling.write_back(spec, kept, update, sequences, refreshed).num_unrolls
        )
    for name, seconds in time_in_turn(calls, _TURNS, time.thread_time).items():
        print(f"  {name}: {text(seconds)} of CPU time")
    steps = layout.num_kept * spec.steps_per_unroll
    per_million = replay.num_bytes(kept) / steps * 1e6 / 2**30
    print(f"  a million steps take {per_million:.2f} GiB", flush=True)
    _show_checkpoints(layout, kept)
    return batch


def _show_checkpoints(layout: replay.ReplayLayout, kept: replay.Replay) -> None:
    """Print the CPU time of copying the filled rows for a checkpoint."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Checkpoints(pathlib.Path(folder), keep=1)) as checkpoints,
    ):
        for fraction in (0.001, 0.1, 0.5, 1.0):
            unrolls = max(1, round(fraction * layout.num_kept))
            state = replay.filled(layout, kept, unrolls)
            began = time.thread_time()
            checkpoints.save(unrolls, state)
            seconds = time.thread_time() - began
            steps = unrolls * layout.unroll_length * layout.num_environments
            print(f"  copying {steps:,} steps for a checkpoint: {seconds:.3f} s of CPU time")
            checkpoints.wait()


if __name__ == "__main__":
    app.run(main)
