"""An update of Dreamer, and a step of acting: time, memory, compile time.

    python -m benchmarks.dreamer
    python -m benchmarks.dreamer --sizes=12m --repeats=5

Images of 64x64x3, 17 actions, batches of 16 sequences of 64 steps. docs/measurements/dreamer.md
compares with the authors' code at these sizes.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from dm_env import specs

from agents.dreamer import learner
from agents.dreamer.config import VERSIONS
from agents.dreamer.model import count_parameters, make_model
from agents.dreamer.networks import ActionPart
from agents.dreamer.presets import preset
from agents.dreamer.rssm import initial_state
from agents.dreamer.sequences import Batch
from benchmarks.timing import compiled

_VERSION = flags.DEFINE_enum("version", "nature", VERSIONS, "Version of the agent.")
_SIZES = flags.DEFINE_list("sizes", ["1m", "12m"], "Sizes of the version.")
_REPEATS = flags.DEFINE_integer("repeats", 10, "Timed updates of each size.")
_ENVIRONMENTS = flags.DEFINE_list("environments", ["1", "16"], "Numbers of environments.")

_IMAGE = specs.BoundedArray((64, 64, 3), np.uint8, 0, 255)
_NUM_ACTIONS = 17


def main(argv: list[str]) -> None:
    """Print a line for each size."""
    del argv
    for size in _SIZES.value:
        config = preset(_VERSION.value, size)
        model = make_model(
            config, {"image": _IMAGE}, {"action": ActionPart(_NUM_ACTIONS, is_discrete=True)}
        )
        state = jax.jit(learner.init, static_argnums=0)(model, jax.random.key(0))
        shape = (config.batch_length, config.batch_size)
        keys = jax.random.split(jax.random.key(2), 3)
        never = jnp.zeros(shape, bool)
        batch = Batch(
            observation={
                "image": jax.random.randint(keys[0], (*shape, *_IMAGE.shape), 0, 256, jnp.uint8)
            },
            action={"action": jax.random.randint(keys[1], shape, 0, _NUM_ACTIONS)},
            reward=jax.random.normal(keys[2], shape),
            is_first=never,
            is_last=never,
            is_terminal=never,
        )
        start = initial_state(config, config.batch_size)
        key = jax.random.key(1)
        began = time.perf_counter()
        update = jax.jit(learner.update, static_argnums=0, donate_argnums=1)
        program = update.lower(model, state, batch, start, key).compile()
        compile_seconds = time.perf_counter() - began
        memory = program.memory_analysis()
        megabytes = (memory.temp_size_in_bytes if memory else 0) / 1e6
        seconds = []
        for _ in range(1 + _REPEATS.value):
            began = time.perf_counter()
            state, *_ = jax.block_until_ready(program(state, batch, start, key))
            seconds.append(time.perf_counter() - began)
        counted = sorted(seconds[1:])
        print(
            f"{_VERSION.value} {size}: {count_parameters(state.params):,} parameters; compiled in"
            f" {compile_seconds:.1f} s; {megabytes:.0f} MB temporary; an update"
            f" {counted[len(counted) // 2]:.2f} s (least {counted[0]:.2f}), {len(counted)} timed",
            flush=True,
        )
        for number in map(int, _ENVIRONMENTS.value):
            actor = learner.initial_actor(model, number)
            seen = {"image": batch.observation["image"][0, :1].repeat(number, axis=0)}
            act = partial(learner.act, model)
            call, *_ = compiled(act, state.params, actor, seen, jnp.zeros(number, bool), key)
            times = []
            for _ in range(100):
                began = time.perf_counter()
                jax.block_until_ready(call())
                times.append(time.perf_counter() - began)
            print(f"    a step in {number} environments: {1e3 * np.median(times):.1f} ms")


if __name__ == "__main__":
    app.run(main)
