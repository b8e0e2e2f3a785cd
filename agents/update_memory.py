"""The memory that an update needs, estimated without compiling it, and the memory that is free."""

import contextlib
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import psutil
from jaxtyping import Array, PRNGKeyArray

_MEMBERSHIP = pathlib.Path("/proc/self/cgroup")
_CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")


def estimate_bytes(
    init: Callable[[PRNGKeyArray], Any], loss: Callable[..., Array], *inputs: Any
) -> int:
    """Estimate the memory of an update by a loss' gradient, in bytes.

    The estimate counts the residuals of the backward pass and five copies of the parameters: the
    parameters, gradients, two moments, and the new parameters. XLA's figures for a compiled update
    do not count the new parameters. At Dreamer's sizes 1m and 12m they exceed the rest of the
    estimate by 3% to 5%.

    Args:
      init: from a key to the parameters.
      loss: of the parameters and the inputs.
      *inputs: arrays or their shapes.
    """

    def residuals(*inputs: Any) -> Any:
        params = init(jax.random.key(0))
        return params, jax.vjp(lambda params: loss(params, *inputs), params)[1]

    params, kept = jax.eval_shape(residuals, *inputs)
    kept_bytes, params_bytes = (
        sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
        for tree in (kept, params)
    )
    return kept_bytes + 5 * params_bytes


def device_memory() -> int | None:
    """Return the memory of the first device in bytes; None for a CPU, which has the host's."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def free_memory() -> int:
    """Return the bytes of the host's memory that this process may still use.

    Both the machine and the process's control groups (of Linux's version 2) limit them.
    """
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError):  # No Linux.
        own = pathlib.PurePosixPath(_MEMBERSHIP.read_text().strip().rpartition(":")[2])
        for group in (own, *own.parents):
            folder = _CONTROL_GROUPS / group.relative_to("/")
            with contextlib.suppress(OSError, ValueError, StopIteration):  # "max" is no number.
                bound = int((folder / "memory.max").read_text())
                lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
                # Pages of files that can be dropped are counted as used.
                droppable = next(int(number) for name, number in lines if name == "inactive_file")
                used = int((folder / "memory.current").read_text())
                free = min(free, bound - used + droppable)
    return max(free, 0)


def require_fit(name: str, needed: int, smaller: str) -> None:
    """Check that an update fits in the device's memory.

    Args:
      name: of the agent.
      needed: bytes of an update.
      smaller: the settings that determine it, for the message.

    Raises:
      ValueError: if it does not fit.
    """
    free = device_memory() or free_memory()
    if needed > free:
        raise ValueError(
            f"An update of this {name} needs about {needed / 1e9:.1f} GB, and"
            f" {jax.local_devices()[0]} has {free / 1e9:.1f} GB; expected a smaller {smaller}."
        )
