"""Sharding of the population over a mesh of devices, of one process or of several.

The mesh has two axes. Agents are sharded over `agents`. Along `batch`, the devices of one agent
split its batches: the compiler partitions the computation and inserts the reductions over a batch
(moments, the lifetime RNN's input, gradients).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PyTree

import disco

AGENTS = "agents"
BATCH = "batch"

TreeT = TypeVar("TreeT", bound=PyTree[Array])


def make_mesh(devices_per_agent: int, devices: Sequence[Any] | None) -> Mesh:
    """Return a mesh of all devices of all processes, or of the given devices.

    Raises:
      ValueError: if `devices_per_agent` does not divide the number of devices of a process.
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
    """Return the sharding of arrays with a leading axis over agents."""
    return NamedSharding(mesh, P(AGENTS))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays that every device holds."""
    return NamedSharding(mesh, P())


def shard_map_over_agents(
    mesh: Mesh, function: Callable, arguments: str, out_specs: Any
) -> Callable:
    """Return a function of all agents that applies `function` to the agents of each device.

    Args:
      mesh: of the devices.
      function: of replicated arguments and of arguments with a leading axis over agents.
      arguments: "r" for each argument that is replicated, "a" for each with an axis over agents.
      out_specs: partition specs of the results.
    """
    specs = {"r": P(), "a": P(AGENTS)}
    # The compiler partitions the computation of one agent over the axis `batch`.
    is_batch_split = mesh.shape[BATCH] > 1
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(specs[argument] for argument in arguments),
        out_specs=out_specs,
        axis_names={AGENTS} if is_batch_split else set(mesh.axis_names),
        check_vma=False,
    )


def local_rows(mesh: Mesh, num_rows: int) -> Int[np.ndarray, "local"]:
    """Return which rows of arrays that are sharded over agents this process holds."""
    held = over_agents(mesh).addressable_devices_indices_map((num_rows,))
    rows = [np.arange(num_rows)[index] for index in held.values() if index is not None]
    return np.unique(np.concatenate(rows))


def split_batch(batch: disco.Trajectory) -> disco.Trajectory:
    """Split a batch over the devices of its agent, if it has several."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape.get(BATCH, 1) == 1:
        return batch

    def split(axis: int, tree: Any) -> Any:
        partition = P(*(None,) * axis, BATCH)
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, partition), tree)

    steps = split(1, dataclasses.replace(batch, core_state=None))
    return dataclasses.replace(steps, core_state=split(0, batch.core_state))


def all_gather_agents(tree: TreeT) -> TreeT:
    """Concatenate each leaf, `[agents, ...]`, over all devices, with one message for each dtype.

    For use inside `shard_map_over_agents`.
    """
    leaves, structure = jax.tree.flatten(tree)
    for dtype in sorted({x.dtype for x in leaves}, key=str):
        which = [i for i, x in enumerate(leaves) if x.dtype == dtype]
        flat, unravel = ravel_pytree([leaves[i] for i in which])
        parts = jax.vmap(unravel)(jax.lax.all_gather(flat, AGENTS))
        for i, part in zip(which, parts, strict=True):
            leaves[i] = part.reshape(-1, *part.shape[2:])
    return jax.tree.unflatten(structure, leaves)
