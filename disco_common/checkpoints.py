"""Checkpoints of a run, through Orbax.

A checkpoint holds every array of a state under its path, and a manifest with its step and each
array's shape, dtype and CRC-32. What is damaged is noticed when it is read, and the one before it
is used. `CheckpointReader` changes nothing on disk, so that it can read what another process is
writing; `Checkpoints` is for the one process, or the processes of one run, that write.

Several processes write one checkpoint together, each what its devices hold, and read what theirs
will hold, also when they are fewer or more than those that wrote it. They need a file system that
all of them share. Arrays may be stacked over agents, and padded at the end with copies so that
they divide among devices; the manifest has then a CRC-32 for each agent.
"""

import itertools
import logging
import pathlib
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from disco_common import json_lines

T = TypeVar("T")

# Seconds for a write. Orbax measures them by the wall clock, which may jump by hours.
_PATIENCE = 24 * 3600

# Of a manifest. Format 2 has no step, and a CRC-32 of its arrays only.
_FORMAT = 3
_CRC = "crc32"

_STEP = re.compile("0|[1-9][0-9]*")  # The name of a checkpoint's folder.
_LONGEST_REASON = 200  # Characters.

_log = logging.getLogger(__name__)


class CheckpointError(OSError):
    """A checkpoint cannot be written, or none can be read."""


