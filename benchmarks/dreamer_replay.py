"""Dreamer's replay of a host environment: times of storing, drawing, writing back, checkpoints.

    python -m benchmarks.dreamer_replay --sizes=200m

Batches of 16 sequences of 64 steps, images of 64x64x3, 16 environments; no network is run. An
update waits for the storing of the last unroll and for its own batch. The latents of an update are
written back while the next one is computed, or the next unroll collected. A checkpoint has the rows
that are filled: training waits while they are copied, and goes on while they are written.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from dm_env import specs

from agents.dreamer.agent import DreamerAgent
from agents.dreamer.config import VERSIONS
from agents.dreamer.model import make_model
from agents.dreamer.networks import ActionPart
from agents.dreamer.presets import preset
from agents.protocol import Experience, Update
from disco_common.checkpoints import Checkpoints
from environments.processes import SerialSimulators
from training.host_pipeline import HostPipeline

_VERSION = flags.DEFINE_enum("version", "nature", VERSIONS, "Version of the agent.")
_SIZES = flags.DEFINE_list("sizes", ["12m", "200m"], "Sizes of the version.")
_REPEATS = flags.DEFINE_integer("repeats", 30, "Timed updates of each size.")
_UNROLLS = flags.DEFINE_integer("unrolls", 1000, "Rows of each environment in the replay.")

_NUM_ACTIONS = 17
_FILLED = (0.001, 0.1, 0.5, 1.0)  # Parts of the replay in the checkpoints.


class _Game(dm_env.Environment):
    """An environment with one image, whose episodes do not end."""

    def __init__(self, seed: int):
        self._image = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._image)

    def step(self, action: Any) -> dm_env.TimeStep:
        del action
        return dm_env.transition(0.0, self._image)

    def observation_spec(self) -> specs.Array:
        return specs.BoundedArray((64, 64, 3), np.uint8, 0, 255)

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(_NUM_ACTIONS)


@dataclasses.dataclass(frozen=True)
class _Games:
    """The dynamics of `_Game`."""

    def observation_spec(self) -> specs.Array:
        return _Game(0).observation_spec()

    def action_spec(self) -> specs.DiscreteArray:
        return _Game(0).action_spec()

    def start(
        self, task: Any, batch_size: int, seed: int, workers: int | None = None
    ) -> SerialSimulators:
        del task, workers
        return SerialSimulators(_Game, self, batch_size, seed)


@dataclasses.dataclass(frozen=True)
class _Storing:
    """Stores extras as `DreamerAgent` does, without its networks.

    Attributes:
      experience: of the agent.
      extras: shapes of what is stored with a step of one environment, by name.
    """

    experience: Experience
    extras: tuple[tuple[str, jax.ShapeDtypeStruct], ...]

    def init(self, key: Any) -> tuple[()]:
        del key
        return ()

    def acting_state(self, state: tuple[()]) -> tuple[()]:
        return state

    def initial_memory(self, batch_size: int) -> None:
        del batch_size

    def act(self, acting_state: Any, memory: None, timestep: Any, key: Any, mode: Any) -> Any:
        del acting_state, key, mode
        action = jnp.zeros_like(timestep.step_type)
        extras = {name: jnp.ones((*action.shape, *x.shape), x.dtype) for name, x in self.extras}
        return memory, action, extras

    def update(self, state: Any, batch: Any, key: Any, name: str) -> Update:
        del batch, key, name
        return Update(state, {})


def main(argv: list[str]) -> None:
    """Print a line for each size."""
    del argv
    for size in _SIZES.value:
        config = dataclasses.replace(
            preset(_VERSION.value, size), replay_capacity=16 * _UNROLLS.value
        )
        model = make_model(
            config, {"observation": _Games().observation_spec()}, {"action": ActionPart(17, True)}
        )
        extras = {
            "h": jax.ShapeDtypeStruct((config.deterministic,), jnp.float32),
            "z": jax.ShapeDtypeStruct((config.latents,), jnp.uint8),
        }
        seconds = _measure(_Storing(DreamerAgent(model).experience, tuple(extras.items())))
        print(f"{_VERSION.value} {size}: h has {config.deterministic} numbers")
        for name, each in seconds.items():
            wall, own = (sorted(times) for times in zip(*each, strict=True))
            middle = len(each) // 2
            print(
                f"    {name}: {1e3 * wall[middle]:.1f} ms (least {1e3 * wall[0]:.1f}),"
                f" {1e3 * own[middle]:.1f} ms of CPU time",
                flush=True,
            )


def _measure(agent: _Storing) -> dict[str, list[tuple[float, float]]]:
    """Return seconds and the thread's CPU seconds of each repetition, by operation."""
    (update,) = agent.experience.updates
    experience = HostPipeline(agent, _Games(), None, seed=0)
    seconds: dict[str, list[tuple[float, float]]] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        began, own = time.perf_counter(), time.thread_time()
        result = function()
        times = time.perf_counter() - began, time.thread_time() - own
        seconds.setdefault(name, []).append(times)
        return result

    shape = (update.length, update.batch_size)
    steps_per_unroll = agent.experience.steps_per_unroll
    filled = [max(1, round(fraction * _UNROLLS.value)) for fraction in _FILLED]
    with contextlib.ExitStack() as stack:
        stack.callback(experience.close)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checkpoints = stack.enter_context(contextlib.closing(Checkpoints(folder, keep=1)))
        for unroll in range(_UNROLLS.value + _REPEATS.value):
            experience.request((), unroll)
            before = experience.replay_seconds
            batch = experience.take().batch
            stored = experience.replay_seconds - before
            if unroll + 1 in filled:
                state = experience.filled_replay()
                rows = f"{steps_per_unroll * (unroll + 1):,} steps in a checkpoint"
                timed(f"copying {rows}", lambda i=unroll, state=state: checkpoints.save(i, state))
                timed(f"writing {rows}", checkpoints.wait)
            if unroll < _UNROLLS.value:
                continue
            seconds.setdefault("storing an unroll", []).append((stored, stored))
            drawn = timed(
                "drawing", lambda batch=batch, i=unroll: experience.draw(update, batch, i)
            )
            refreshed = {name: jnp.full((*shape, *x.shape), 1, x.dtype) for name, x in agent.extras}
            jax.block_until_ready(refreshed)
            experience.write_back(update, drawn, refreshed)
            timed("writing back", experience.flush)
    return seconds


if __name__ == "__main__":
    app.run(main)
