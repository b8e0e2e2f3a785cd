"""A run, and its result."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

import environments
from training.records import EpisodeSums


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of an agent.

    Attributes:
      task: its environment.
      seed: of all randomness.
      folder: for its records and its final agent.
    """

    task: environments.Environment
    seed: int
    folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """The result of a run.

    Attributes:
      episodes: sums over the episodes that ended, in the order of their steps.
      is_finite: whether the final learning state and all recorded metrics are finite.
      start_seconds: wall time of compilation and start. Runs that are trained together share it:
        each has the time divided by their number. 0 in host environments.
      train_seconds: wall time of training, without compilation, over all sessions of the run; of
        runs that are trained together, the time divided by their number.
      restarts: number of simulator processes that died and were replaced.
      learner: the final learning state, NumPy; None for a self-contained agent.
    """

    episodes: tuple[EpisodeSums, ...]
    is_finite: bool
    start_seconds: float
    train_seconds: float
    restarts: int = 0
    learner: Any = None


def all_finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Return whether all floating-point numbers of a pytree are finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in floats], bool))