class CheckpointReader:
    """The checkpoints of a run that may be going on: reading them changes nothing on disk.

    Attributes:
      directory: where they are; each is a folder named by its step.
    """

    def __init__(self, directory: pathlib.Path):
        """Opens the folder, which need not exist yet."""
        self.directory = directory.absolute()
        # Each process reads by itself: where one finds damage, no other is left waiting for it.
        process = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"{process}"
        )
        self._reader = ocp.Checkpointer(
            ocp.CompositeCheckpointHandler(), multiprocessing_options=alone
        )

    def close(self) -> None:
        """Ends the threads that read."""
        self._reader.close()

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are complete, in order.

        Raises:
          CheckpointError: if the folder is there and cannot be read.
        """
        try:
            names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(
                f"Cannot read checkpoints in {self.directory}: {error}."
            ) from error
        return sorted(int(name) for name in names if _STEP.fullmatch(name))

    def restore(self, like: T, agents: Any = 0, *, part: bool = False) -> tuple[int, T] | None:
        """The newest good checkpoint.

        Damaged ones are passed over, with a warning.

        Args:
          like: a state of the structure, shapes and dtypes to restore; arrays or
            `jax.ShapeDtypeStruct`s.
          agents: a prefix of the state: how many agents the arrays are stacked over, without
            padding; 0 for those that are not. Those that are may be padded more or less than they
            were; what pads them is undefined.
          part: whether the checkpoint may have arrays that `like` has not, which are not read.

        Returns:
          Its step and state, on the devices where `like` has a shape with a sharding and
          otherwise in NumPy arrays; None if there is no checkpoint.

        Raises:
          CheckpointError: if there are checkpoints and none is good, or if one was written for
            a run of other sizes, or by another version of this module.
        """
        damages: dict[int, str] = {}
        # Listed anew for each: a run that goes on replaces its oldest, maybe the one just read.
        while left := [step for step in self.steps() if step not in damages]:
            step = left[-1]
            state, damage = self._read(step, like, agents, part)
            if damage is None:
                self._pass_over({s: reason for s, reason in damages.items() if s > step})
                return step, state
            damages[step] = damage
        if damages:
            reasons = "; ".join(f"{s}: {reason}" for s, reason in sorted(damages.items()))
            raise CheckpointError(
                f"None of the checkpoints {sorted(damages)} in {self.directory} can be read:"
                f" {reasons}."
            )
        return None

    def load(self, step: int, like: T, agents: Any = 0, *, part: bool = False) -> T:
        """The checkpoint of one step.

        Args:
          step: of the checkpoint.
          like: as for `restore`, which says what is returned.
          agents: likewise.
          part: likewise.

        Raises:
          CheckpointError: if there is none of that step, or it is damaged, or was written for a
            run of other sizes or by another version of this module.
        """
        if step in self.steps():
            state, damage = self._read(step, like, agents, part)
            if damage is None:
                return state
            if step in self.steps():
                raise CheckpointError(
                    f"Checkpoint {self.directory / str(step)} is damaged: {damage}."
                )
        raise CheckpointError(
            f"{self.directory} has no checkpoint of step {step}; it has {self.steps()}."
        )

    def _pass_over(self, damages: Mapping[int, str]) -> None:
        """Reports checkpoints that are newer than the one that is used."""
        for step, damage in damages.items():
            _log.warning(
                "Checkpoint %s is damaged (%s); using the one before it.",
                self.directory / str(step),
                damage,
            )

    def _read(self, step: int, like: T, agents: Any, part: bool) -> tuple[T, str | None]:
        """A checkpoint, and what is damaged of it for some process."""
        state, damage = like, None
        for _ in range(2):  # A file system of many machines may fail once.
            try:
                state, damage = self._read_own(step, like, _counts(like, agents), part), None
                break
            except (CheckpointError, MemoryError, jax.errors.JaxRuntimeError):
                raise  # Of the run, and so in every process; or of a device, and no file's fault.
            except Exception as error:  # Whatever a damaged file makes Orbax raise.
                damage = f"{type(error).__name__}: {_first_line(error)[:_LONGEST_REASON]}"
        if jax.process_count() > 1:
            is_damaged = multihost_utils.process_allgather(np.array(damage is not None))
            if damage is None and is_damaged.any():
                damage = f"for processes {np.flatnonzero(is_damaged).tolist()}"
        return state, damage

    def _read_own(self, step: int, like: T, counts: Mapping[str, int], part: bool) -> T:
        """What this process's devices hold of a checkpoint."""
        folder = self.directory / str(step)
        read = ocp.args.Composite(manifest=ocp.args.JsonRestore())  # pyright: ignore
        described = _checked(self._reader.restore(folder, args=read)["manifest"], folder)
        expected = by_path(like)
        _require_fit(folder, described, expected, counts, part)
        restore_args = {
            name: _restore_args(target, counts[name]) for name, target in expected.items()
        }
        read = ocp.args.Composite(
            state=ocp.args.PyTreeRestore(  # pyright: ignore[reportCallIssue]
                item=expected, restore_args=restore_args, partial_restore=part
            )
        )
        arrays = self._reader.restore(folder, args=read)["state"]
        for name, array in arrays.items():
            for agent, crc in _checksums(array, counts[name]):
                if described[name][_CRC][agent] != crc:
                    raise ValueError(f"array {name!r} is not what was written")
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])


