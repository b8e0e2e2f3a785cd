"""Checkpoints of a run, through Orbax.

A checkpoint holds every array of a state under its path, and a manifest with each array's shape,
dtype and CRC-32. What is damaged is noticed when it is read, and the one before it is used.

Several processes write one checkpoint together, each what its devices hold, and read what theirs
will hold, also when they are fewer or more than those that wrote it. They need a file system that
all of them share. Arrays may be stacked over agents, and padded at the end with copies so that
they divide among devices; the manifest has then a CRC-32 for each agent.
"""

import itertools
import logging
import pathlib
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from disco import json_lines

T = TypeVar("T")

# Seconds for a write. Orbax measures them by the wall clock, which may jump by hours.
_PATIENCE = 24 * 3600

_FORMAT = 2

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
        process = jax.process_index()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / f".writable_{process}"
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
        # Each process reads by itself: where one finds damage, no other is left waiting for it.
        alone = ocp.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"{process}"
        )
        self._reader = ocp.Checkpointer(
            ocp.CompositeCheckpointHandler(), multiprocessing_options=alone
        )

    def save(self, step: int, state: Any, agents: Any = 0) -> None:
        """Writes a checkpoint; the disk is written while the caller goes on.

        The state is copied to the host first, so it may be donated afterwards. A partly
        written checkpoint never counts: Orbax renames it when it is complete.

        Args:
          step: its number.
          state: arrays.
          agents: a prefix of the state: how many agents the arrays are stacked over, without
            padding; 0 for those that are not.

        Raises:
          CheckpointError: if this or an earlier write failed.
        """
        arrays, counts = _by_path(state), _counts(state, agents)
        arrays = {
            name: x if isinstance(x, jax.Array) else np.array(x) for name, x in arrays.items()
        }
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(arrays),  # pyright: ignore[reportCallIssue]
            manifest=ocp.args.JsonSave(_manifest(arrays, counts)),  # pyright: ignore
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
            self._reader.close()

    def restore(self, like: T, agents: Any = 0) -> tuple[int, T] | None:
        """The newest good checkpoint.

        Damaged ones are reported, moved to `damaged/` beside the others, and passed over.

        Args:
          like: a state of the structure, shapes and dtypes to restore; arrays or
            `jax.ShapeDtypeStruct`s.
          agents: as for `save`. Those arrays may be padded more or less than they were; what
            pads them is undefined.

        Returns:
          Its step and state, on the devices where `like` has a shape with a sharding and
          otherwise in NumPy arrays; None if there is no checkpoint.

        Raises:
          CheckpointError: if there are checkpoints and none is good, or if one was written for
            a run of other sizes, or by another version of this module.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for step in steps:
            state, damage = self._read(step, like, agents)
            if damage is not None:
                _log.warning(
                    "Checkpoint %s is damaged (%s); using the one before it.",
                    self.directory / str(step),
                    damage,
                )
                continue
            self._set_aside([s for s in steps if s > step])
            return step, state
        if steps:
            raise CheckpointError(
                f"None of the checkpoints {sorted(steps)} in {self.directory} can be read."
            )
        return None

    def load(self, step: int, like: T, agents: Any = 0) -> T:
        """The checkpoint of one step; nothing on disk is touched.

        Args:
          step: of the checkpoint.
          like: as for `restore`, which says what is returned.
          agents: likewise.

        Raises:
          CheckpointError: if there is none of that step, or it is damaged, or was written for a
            run of other sizes.
        """
        steps = sorted(self._manager.all_steps())
        if step not in steps:
            raise CheckpointError(
                f"{self.directory} has no checkpoint of step {step}; it has {steps}."
            )
        state, damage = self._read(step, like, agents)
        if damage is not None:
            raise CheckpointError(f"Checkpoint {self.directory / str(step)} is damaged: {damage}.")
        return state

    def _read(self, step: int, like: T, agents: Any) -> tuple[T, str | None]:
        """A checkpoint, and what is damaged of it for some process."""
        state, damage = like, None
        for _ in range(2):  # A file system of many machines may fail once.
            try:
                state, damage = self._read_own(step, like, _counts(like, agents)), None
                break
            except (CheckpointError, MemoryError, jax.errors.JaxRuntimeError):
                raise  # Of the run, and so in every process; or of a device, and no file's fault.
            except Exception as error:  # Whatever a damaged file makes Orbax raise.
                damage = f"{type(error).__name__}: {_first_line(error)[:200]}"
        if jax.process_count() > 1:
            is_damaged = multihost_utils.process_allgather(np.array(damage is not None))
            if damage is None and is_damaged.any():
                damage = f"for processes {np.flatnonzero(is_damaged).tolist()}"
        return state, damage

    def _read_own(self, step: int, like: T, counts: Mapping[str, int]) -> T:
        """What this process's devices hold of a checkpoint."""
        folder = self.directory / str(step)
        read = ocp.args.Composite(manifest=ocp.args.JsonRestore())  # pyright: ignore
        manifest = _checked(self._reader.restore(folder, args=read)["manifest"], folder)
        expected = _by_path(like)
        _require_fit(folder, manifest, expected, counts)
        restore_args = {
            name: _restore_args(target, counts[name]) for name, target in expected.items()
        }
        read = ocp.args.Composite(
            state=ocp.args.PyTreeRestore(item=expected, restore_args=restore_args)  # pyright: ignore
        )
        arrays = self._reader.restore(folder, args=read)["state"]
        for name, array in arrays.items():
            for agent, crc in _checksums(array, counts[name]):
                if manifest[name]["crc32"][agent] != crc:
                    raise ValueError(f"array {name!r} is not what was written")
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])

    def _set_aside(self, steps: list[int]) -> None:
        if not steps:
            return
        if jax.process_index() == 0:
            for step in steps:
                target = self.directory.parent / "damaged" / str(step)
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(exist_ok=True)
                shutil.move(self.directory / str(step), target)
        multihost_utils.sync_global_devices("damaged checkpoints are set aside")
        self._manager.reload()

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except (OSError, ValueError) as error:
            reason = _first_line(error)
            if len(reason) > 300:  # The file is named first, the cause last.
                reason = f"{reason[:150]} ... {reason[-150:]}"
            # The manager forgets those that it meant to replace, though they are still there.
            complete = sorted(int(p.name) for p in self.directory.iterdir() if p.name.isdigit())
            raise CheckpointError(
                f"Cannot write a checkpoint in {self.directory}: {reason}. Those that are"
                f" complete are untouched: {complete}."
            ) from error


