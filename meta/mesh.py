"""Devices: a mesh of `agents` by `batch`, which one process may hold or many together.

Agents are spread over the first axis. Along the second one, the devices of one agent split its
batches: the compiler divides what is computed on them and adds up what the specification averages
over a batch (moments, the lifetime RNN's input, gradients).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int

import disco

AGENTS = "agents"
BATCH = "batch"


def make_mesh(devices_per_agent: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of all devices of all processes, or of some.

    Raises:
      ValueError: if an agent's devices cannot be as many.
    """
    num_local = jax.local_device_count()
    if devices_per_agent < 1 or num_local % devices_per_agent:
        raise ValueError(
            f"devices_per_agent is {devices_per_agent}; expected a divisor of the number of"
            f" devices of each process ({num_local})."
        )
    grid = np.array(jax.devices() if devices is None else devices).reshape(-1, devices_per_agent)
    return Mesh(grid, (AGENTS, BATCH))


def over_agents(mesh: Mesh) -> NamedSharding:
    """Arrays with a leading axis over agents, spread over the mesh."""
    return NamedSharding(mesh, P(AGENTS))


def on_all(mesh: Mesh) -> NamedSharding:
    """Arrays that every device holds."""
    return NamedSharding(mesh, P())


def for_each_device(mesh: Mesh, function: Callable, arguments: str, out_specs: Any) -> Callable:
    """`function` of one device's agents, for all devices.

    Args:
      mesh: of them.
      function: of replicated arguments and of some with a leading axis over agents.
      arguments: "r" for each that is replicated, "a" for each that is spread over agents.
      out_specs: of its results, over agents.
    """
    specs = {"r": P(), "a": P(AGENTS)}
    # How the devices of one agent divide its work is left to the compiler.
    is_divided = mesh.shape[BATCH] > 1
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(specs[argument] for argument in arguments),
        out_specs=out_specs,
        axis_names={AGENTS} if is_divided else set(mesh.axis_names),
        check_vma=False,
    )


def own_rows(mesh: Mesh, num_rows: int) -> Int[np.ndarray, "own"]:
    """Which rows of arrays that are spread over agents this process holds."""
    held = over_agents(mesh).addressable_devices_indices_map((num_rows,))
    rows = [np.arange(num_rows)[index] for index in held.values() if index is not None]
    return np.unique(np.concatenate(rows))


def split_batch(batch: disco.Trajectory) -> disco.Trajectory:
    """Splits a batch over the devices of its agent, where it has several."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape.get(BATCH, 1) == 1:
        return batch

    def split(axis: int, tree: Any) -> Any:
        spec = P(*(None,) * axis, BATCH)
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, spec), tree)

    steps = split(1, dataclasses.replace(batch, core_state=None))
    return dataclasses.replace(steps, core_state=split(0, batch.core_state))
