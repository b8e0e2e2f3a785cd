"""Checkpoints of a run, through Orbax.

A checkpoint holds every array of a state under its path, and a manifest with its step and each
array's shape, dtype and CRC-32. A damaged checkpoint is detected when it is read, and the one
before it is used. `CheckpointReader` changes nothing on disk, so it can read while another process
writes. `Checkpoints` is for the process, or the processes of one run, that write.

Several processes write one checkpoint together: each process writes the arrays that its devices
hold. The number of processes that read it may be another one. They need a file system that all of
them share. Arrays may be stacked over agents, and padded at the end with copies so that they divide
among devices; the manifest then has a CRC-32 for each agent.
"""

import logging
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from disco_common import files
from disco_common.checkpoint_manifests import (
    CRC,
    CheckpointError,
    arrays_of,
    checksums,
    manifest_of,
    require_fit,
)

T = TypeVar("T")

# Timeout of a write in seconds. Orbax measures it by the wall clock, which may jump by hours.
_PATIENCE = 24 * 3600


_STEP = re.compile("0|[1-9][0-9]*")  # The name of a checkpoint's folder.
_LONGEST_REASON = 200  # Characters.

_log = logging.getLogger(__name__)


class CheckpointReader:
    """The checkpoints of a run, possibly a running one. Reading changes nothing on disk.

    Attributes:
      directory: folder of the checkpoints; each is a folder named by its step.
    """

    def __init__(self, directory: pathlib.Path):
        """Open the folder, which need not exist yet."""
        self.directory = directory.absolute()
        # Each process reads by itself, so that no process waits for one that finds damage.
        process = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"{process}"
        )
        self._reader = ocp.Checkpointer(
            ocp.CompositeCheckpointHandler(), multiprocessing_options=alone
        )

    def close(self) -> None:
        """Stop the threads that read."""
        self._reader.close()

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, in order.

        Raises:
          CheckpointError: if the folder exists and cannot be read.
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

    def restore(
        self, like: T | Callable[[int], T], agents: Any = 0, *, part: bool = False
    ) -> tuple[int, T] | None:
        """Return the step and state of the newest undamaged checkpoint.

        Damaged ones are skipped, with a warning.

        Args:
          like: a state of the structure, shapes and dtypes to restore; arrays or
            `jax.ShapeDtypeStruct`s; or a function from a checkpoint's step to such a state.
          agents: a prefix of the state: the number of agents that each array is stacked over,
            without padding; 0 if it is not stacked. The padding may be longer or shorter than in
            the checkpoint; its values are undefined.
          part: whether the checkpoint may have arrays that `like` lacks. They are not read.

        Returns:
          Its step and state, on the devices where `like` has a shape with a sharding and
          otherwise in NumPy arrays; None if there is no checkpoint.

        Raises:
          CheckpointError: if there are checkpoints and all are damaged, or if one was written for
            a run of other sizes, or by another version of this module.
        """
        damages: dict[int, str] = {}
        # Listed again for each one: a running run deletes its oldest, maybe the one just read.
        while left := [step for step in self.steps() if step not in damages]:
            step = left[-1]
            expected = cast(T, like(step) if callable(like) else like)
            state, damage = self._read(step, expected, agents, part)
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
        """Return the state in the checkpoint of one step.

        Args:
          step: of the checkpoint.
          like: see `restore`.
          agents: see `restore`.
          part: see `restore`.

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
        """Log the damaged checkpoints that are newer than the one to use."""
        for step, damage in damages.items():
            _log.warning(
                "Checkpoint %s is damaged (%s); using the one before it.",
                self.directory / str(step),
                damage,
            )

    def _read(self, step: int, like: T, agents: Any, part: bool) -> tuple[T, str | None]:
        """Return a checkpoint's state, and what is damaged in it; None if nothing is.

        A checkpoint that is damaged for one process counts as damaged for all.
        """
        state, damage = like, None
        for _ in range(2):  # A network file system may fail once.
            try:
                state, damage = self._read_own(step, like, _counts(like, agents), part), None
                break
            except (CheckpointError, MemoryError, jax.errors.JaxRuntimeError):
                raise  # Every process raises these, or a device does; the files are undamaged.
            except Exception as error:  # Orbax raises errors of many types for damaged files.
                damage = f"{type(error).__name__}: {_first_line(error)[:_LONGEST_REASON]}"
        if jax.process_count() > 1:
            is_damaged = multihost_utils.process_allgather(np.array(damage is not None))
            if damage is None and is_damaged.any():
                damage = f"for processes {np.flatnonzero(is_damaged).tolist()}"
        return state, damage

    def _read_own(self, step: int, like: T, counts: Mapping[str, int], part: bool) -> T:
        """Return the part of a checkpoint's state that this process's devices hold."""
        folder = self.directory / str(step)
        files.require_regular_within(folder)
        read = ocp.args.Composite(manifest=ocp.args.JsonRestore())  # pyright: ignore
        described = arrays_of(self._reader.restore(folder, args=read)["manifest"], folder)
        expected = by_path(like)
        require_fit(folder, described, expected, counts, part)
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
            for agent, crc in checksums(array, counts[name]):
                if described[name][CRC][agent] != crc:
                    raise ValueError(f"array {name!r} does not have its checksum")
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])


class Checkpoints(CheckpointReader):
    """The newest few checkpoints of one run, for the run itself, which writes them.

    No other run may write in the folder at the same time: unfinished checkpoints in it are removed.
    """

    def __init__(self, directory: pathlib.Path, keep: int = 3):
        """Open the folder; create it if it does not exist.

        Args:
          directory: for the checkpoints.
          keep: number of the newest checkpoints to keep.

        Raises:
          CheckpointError: if the folder cannot be created or written.
        """
        super().__init__(directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / f".writable_{jax.process_index()}"
            probe.touch()
            probe.unlink()
            self._set_irregular_aside()
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

    def save(self, step: int, state: Any, agents: Any = 0) -> None:
        """Write a checkpoint in the background.

        Orbax copies the state to the host first, NumPy arrays too, so it may be donated or changed
        afterwards. A partly written checkpoint is never read: Orbax renames it when it is complete.

        Args:
          step: number of the checkpoint.
          state: arrays.
          agents: see `restore`.

        Raises:
          CheckpointError: if this or an earlier write failed.
        """
        arrays, counts = by_path(state), _counts(state, agents)
        arrays = {
            name: x if isinstance(x, jax.Array) else np.asarray(x) for name, x in arrays.items()
        }
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(arrays),  # pyright: ignore[reportCallIssue]
            manifest=ocp.args.JsonSave(manifest_of(step, arrays, counts)),  # pyright: ignore
        )
        self._guarded(lambda: self._manager.save(step, args=args, force=True))

    def check(self) -> None:
        """Raise CheckpointError if a write in the background failed."""
        self._guarded(self._manager.check_for_errors)

    def wait(self) -> None:
        """Wait until all checkpoints are on disk. Raise CheckpointError if a write failed."""
        self._guarded(self._manager.wait_until_finished)

    def close(self) -> None:
        """Wait for a write in the background, and stop the threads that write.

        Raises:
          CheckpointError: if that write failed.
        """
        try:
            self.wait()
        finally:
            self._guarded(self._manager.close)
            super().close()

    def _pass_over(self, damages: Mapping[int, str]) -> None:
        """Log damaged checkpoints, and move them to `damaged/`, as the run writes them again."""
        super()._pass_over(damages)
        if not damages:
            return
        self._move(damages)
        self._manager.reload()

    def _set_irregular_aside(self) -> None:
        """Move checkpoints aside that Orbax would wait for, as it opens all of them at once."""
        damages: dict[int, str] = {}
        for step in self.steps() if jax.process_index() == 0 else ():
            try:
                files.require_regular_within(self.directory / str(step))
            except OSError as error:
                damages[step] = str(error)
        super()._pass_over(damages)
        if damages or jax.process_count() > 1:
            self._move(damages)

    def _move(self, steps: Iterable[int]) -> None:
        """Move checkpoints to `damaged/`; all processes wait for the first one, which does."""
        if jax.process_index() == 0:
            for step in steps:
                target = self.directory.parent / "damaged" / str(step)
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(exist_ok=True)
                shutil.move(self.directory / str(step), target)
        multihost_utils.sync_global_devices("damaged checkpoints are set aside")

    def set_aside(self, step: int, reason: str) -> None:
        """Move a checkpoint that cannot be used, for the given reason, to `damaged/`."""
        self._pass_over({step: reason})

    def _guarded(self, action: Callable[[], object]) -> None:
        """Call a function of the manager; convert its errors of writing to `CheckpointError`."""
        try:
            action()
        except (OSError, ValueError) as error:
            reason = _first_line(error)
            if len(reason) > 300:  # Orbax's message has the file first and the cause last.
                reason = f"{reason[:150]} ... {reason[-150:]}"
            # The folder is listed: the manager no longer knows those that it meant to replace.
            raise CheckpointError(
                f"Cannot write a checkpoint in {self.directory}: {reason}. Complete"
                f" checkpoints are unchanged: {self.steps()}."
            ) from error


def by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths, for example `"params/w"`, in their order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _counts(state: Any, agents: Any) -> dict[str, int]:
    """Return the number of agents that each array is stacked over, by path; 0 for none."""
    return by_path(jax.tree.broadcast(agents, state))


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message; empty if there is none."""
    return next(iter(str(error).splitlines()), "")


def _restore_args(target: Any, count: int) -> ocp.RestoreArgs:
    if isinstance(target, jax.ShapeDtypeStruct) and target.sharding is not None:
        return ocp.ArrayRestoreArgs(
            sharding=target.sharding, global_shape=target.shape, strict=not count
        )
    return ocp.RestoreArgs(restore_type=np.ndarray)
