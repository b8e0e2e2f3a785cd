"""Jumanji's environments by name, for example `jumanji/Game2048-v1`.

Bonnet et al. (2024), arXiv 2306.09884, https://github.com/instadeepai/jumanji. Every episode is a
new instance (a maze, a graph, cities), drawn by the registered environment's own generator.

The suite `jumanji` is every environment that release 1.1.2 registers whose action is one choice
among a number (a `DiscreteArray`), except Sokoban-v0, which downloads its levels. It was chosen by
that alone, before anything was run on them. They are to judge by.

By name there are also those whose action is a vector of choices and whose reward is one number, for
example `jumanji/RubiksCube-v0`: each combination is an action, at most 1,000, numbered with the
last choice changing fastest.

**Observations** are float32 `[n]`, all that Jumanji's observation has, in its order. Only the specs
decide how it is encoded:

- integers with bounds, of 3 to 32 values: one-hot;
- other numbers with bounds, and truth values: from 0 at the lower bound to 1 at the upper one;
- integers without bounds: sign(x) log(1 + |x|), as encoders read wide integers elsewhere here; real
  numbers without bounds: as they are.

**Illegal actions.** Agents here know no masks of actions; `action_mask` is a part of the
observation. An illegal action does what it does in Jumanji: the player, tile or board does not move
in Game2048, Maze, PacMan and SlidingTilePuzzle; the episode terminates in the others, with a
penalty in TSP (-28.3), CVRP (-56.6) and GraphColoring (-20).

**Ends.** Jumanji's time limits (100 steps in Maze, 500 in SlidingTilePuzzle, 1,000 in PacMan, 4,000
in Snake) are terminations there, and truncations here; where an episode ends by itself in its last
step, it has terminated. Returns are the same.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from environments.base import (
    Environment,
    State,
    TaskParams,
    cast,
    promoting,
    restart,
    transition,
)
from environments.errors import EnvironmentNameError, import_package, unknown_name

MOST_ACTIONS = 1_000
_MOST_CATEGORIES = 32  # Of an integer that is encoded one-hot.
_IDS = """Game2048-v1 GraphColoring-v1 Knapsack-v1 Maze-v0 PacMan-v1 SlidingTilePuzzle-v0 Snake-v1
    TSP-v1 CVRP-v1""".split()
SUITES = {"jumanji": tuple(f"jumanji/{environment_id}" for environment_id in _IDS)}


@dataclasses.dataclass(frozen=True)
class Jumanji:
    """A registered environment of Jumanji, which is its own only task.

    Attributes:
      environment_id: Jumanji's name for it, with its version.
    """

    environment_id: str

    def observation_spec(self) -> specs.Array:
        leaves = _load(self.environment_id).leaves
        size = sum(leaf.size for leaf in leaves)
        return specs.Array((size,), np.float32, name="observation")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(math.prod(_load(self.environment_id).choices), name="action")

    def reset(self, task: TaskParams, key: PRNGKeyArray) -> tuple[State, dm_env.TimeStep]:
        del task
        loaded = _load(self.environment_id)
        with promoting():
            # The key becomes a part of the state, as an array of integers.
            state, timestep = loaded.engine.reset(jax.random.key_data(key))
            observation = _encoded(loaded.leaves, timestep.observation)
        return cast(state, loaded.state_types), restart(observation)

    def step(
        self, task: TaskParams, state: State, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        """Take one step, whose randomness is that of the key that `reset` was given."""
        del task, key
        loaded = _load(self.environment_id)
        with promoting():
            chosen = jnp.unravel_index(action, loaded.choices)
            chosen = jnp.stack(chosen) if loaded.is_vector else chosen[0]
            state, timestep = loaded.engine.step(state, chosen)
            observation = _encoded(loaded.leaves, timestep.observation)
        truncated = timestep.last() & (timestep.discount > 0.0)
        if loaded.time_limit is not None:
            truncated |= state.step_count >= loaded.time_limit
        return cast(state, loaded.state_types), transition(
            observation,
            timestep.reward,
            terminated=timestep.last() & (timestep.discount == 0.0),
            truncated=truncated,
        )


def make(name: str) -> Environment:
    """Make `jumanji/<Jumanji's own name>`.

    Raises:
      EnvironmentNameError: if there is none of this name, or its actions are not one choice or a
        vector of choices, or its rewards not one number, or it could not download its data.
      MissingPackageError: if Jumanji is not installed.
    """
    jumanji = import_package("jumanji", "jumanji", "jumanji/…")
    environment_id = name.partition("/")[2]
    known = sorted(jumanji.registered_environments())
    if environment_id not in known:
        listed = [f"jumanji/{known_id}" for known_id in known]
        raise unknown_name(name, listed, "jumanji.registered_environments() lists all.")
    _load(environment_id)
    return Environment(name=name, dynamics=Jumanji(environment_id))


class _Leaf(NamedTuple):
    """How an array of an observation is encoded.

    Attributes:
      bounds: lower bounds of its numbers, and the spans from there to the upper ones, 1 where both
        are equal; None for none.
      categories: values of each of its numbers, which is encoded one-hot; 0 for others.
      is_integer: whether its numbers are integers or truth values.
      size: numbers in its encoding.
    """

    bounds: tuple[Float[np.ndarray, "numbers"], Float[np.ndarray, "numbers"]] | None
    categories: int
    is_integer: bool
    size: int

    @classmethod
    def of(cls, spec: Any) -> "_Leaf":
        """Return the encoding of an array of one of Jumanji's specs."""
        number, is_integer = math.prod(spec.shape), not jnp.issubdtype(spec.dtype, jnp.floating)
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), spec.shape).ravel()
            for bound in (getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf))
        )
        if not np.isfinite([low, high]).all():
            return cls(None, 0, is_integer, number)
        span = high - low
        values = 1 + int(span.max())
        categories = values if is_integer and 2 < values <= _MOST_CATEGORIES else 0
        bounds = low, np.where(span > 0.0, span, np.float32(1.0))
        return cls(bounds, categories, is_integer, number * max(categories, 1))

    def encode(self, numbers: Shaped[Array, "..."] | int) -> Float[Array, "size"]:
        """Return the encoding of the array."""
        x = jnp.ravel(jnp.asarray(numbers))
        x = x.astype(jnp.float32)
        if self.bounds is None:
            return jnp.sign(x) * jnp.log1p(jnp.abs(x)) if self.is_integer else x
        low, span = self.bounds
        if not self.categories:
            return (x - low) / span
        index = (x - low).astype(jnp.int32)
        return jnp.ravel(jax.nn.one_hot(index, self.categories, dtype=jnp.float32))


