"""The final agent of a run on disk: `agent.npz` contains its learning state."""

import io
import pathlib
from typing import Any

import jax
import numpy as np

from disco import npz
from disco_common.checkpoints import by_path
from disco_common.files import write_atomically

FILE = "agent.npz"


class SavedAgentError(ValueError):
    """A saved agent cannot be read; the message names the file, and says why."""


def save(folder: pathlib.Path, state: Any) -> None:
    """Write a learning state.

    Nothing is written of a state without arrays. The folder exists.

    Raises:
      OSError: naming the file, if it cannot be written.
    """
    arrays = {name: np.asarray(x) for name, x in by_path(state).items()}
    if not arrays:
        return
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_atomically(folder / FILE, buffer.getvalue())


def load(folder: pathlib.Path, like: Any) -> Any:
    """Read a learning state.

    Args:
      folder: of the run.
      like: a state of the same agent, or its shapes (`jax.eval_shape(agent.init, key)`).

    Returns:
      A pytree of the structure of `like`, of NumPy arrays.

    Raises:
      FileNotFoundError: if the run saved no agent.
      SavedAgentError: if the file is damaged, or is another agent's.
    """
    path, expected = folder / FILE, by_path(like)
    if not expected:  # Nothing was written.
        return like
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; expected the final agent, which runs of this version save."
        )
    try:
        arrays = npz.read(path)
    except npz.ArchiveError as error:
        raise SavedAgentError(f"{path} {error}") from error
    if set(arrays) != set(expected):
        raise SavedAgentError(
            f"{path} is that of another agent: it has {sorted(arrays)}; expected"
            f" {sorted(expected)}."
        )
    for name in expected:
        found = arrays[name]
        shape, dtype = expected[name].shape, np.dtype(expected[name].dtype)
        if found.dtype == f"V{dtype.itemsize}":  # NumPy does not know bfloat16.
            arrays[name] = found = found.view(dtype)
        if (found.shape, found.dtype) != (shape, dtype):
            raise SavedAgentError(
                f"{path} is that of another agent: {name} is {found.dtype} {found.shape}; expected"
                f" {dtype} {shape}."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])