def _by_path(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _counts(state: Any, agents: Any) -> dict[str, int]:
    """Over how many agents each array is stacked, by path; 0 for those that are not."""
    return _by_path(jax.tree.broadcast(agents, state))


def _manifest(arrays: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """What is to be checked when arrays are read again."""
    described = {
        name: {
            "shape": list(_unpadded(x, counts[name])),
            "dtype": str(x.dtype),
        }
        for name, x in arrays.items()
    }
    starts = np.cumsum([0, *(max(1, counts[name]) for name in arrays)])
    own = np.zeros(starts[-1], np.uint32)  # Zero for agents of other processes.
    for start, (name, x) in zip(starts, arrays.items(), strict=False):
        for agent, crc in _checksums(x, counts[name]):
            own[start + agent] = crc
    if jax.process_count() > 1:
        own = np.max(multihost_utils.process_allgather(own), axis=0)
    for (start, end), name in zip(itertools.pairwise(starts), arrays, strict=True):
        described[name]["crc32"] = own[start:end].tolist()
    return {"format": _FORMAT, "crc32": json_lines.crc32(described), "arrays": described}


def _first_line(error: Exception) -> str:
    """Of its message, which may be empty."""
    return next(iter(str(error).splitlines()), "")


def _checked(manifest: Any, folder: pathlib.Path) -> dict[str, Any]:
    """What a manifest says of each array."""
    if "format" not in manifest or manifest["format"] != _FORMAT:
        raise CheckpointError(
            f"Checkpoint {folder} has format {manifest.get('format', 1)}; this version of disco"
            f" reads format {_FORMAT}."
        )
    if json_lines.crc32(manifest["arrays"]) != manifest["crc32"]:
        raise ValueError("the manifest is not what was written")
    return manifest["arrays"]


def _checksums(array: Any, count: int) -> Iterator[tuple[int, int]]:
    """Agents that this process holds and the CRC-32 of each; 0 and that of all if not stacked."""
    if not count:
        yield 0, _crc32(array)
        return
    if isinstance(array, jax.Array):
        parts = [(x.index[0].start or 0, x.data) for x in array.addressable_shards]
    else:
        parts = [(0, array)]
    for first, rows in parts:
        for agent, row in enumerate(np.asarray(rows), first):
            if agent < count:
                yield agent, _crc32(row)


def _crc32(array: Any) -> int:
    """Of its bytes, which are not copied."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _unpadded(array: Any, count: int) -> tuple[int, ...]:
    """The shape of an array, or shape of one, without what pads it."""
    return (count, *array.shape[1:]) if count else array.shape


def _require_fit(
    folder: pathlib.Path,
    manifest: Mapping[str, Any],
    expected: Mapping[str, Any],
    counts: Mapping[str, int],
) -> None:
    """Refuses a checkpoint of another run."""
    if set(manifest) != set(expected):
        odd = sorted(set(manifest) ^ set(expected))[:3]
        raise CheckpointError(
            f"Checkpoint {folder} is of another kind of run: it differs in {odd}."
        )
    for name, target in expected.items():
        shape = _unpadded(target, counts[name])
        found = (tuple(manifest[name]["shape"]), manifest[name]["dtype"])
        if found != (shape, str(target.dtype)):
            raise CheckpointError(
                f"Checkpoint {folder} is of a run of other sizes: {name} is {found}; expected"
                f" {(shape, str(target.dtype))}."
            )


def _restore_args(target: Any, count: int) -> ocp.RestoreArgs:
    if isinstance(target, jax.ShapeDtypeStruct) and target.sharding is not None:
        return ocp.ArrayRestoreArgs(
            sharding=target.sharding, global_shape=target.shape, strict=not count
        )
    return ocp.RestoreArgs(restore_type=np.ndarray)