def _encoded(leaves: tuple[_Leaf, ...], observation: Any) -> Float[Array, "inputs"]:
    arrays = jax.tree.leaves(observation)
    return jnp.concatenate([leaf.encode(x) for leaf, x in zip(leaves, arrays, strict=True)])


class _Loaded(NamedTuple):
    """An environment of Jumanji.

    Attributes:
      engine: Jumanji's; a time limit of its own is never reached.
      time_limit: steps of an episode; None for no limit.
      choices: number of each choice that an action consists of.
      is_vector: whether Jumanji's actions are vectors.
      leaves: encodings of the arrays of an observation.
      state_types: the state's shapes and dtypes.
    """

    engine: Any
    time_limit: int | None
    choices: tuple[int, ...]
    is_vector: bool
    leaves: tuple[_Leaf, ...]
    state_types: Any


@functools.cache
def _load(environment_id: str) -> _Loaded:
    jumanji = import_package("jumanji", "jumanji", "jumanji/…")
    # Arrays that Jumanji makes here outlive the trace that this call may be part of.
    with jax.ensure_compile_time_eval(), promoting():
        try:
            engine = jumanji.make(environment_id)
        except OSError as error:
            raise EnvironmentNameError(
                f"Jumanji cannot make {environment_id!r}, as it could not download its data:"
                f" {error}"
            ) from error
        choices, is_vector = _choices(environment_id, engine)
        spec, time_limit = engine.observation_spec, getattr(engine, "time_limit", None)
        if time_limit is not None:  # Its own is a termination: one step later, it never comes.
            engine = jumanji.make(environment_id, time_limit=time_limit + 1)
    with promoting():
        leaves, state_types = _shapes(engine, spec, is_vector, len(choices))
    return _Loaded(engine, time_limit, choices, is_vector, leaves, state_types)


def _choices(environment_id: str, engine: Any) -> tuple[tuple[int, ...], bool]:
    """Return the number of each choice of an action, and whether an action is a vector.

    Raises:
      EnvironmentNameError: if actions are something else, or too many, or rewards not one number.
    """
    spec = engine.action_spec
    choices = tuple(int(number) for number in np.ravel(getattr(spec, "num_values", ())))
    if not 0 < math.prod(choices or (0,)) <= MOST_ACTIONS or engine.reward_spec.shape:
        kind = f"{type(spec).__name__} {list(choices)}" if choices else type(spec).__name__
        raise EnvironmentNameError(
            f"'jumanji/{environment_id}' has actions {kind} and rewards of shape"
            f" {engine.reward_spec.shape}; expected at most {MOST_ACTIONS:,} combinations of"
            f" choices, and one reward. For example: {', '.join(SUITES['jumanji'][:2])}."
        )
    return choices, bool(spec.shape)


def _shapes(
    engine: Any, spec: Any, is_vector: bool, num_choices: int
) -> tuple[tuple[_Leaf, ...], Any]:
    """Return the encodings of an observation's arrays, and the state's shapes and dtypes."""
    key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    action = jax.ShapeDtypeStruct((num_choices,) if is_vector else (), jnp.int32)
    first, timestep = jax.eval_shape(engine.reset, key)
    second, _ = jax.eval_shape(engine.step, first, action)
    state_types = jax.tree.map(
        lambda a, b: jax.ShapeDtypeStruct(b.shape, jnp.promote_types(a.dtype, b.dtype)),
        first,
        second,
    )
    paths = [path for path, _ in jax.tree.flatten_with_path(timestep.observation)[0]]
    of_paths = [functools.reduce(lambda x, key: getattr(x, key.name), path, spec) for path in paths]
    return tuple(_Leaf.of(one) for one in of_paths), state_types
