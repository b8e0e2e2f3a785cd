"""Checkpoints of a run, through Orbax.

A checkpoint holds every array of a state under its path, and a manifest with its step and each
array's shape, dtype and CRC-32. A damaged checkpoint is detected when it is read, and the one
before it is used.

Several processes write one checkpoint together, each the arrays that its devices hold, in a file
system that all share; another number of processes may read it. Arrays may be stacked over agents,
and padded at the end with copies so that they divide among devices; the manifest then has a CRC-32
for each agent.
"""

import itertools
import logging
import pathlib
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from disco_common import files, json_lines
from disco_common.pytrees import by_path

T = TypeVar("T")
# Timeout of a write in seconds. Orbax measures it by the wall clock, which may jump by hours.
_PATIENCE = 24 * 3600
_STEP = re.compile("0|[1-9][0-9]*")  # The name of a checkpoint's folder.
_FORMAT, _CRC = 3, "crc32"  # Of manifests.

_log = logging.getLogger(__name__)


class CheckpointError(OSError):
    """A checkpoint cannot be written, or none can be read."""


def steps(directory: pathlib.Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, in order. It may not exist.

    Raises:
      CheckpointError: if it exists and cannot be read.
    """
    try:
        names = [path.name for path in directory.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"Cannot read checkpoints in {directory}: {error}.") from error
    return sorted(int(name) for name in names if _STEP.fullmatch(name))


class Checkpoints:
    """The newest few checkpoints of one run, for the run itself; folders, named by their steps.

    No other run may write in the folder at the same time: unfinished checkpoints in it are removed.
    """

    def __init__(self, directory: pathlib.Path, keep: int = 3):
        """Open the folder, or create it, for the newest `keep` checkpoints.

        Raises:
          CheckpointError: if the folder cannot be created or written.
        """
        self.directory = directory.absolute()
        # Each process reads by itself, so that no process waits for one that finds damage.
        process = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"{process}"
        )
        self._reader = ocp.Checkpointer(
            ocp.CompositeCheckpointHandler(), multiprocessing_options=alone
        )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / f".writable_{jax.process_index()}"
            probe.touch()
            probe.unlink()
            self._set_aside(self._unreadable())
            files.require_regular_within(self.directory)
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

    def restore(self, like: T | Callable[[int], T], agents: Any = 0) -> tuple[int, T] | None:
        """Return the step and state of the newest undamaged checkpoint.

        Damaged ones are skipped, with a warning.

        Args:
          like: a state of the structure, shapes and dtypes to restore; arrays or
            `jax.ShapeDtypeStruct`s; or a function from a checkpoint's step to such a state.
          agents: a prefix of the state: the number of agents that each array is stacked over,
            without padding, whose length may differ and whose values are undefined; 0 for none.

        Returns:
          Its step and state, on devices where `like` has a sharding and otherwise NumPy; None if
          there is no checkpoint.

        Raises:
          CheckpointError: if there are checkpoints and all are damaged, or if one was written for
            a run of other sizes, or by another version of this module.
        """
        damages: dict[int, str] = {}
        for step in reversed(steps(self.directory)):
            expected = cast(T, like(step) if callable(like) else like)
            state, damage = self._read(step, expected, agents)
            if damage is None:
                self.pass_over(damages)
                return step, state
            damages[step] = damage
        if damages:
            reasons = "; ".join(f"{s}: {reason}" for s, reason in sorted(damages.items()))
            which = f"{sorted(damages)} in {self.directory}"
            raise CheckpointError(f"None of the checkpoints {which} can be read: {reasons}.")
        return None

    def pass_over(self, damages: Mapping[int, str]) -> None:
        """Log damaged checkpoints, and move them to `damaged/`, as the run writes them again.

        `damages` has the reason of each, by its step.
        """
        if damages:
            self._set_aside(damages)
            self._manager.reload()

    def save(self, step: int, state: Any, agents: Any = 0) -> None:
        """Write a checkpoint in the background.

        Orbax copies the state to the host first, NumPy arrays too, so it may be donated or changed
        afterwards, and renames a checkpoint when it is complete. `agents` is as of `restore`.

        Raises:
          CheckpointError: if this or an earlier write failed.
        """
        counts = by_path(jax.tree.broadcast(agents, state))
        arrays = {
            name: x if isinstance(x, jax.Array) else np.asarray(x)
            for name, x in by_path(state).items()
        }
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(arrays),  # pyright: ignore[reportCallIssue]
            manifest=ocp.args.JsonSave(_manifest_of(step, arrays, counts)),  # pyright: ignore
        )
        self._guarded(lambda: self._manager.save(step, args=args, force=True))

    def check(self) -> None:
        """Raise CheckpointError if a write in the background failed."""
        self._guarded(self._manager.check_for_errors)

    def wait(self) -> None:
        """Wait until all checkpoints are on disk. Raise CheckpointError if a write failed."""
        self._guarded(self._manager.wait_until_finished)

    def close(self) -> None:
        """Wait as `wait`, and stop the threads."""
        try:
            self.wait()
        finally:
            self._guarded(self._manager.close)
            self._reader.close()

    def _read(self, step: int, like: T, agents: Any) -> tuple[T, str | None]:
        """Return a checkpoint's state, and what is damaged in it; None if nothing is.

        A checkpoint that is damaged for one process counts as damaged for all.
        """
        state, damage = like, None
        for _ in range(2):  # A network file system may fail once.
            try:
                state, damage = self._read_own(step, like, agents), None
                break
            except (CheckpointError, MemoryError, jax.errors.JaxRuntimeError):
                raise  # Every process raises these, or a device does; the files are undamaged.
            except Exception as error:  # Orbax raises errors of many types for damaged files.
                reason = str(error).partition("\n")[0][:200]
                damage = f"{type(error).__name__}: {reason}"
        if jax.process_count() > 1:
            is_damaged = multihost_utils.process_allgather(np.array(damage is not None))
            if damage is None and is_damaged.any():
                damage = f"for processes {np.flatnonzero(is_damaged).tolist()}"
        return state, damage

    def _read_own(self, step: int, like: T, agents: Any) -> T:
        """Return the part of a checkpoint's state that this process's devices hold."""
        folder, counts = self.directory / str(step), by_path(jax.tree.broadcast(agents, like))
        files.require_regular_within(folder)
        read = ocp.args.Composite(manifest=ocp.args.JsonRestore())  # pyright: ignore
        described = _arrays_of(self._reader.restore(folder, args=read)["manifest"], folder)
        expected = by_path(like)
        _require_fit(folder, described, expected, counts)
        restore_args = {}
        for name, target in expected.items():
            restore_args[name] = ocp.RestoreArgs(restore_type=np.ndarray)
            if isinstance(target, jax.ShapeDtypeStruct) and target.sharding is not None:
                restore_args[name] = ocp.ArrayRestoreArgs(
                    sharding=target.sharding, global_shape=target.shape, strict=not counts[name]
                )
        read = ocp.args.Composite(
            state=ocp.args.PyTreeRestore(  # pyright: ignore[reportCallIssue]
                item=expected, restore_args=restore_args
            )
        )
        arrays = self._reader.restore(folder, args=read)["state"]
        for name, array in arrays.items():
            for agent, crc in _checksums(array, counts[name]):
                if described[name][_CRC][agent] != crc:
                    raise ValueError(f"array {name!r} does not have its checksum")
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])

    def _unreadable(self) -> dict[int, str]:
        """Return checkpoints that Orbax, which opens all of them at once, would fail or wait at."""
        damages: dict[int, str] = {}
        names = ocp.path.step.standard_name_format()
        for step in steps(self.directory) if jax.process_index() == 0 else ():
            try:
                files.require_regular_within(self.directory / str(step))
                _ = names.find_step(self.directory, step).commit_timestamp  # It reads all it noted.
            except MemoryError:
                raise  # The files are undamaged.
            except Exception as error:  # As in `_read`.
                damages[step] = str(error).partition("\n")[0][:200]
        return damages

    def _set_aside(self, damages: Mapping[int, str]) -> None:
        """Log damaged checkpoints; all processes wait for the first one, which moves them."""
        for step, damage in damages.items():
            folder = self.directory / str(step)
            _log.warning("Checkpoint %s is damaged (%s); using the one before it.", folder, damage)
            if jax.process_index() == 0:
                target = self.directory.parent / "damaged" / str(step)
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(exist_ok=True)
                shutil.move(folder, target)
        multihost_utils.sync_global_devices("damaged checkpoints are set aside")

    def _guarded(self, action: Callable[[], object]) -> None:
        """Call a function of the manager; convert its errors of writing to `CheckpointError`."""
        try:
            action()
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            if len(reason) > 300:  # Orbax's message has the file first and the cause last.
                reason = f"{reason[:150]} ... {reason[-150:]}"
            # The folder is listed: the manager no longer knows those that it meant to replace.
            raise CheckpointError(
                f"Cannot write a checkpoint in {self.directory}: {reason}. Complete"
                f" checkpoints are unchanged: {steps(self.directory)}."
            ) from error


def _manifest_of(step: int, arrays: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the manifest of a checkpoint, by which the arrays are checked when they are read."""
    described: dict[str, Any] = {
        name: {"shape": list(_unpadded(x, counts[name])), "dtype": str(x.dtype)}
        for name, x in arrays.items()
    }
    starts = np.cumsum([0, *(max(1, counts[name]) for name in arrays)])
    own = np.zeros(starts[-1], np.uint32)  # 0 for agents of other processes.
    for start, (name, x) in zip(starts, arrays.items(), strict=False):
        for agent, crc in _checksums(x, counts[name]):
            own[start + agent] = crc
    if jax.process_count() > 1:
        own = np.max(multihost_utils.process_allgather(own), axis=0)
    for (start, end), name in zip(itertools.pairwise(starts), arrays, strict=True):
        described[name][_CRC] = own[start:end].tolist()
    manifest = {"format": _FORMAT, "step": step, "arrays": described}
    return {**manifest, _CRC: json_lines.crc32(manifest)}


def _arrays_of(manifest: Any, folder: pathlib.Path) -> dict[str, Any]:
    """Return a manifest's description of each array.

    Raises:
      ValueError: if the manifest is damaged, or is of another step than its folder.
      CheckpointError: if an unsupported version of this module wrote it.
    """
    damaged, content = ValueError("the manifest does not have its checksum"), {}
    if isinstance(manifest, dict):
        content = {name: value for name, value in manifest.items() if name != _CRC}
    if not content or manifest.get(_CRC) != json_lines.crc32(content):
        raise damaged
    # After the CRC: a flipped bit in the format's number is damage, not another version.
    if content.get("format") != _FORMAT:
        raise CheckpointError(
            f"Checkpoint {folder} has format {content.get('format')!r}; this version of disco reads"
            f" format {_FORMAT}."
        )
    if str(content["step"]) != folder.name:
        raise ValueError(f"it is of step {content['step']}, in a folder named {folder.name}")
    if not isinstance(content["arrays"], dict):
        raise damaged
    return content["arrays"]


def _checksums(array: Any, count: int) -> Iterator[tuple[int, int]]:
    """Yield each agent that this process holds, and the CRC-32 of its part of an array.

    For an array that is not stacked over agents, yield 0 and the CRC-32 of all of it.
    """

    def crc32(part: Any) -> int:  # Without copying it.
        return zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)

    if not count:
        yield 0, crc32(array)
        return
    parts = [(0, array)]
    if isinstance(array, jax.Array):
        parts = [(x.index[0].start or 0, x.data) for x in array.addressable_shards]
    for first, rows in parts:
        held = enumerate(np.asarray(rows), first)
        yield from ((agent, crc32(row)) for agent, row in held if agent < count)


def _unpadded(array: Any, count: int) -> tuple[int, ...]:
    """Return the shape of an array, or of its abstract value, without the padding."""
    return (count, *array.shape[1:]) if count else array.shape


def _require_fit(
    folder: pathlib.Path,
    described: Mapping[str, Any],
    expected: Mapping[str, Any],
    counts: Mapping[str, int],
) -> None:
    """Refuse a checkpoint whose arrays do not fit the run."""
    if odd := sorted(set(expected) ^ set(described))[:3]:
        raise CheckpointError(
            f"Checkpoint {folder} is of another kind of run: it differs in {odd}. If another"
            " version of this code wrote it, that version can finish the run; without the folder"
            f" {folder.parent} the run starts from the beginning."
        )
    for name, target in expected.items():
        shape = _unpadded(target, counts[name])
        found = (tuple(described[name]["shape"]), described[name]["dtype"])
        if found != (shape, str(target.dtype)):
            raise CheckpointError(
                f"Checkpoint {folder} is of a run of other sizes: {name} is {found}; expected"
                f" {(shape, str(target.dtype))}."
            )
