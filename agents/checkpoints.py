"""Checkpoints of a run, through Orbax.

A checkpoint holds every array of a state under its path, and a manifest with each
array's shape, dtype and CRC-32. What is damaged is noticed when it is read, and the one before
it is used.
"""

import logging
import pathlib
import shutil
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

T = TypeVar("T")

# Seconds for a write. Orbax measures them by the wall clock, which may jump by hours.
_PATIENCE = 24 * 3600

_log = logging.getLogger(__name__)


class CheckpointError(OSError):
    """A checkpoint cannot be written, or none can be read."""


class Checkpoints:
    """The newest few checkpoints of one run.

    Attributes:
      directory: where they are; each is a folder named by its step.
    """

    def __init__(self, directory: pathlib.Path, keep: int = 3):
        """Opens the folder, creating it if need be.

        Args:
          directory: for the checkpoints.
          keep: how many of the newest to keep.

        Raises:
          CheckpointError: if the folder cannot be created or written.
        """
        self.directory = directory.absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(f"Cannot write checkpoints in {directory}: {error}.") from error
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                cleanup_tmp_directories=True,
                async_options=ocp.AsyncOptions(timeout_secs=_PATIENCE),
            ),
        )

    def save(self, step: int, state: Any) -> None:
        """Writes a checkpoint; the disk is written while the caller goes on.

        The state is copied to the host first, so it may be donated afterwards. A partly
        written checkpoint never counts: Orbax renames it when it is complete.

        Raises:
          CheckpointError: if this or an earlier write failed.
        """
        arrays = {name: np.asarray(x) for name, x in _by_path(state).items()}
        manifest = {name: _fingerprint(x) for name, x in arrays.items()}
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(arrays),  # pyright: ignore[reportCallIssue]
            manifest=ocp.args.JsonSave(manifest),  # pyright: ignore[reportCallIssue]
        )
        self._guarded(lambda: self._manager.save(step, args=args, force=True))

    def check(self) -> None:
        """Raises CheckpointError if a write in the background failed."""
        self._guarded(self._manager.check_for_errors)

    def wait(self) -> None:
        """Waits until everything is on disk. Raises CheckpointError if it could not be."""
        self._guarded(self._manager.wait_until_finished)

    def close(self) -> None:
        """Waits for a write in the background, and ends the threads that do it.

        Raises:
          CheckpointError: if that write failed.
        """
        try:
            self.wait()
        finally:
            self._guarded(self._manager.close)

    def restore(self, like: T) -> tuple[int, T] | None:
        """The newest good checkpoint.

        Damaged ones are reported, moved to `damaged/` beside the others, and passed over.

        Args:
          like: a state of the structure, shapes and dtypes to restore; arrays or
            `jax.ShapeDtypeStruct`s.

        Returns:
          Its step and state, in NumPy arrays; None if there is no checkpoint.

        Raises:
          CheckpointError: if there are checkpoints and none is good, or if one was written for
            a run of other sizes.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            try:
                arrays = self._read(step)
            except Exception as error:  # Whatever a damaged file makes Orbax raise.
                _log.warning(
                    "Checkpoint %s is damaged (%s); using the one before it.",
                    self.directory / str(step),
                    _reason(error),
                )
                continue
            state = self._fit(step, arrays, like)
            for damaged in (s for s in steps if s > step):
                self._set_aside(damaged)
            return step, state
        if steps:
            raise CheckpointError(
                f"None of the checkpoints {sorted(steps)} in {self.directory} can be read."
            )
        return None

    def load(self, step: int, like: T) -> T:
        """The checkpoint of one step, in NumPy arrays; nothing on disk is touched.

        Args:
          step: of the checkpoint.
          like: as for `restore`.

        Raises:
          CheckpointError: if there is none of that step, or it is damaged, or was written for a
            run of other sizes.
        """
        steps = sorted(self._manager.all_steps())
        if step not in steps:
            raise CheckpointError(
                f"{self.directory} has no checkpoint of step {step}; it has {steps}."
            )
        try:
            arrays = self._read(step)
        except Exception as error:  # Whatever a damaged file makes Orbax raise.
            raise CheckpointError(
                f"Checkpoint {self.directory / str(step)} is damaged: {_reason(error)}."
            ) from error
        return self._fit(step, arrays, like)

    def _read(self, step: int) -> Mapping[str, np.ndarray]:
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(),  # pyright: ignore[reportCallIssue]
            manifest=ocp.args.JsonRestore(),  # pyright: ignore[reportCallIssue]
        )
        restored = self._manager.restore(step, args=args)
        arrays = {name: np.asarray(x) for name, x in restored["state"].items()}
        manifest = restored["manifest"]
        if set(arrays) != set(manifest):
            raise ValueError("the arrays are not those of the manifest")
        for name, array in arrays.items():
            if _fingerprint(array) != manifest[name]:
                raise ValueError(f"array {name!r} is not what was written")
        return arrays

    def _fit(self, step: int, arrays: Mapping[str, np.ndarray], like: T) -> T:
        expected = _by_path(like)
        if set(arrays) != set(expected):
            odd = sorted(set(arrays) ^ set(expected))[:3]
            raise CheckpointError(
                f"Checkpoint {self.directory / str(step)} is of another kind of run: it differs"
                f" in {odd}."
            )
        for name, target in expected.items():
            found = (arrays[name].shape, arrays[name].dtype)
            if found != (target.shape, target.dtype):
                raise CheckpointError(
                    f"Checkpoint {self.directory / str(step)} is of a run of other sizes: {name}"
                    f" is {found}; expected {(target.shape, target.dtype)}."
                )
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])

    def _set_aside(self, step: int) -> None:
        target = self.directory.parent / "damaged" / str(step)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        shutil.move(self.directory / str(step), target)
        self._manager.reload()

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            if len(reason) > 300:  # The file is named first, the cause last.
                reason = f"{reason[:150]} ... {reason[-150:]}"
            # The manager forgets those that it meant to replace, though they are still there.
            complete = sorted(int(p.name) for p in self.directory.iterdir() if p.name.isdigit())
            raise CheckpointError(
                f"Cannot write a checkpoint in {self.directory}: {reason}. Those that are"
                f" complete are untouched: {complete}."
            ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _by_path(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _fingerprint(array: np.ndarray) -> list:
    content = np.ascontiguousarray(array)
    return [list(array.shape), str(array.dtype), zlib.crc32(content.tobytes())]
