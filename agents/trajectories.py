"""Batches of trajectories, of which most arrays have the batch as their second axis."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import disco


def map_batch(function: Callable[..., Any], *trajectories: Any) -> Any:
    """`function(axis, *leaves)` of all leaves, where `axis` is that of the batch.

    Args:
      function: of the axis and a leaf of each of the trajectories.
      trajectories: or others of their structure, with leaves of any kind.
    """
    states = (trajectory.core_state for trajectory in trajectories)
    state = jax.tree.map(lambda *leaves: function(0, *leaves), *states)
    rest = (dataclasses.replace(trajectory, core_state=None) for trajectory in trajectories)
    mapped = jax.tree.map(lambda *leaves: function(1, *leaves), *rest)
    return dataclasses.replace(mapped, core_state=state)


def side_by_side(trajectories: Sequence[disco.Trajectory]) -> disco.Trajectory:
    """As one batch; of NumPy arrays, another of NumPy arrays."""
    if len(trajectories) == 1:
        return trajectories[0]
    library = np if isinstance(trajectories[0].action, np.ndarray) else jnp
    return map_batch(lambda axis, *x: library.concatenate(x, axis=axis), *trajectories)