class Checkpoints(CheckpointReader):
    """The newest few checkpoints of one run, which writes them.

    Nobody else may write in the folder meanwhile: what others left unfinished is removed.
    """

    def __init__(self, directory: pathlib.Path, keep: int = 3):
        """Opens the folder, creating it if need be.

        Args:
          directory: for the checkpoints.
          keep: how many of the newest to keep.

        Raises:
          CheckpointError: if the folder cannot be created or written.
        """
        super().__init__(directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / f".writable_{jax.process_index()}"
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

    def save(self, step: int, state: Any, agents: Any = 0) -> None:
        """Writes a checkpoint; the disk is written while the caller goes on.

        The state is copied to the host first, so it may be donated afterwards. A partly
        written checkpoint never counts: Orbax renames it when it is complete.

        Args:
          step: its number.
          state: arrays.
          agents: as for `restore`.

        Raises:
          CheckpointError: if this or an earlier write failed.
        """
        arrays, counts = by_path(state), _counts(state, agents)
        arrays = {
            name: x if isinstance(x, jax.Array) else np.array(x) for name, x in arrays.items()
        }
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(arrays),  # pyright: ignore[reportCallIssue]
            manifest=ocp.args.JsonSave(_manifest(step, arrays, counts)),  # pyright: ignore
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
            super().close()

    def _pass_over(self, damages: Mapping[int, str]) -> None:
        """Reports them, and moves them to `damaged/` beside the others: their places are needed."""
        super()._pass_over(damages)
        if not damages:
            return
        if jax.process_index() == 0:
            for step in damages:
                target = self.directory.parent / "damaged" / str(step)
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(exist_ok=True)
                shutil.move(self.directory / str(step), target)
        multihost_utils.sync_global_devices("damaged checkpoints are set aside")
        self._manager.reload()

    def set_aside(self, step: int, reason: str) -> None:
        """Move a checkpoint, which cannot be used for that reason, beside the others."""
        self._pass_over({step: reason})

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except (OSError, ValueError) as error:
            reason = _first_line(error)
            if len(reason) > 300:  # The file is named first, the cause last.
                reason = f"{reason[:150]} ... {reason[-150:]}"
            # The manager forgets those that it meant to replace, though they are still there.
            raise CheckpointError(
                f"Cannot write a checkpoint in {self.directory}: {reason}. Those that are"
                f" complete are untouched: {self.steps()}."
            ) from error


def by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths, for example `"params/w"`, in their order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _counts(state: Any, agents: Any) -> dict[str, int]:
    """Over how many agents each array is stacked, by path; 0 for those that are not."""
    return by_path(jax.tree.broadcast(agents, state))


def _manifest(step: int, arrays: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
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
        described[name][_CRC] = own[start:end].tolist()
    manifest = {"format": _FORMAT, "step": step, "arrays": described}
    return {**manifest, _CRC: json_lines.crc32(manifest)}


def _first_line(error: Exception) -> str:
    """Of its message, which may be empty."""
    return next(iter(str(error).splitlines()), "")


def _checked(manifest: Any, folder: pathlib.Path) -> dict[str, Any]:
    """What a manifest says of each array.

    Raises:
      ValueError: if it is not what was written, or is of another step than its folder.
      CheckpointError: if it is what another version of this module wrote.
    """
    damaged = ValueError("the manifest is not what was written")
    if not isinstance(manifest, dict):
        raise damaged
    content = {name: value for name, value in manifest.items() if name != _CRC}
    if manifest.get(_CRC) == json_lines.crc32(content):
        # Only now: a bit that flipped in the number is damage, and no other version.
        if content.get("format") != _FORMAT:
            raise CheckpointError(
                f"Checkpoint {folder} has format {content.get('format')!r}; this version of disco"
                f" reads formats 2 and {_FORMAT}."
            )
        if str(content["step"]) != folder.name:
            raise ValueError(f"it is of step {content['step']}, and its folder named {folder.name}")
    elif set(content) != {"format", "arrays"} or (2, manifest.get(_CRC)) != (
        content["format"],
        json_lines.crc32(content["arrays"]),
    ):
        raise damaged
    if not isinstance(content["arrays"], dict):
        raise damaged
    return content["arrays"]


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
    described: Mapping[str, Any],
    expected: Mapping[str, Any],
    counts: Mapping[str, int],
    part: bool,
) -> None:
    """Refuses a checkpoint of another run."""
    missing, other = set(expected) - set(described), set(described) - set(expected)
    if missing or (other and not part):
        odd = sorted(missing if part else missing | other)[:3]
        raise CheckpointError(
            f"Checkpoint {folder} is of another kind of run: it differs in {odd}. If another"
            " version of this code wrote it, that version can finish the run; without the folder"
            f" {folder.parent} it begins anew."
        )
    for name, target in expected.items():
        shape = _unpadded(target, counts[name])
        found = (tuple(described[name]["shape"]), described[name]["dtype"])
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
