"""Craftax-Classic (Matthews et al. 2024, arXiv 2402.16801): Crafter in JAX, inside `jit`.

Two environments: `craftax_classic/symbolic`, the suite, and `craftax_classic/pixels`. They differ
from `crafter/reward`. The rules are nearly Crafter's (a furnace costs one stone instead of four,
iron tools cost a stone more), but another generator makes the worlds, and there are never more than
3 zombies, 3 cows and 2 skeletons. Scores cannot be compared with Crafter's.

17 actions, in Crafter's order; no frame skip. The observation is float32 `[1345]` (of each of
the 7x9 blocks in view its kind and the creature on it, one-hot; then the inventory, the body,
the direction, the light), or a uint8 image `[63, 63, 3]`. Each of 22 achievements pays 1 when it
is first unlocked in an episode, each health point lost or gained -0.1 or +0.1. Death, also in
lava, is a termination; an episode is truncated after 10,000 steps.

Worlds repeat: an episode takes place in one of 1,024, where Crafter makes a new one. Making a world
takes about ten times as long as a step, and inside `jit` one would be made at every step (see
`environments.base.stream`). So they are made once per process, in about ten seconds including
compilation; their maps, 4 MB, are the task. They depend only on the versions of JAX and craftax,
and on the kind of device.

`results` has an entry per achievement, by the names of `environments.suites.crafter`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, UInt8

from environments.base import Environment, State, cast, promoting, restart, strong, transition
from environments.errors import import_package
from environments.suites.crafter import ACHIEVEMENTS, NUM_ACTIONS, TIME_LIMIT

NUM_WORLDS = 1024
SUITES = {"craftax_classic": ("craftax_classic/symbolic",)}


@dataclasses.dataclass(frozen=True)
class CraftaxClassic:
    """Craftax-Classic; the task is the worlds' maps, uint8 `[worlds, 64, 64]`.

    Attributes:
      observation: `"symbolic"` or `"pixels"`.
      time_limit: steps after which an episode is truncated.
    """

    observation: str = "symbolic"
    time_limit: int = TIME_LIMIT

    def observation_spec(self) -> specs.BoundedArray:
        if self.observation == "pixels":
            return specs.BoundedArray((63, 63, 3), np.uint8, 0, 255, name="image")
        return specs.BoundedArray((1345,), np.float32, 0.0, 1.0, name="symbols")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(NUM_ACTIONS, name="action")

    def reset(
        self, task: UInt8[Array, "worlds 64 64"], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        world_key, engine_key = jax.random.split(key)
        world = jax.random.randint(world_key, (), 0, task.shape[0])
        # Worlds differ in their maps only.
        state = _worlds().start.replace(
            map=task[world].astype(jnp.int32), state_rng=jax.random.key_data(engine_key)
        )
        with promoting():
            observation = _engine(self.observation).get_obs(state)
        return state, restart(self._convert(observation))

    def step(
        self,
        task: UInt8[Array, "worlds 64 64"],
        state: State,
        action: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[State, dm_env.TimeStep]:
        del task
        engine = _engine(self.observation)
        # The engine does not distinguish its own time limit from a death: it is never reached.
        params = engine.default_params.replace(max_timesteps=np.iinfo(np.int32).max)
        # The engine keeps the key in its state, as an array of integers.
        with promoting():
            observation, state, reward, terminated, _ = engine.step_env(
                jax.random.key_data(key), state, action, params
            )
        return cast(state, _worlds().start), transition(
            self._convert(observation),
            reward,
            terminated=terminated,
            truncated=state.timestep >= self.time_limit,
        )

    def results(
        self, task: UInt8[Array, "worlds 64 64"], state: State
    ) -> dict[str, Float[Array, ""]]:
        """Return which achievements were unlocked in the episode so far."""
        del task
        achievements = _import("craftax_classic.constants").Achievement
        return {
            name: state.achievements[achievements[name.upper()].value].astype(jnp.float32)
            for name in ACHIEVEMENTS
        }

    def _convert(self, observation: Float[Array, "..."]) -> Array:
        if self.observation == "pixels":
            return jnp.clip(jnp.round(255.0 * observation), 0, 255).astype(jnp.uint8)
        return observation.astype(jnp.float32)


def make(name: str) -> Environment:
    """Make `craftax_classic/symbolic` or `craftax_classic/pixels`. The first call takes seconds.

    Raises:
      MissingPackageError: if craftax is not installed.
    """
    _import("craftax_env")
    dynamics = CraftaxClassic(name.removeprefix("craftax_classic/"))
    return Environment(name=name, dynamics=dynamics, params=_worlds().maps)


class _Worlds(NamedTuple):
    """The worlds.

    Attributes:
      start: the state in which episodes of the first world start.
      maps: of all worlds, which differ in nothing else.
    """

    start: State
    maps: UInt8[Array, "worlds 64 64"]


@functools.cache
def _worlds() -> _Worlds:
    # Arrays that are made here outlive the trace that this call may be part of.
    with jax.ensure_compile_time_eval():
        states = _states(jax.random.split(jax.random.key(0), NUM_WORLDS))
        start = jax.tree.map(lambda leaf: strong(leaf[0]), states)
        return _Worlds(start, states.map.astype(jnp.uint8))


@jax.jit
def _states(keys: Key[Array, "worlds"]) -> State:
    """Return the first states of new worlds, made in sequence: far faster here than by `vmap`."""
    engine = _engine("symbolic")

    def state(key: PRNGKeyArray) -> State:
        with promoting():
            return engine.reset_env(jax.random.key_data(key), engine.default_params)[1]

    return jax.lax.map(state, keys)


@functools.cache
def _engine(observation: str) -> Any:
    make_engine = _import("craftax_env").make_craftax_env_from_name
    with jax.ensure_compile_time_eval():
        return make_engine(f"Craftax-Classic-{observation.capitalize()}-v1", auto_reset=False)


def _import(module: str) -> Any:
    return import_package(f"craftax.{module}", "craftax", "craftax_classic/…")
