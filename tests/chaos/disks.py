"""A full disk, and damaged files."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator

import jax
import numpy as np

from disco_common.checkpoints import Checkpoints
from tests.chaos.bench import (
    Bench,
    Outcome,
    assert_as_uninterrupted,
    assert_continues,
    finished,
    lost_steps,
    refused,
    states_of,
)
from tests.launch.discover_tiny import META_STEPS
from tests.launch.tiny_runs import steps_logged, tiny_discovery, wait_until

_DISK_SIZE = 8 << 20
# Enough for metrics, but not for a checkpoint's largest file.
_LITTLE = 60_000


def full_disk(bench: Bench) -> Outcome:
    """Fill the disk, for metrics and checkpoints."""
    return _full_disk(bench, 0)


def almost_full_disk(bench: Bench) -> Outcome:
    """Fill the disk until there is room for metrics, but not for a checkpoint."""
    return _full_disk(bench, _LITTLE)


def _full_disk(bench: Bench, room: int) -> Outcome:
    with _small_disk(bench.new("full_disk")) as (folder, is_real):
        workdir = folder / "run"
        process = bench.discover(workdir)
        moment = bench.rng.randint(8, 12)
        wait_until(process, lambda: steps_logged(workdir) >= moment)
        if is_real:
            threading.Thread(target=_keep_full, args=(process, folder / "ballast", room)).start()
        else:
            size = max(room, 1)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
        output = refused(process, "launch.discover: Cannot write ")
        lost = lost_steps(workdir)
        (folder / "ballast").unlink(missing_ok=True)
        assert_continues(bench, workdir)
    what = "metrics" if "Cannot write metrics" in output else "a checkpoint"
    how = "a full disk" if is_real else "a limit on file sizes, without the right to mount a disk"
    return Outcome(
        f"{how}: status 2, “Cannot write {what} in …”; continued with room, the same final state",
        f"{lost} of {META_STEPS} meta-steps",
    )


@contextlib.contextmanager
def _small_disk(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, bool]]:
    """Mount a file system of a few megabytes; yield its folder, and whether it was mounted.

    Only root can mount it.
    """
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_SIZE}", "tmpfs", str(folder)]
    is_real = (
        shutil.which("mount") is not None
        and not subprocess.run(mount, capture_output=True, check=False).returncode
    )
    try:
        yield folder, is_real
    finally:
        if is_real:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _keep_full(process: subprocess.Popen[str], ballast: pathlib.Path, room: int) -> None:
    """Keep the disk full up to `room` bytes, also when a checkpoint is deleted."""
    with ballast.open("ab", buffering=0) as file:
        while process.poll() is None:
            disk = os.statvfs(ballast)
            free = disk.f_bavail * disk.f_frsize - room
            if free > 0:
                with contextlib.suppress(OSError):
                    file.write(bytes(free))
            time.sleep(0.001)


# Damaged files.


def _empty(file: pathlib.Path) -> None:
    file.write_bytes(b"")


def _flip_a_bit(file: pathlib.Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


_HARMS = {"emptied": _empty, "a bit flipped": _flip_a_bit, "deleted": pathlib.Path.unlink}


def damaged_checkpoint(bench: Bench) -> Outcome:
    """Empty, delete, or flip a bit of each file of the newest checkpoint."""
    source = bench.uninterrupted / "checkpoints"
    files = [file.relative_to(source) for file in _files(source / str(META_STEPS))]
    expected = states_of(source)
    before = sorted(expected)[-2]
    needed, harmless = [], 0
    for harm in _HARMS.values():
        for file in files:
            folder = bench.new("damaged")
            shutil.copytree(source, folder / "checkpoints")
            harm(folder / "checkpoints" / file)
            step = _assert_passed_over(folder, expected, f"{harm.__name__} {file}")
            if step == META_STEPS:
                harmless += 1
            else:
                needed.append((harm, file))
            shutil.rmtree(folder.parent)
    assert {harm for harm, _ in needed} == set(_HARMS.values())
    for harm, file in bench.rng.sample(needed, 3):
        workdir = bench.copy_of_uninterrupted("damaged")
        harm(workdir / "checkpoints" / file)
        output = finished(bench.discover(workdir))
        assert "is damaged" in output, output
        assert f"discover: {before}/{META_STEPS}, compiling" in output, output
        assert_as_uninterrupted(bench, workdir)
    return Outcome(
        f"{len(files)} files {', '.join(_HARMS)}: in {len(needed)} cases the checkpoint before it"
        f" is used, in {harmless} the file was not needed; the same final state",
        f"{META_STEPS - before} of {META_STEPS} meta-steps",
    )


def _assert_passed_over(folder: pathlib.Path, expected: dict, what: str) -> int:
    """Check that the right state is restored and a damaged checkpoint moved; return its step."""
    checkpoints, discovery = Checkpoints(folder / "checkpoints"), tiny_discovery()
    try:
        restored = checkpoints.restore(discovery.abstract_state, discovery.agents_stacked)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        checkpoints.close()
    assert restored is not None, f"{what}: nothing is restored"
    step, state = restored
    assert step in sorted(expected)[-2:], f"{what}: {step} is restored"
    jax.tree.map(np.testing.assert_array_equal, state, expected[step])
    left = (folder / "checkpoints").iterdir()
    newest = max(int(path.name) for path in left if path.name.isdigit())
    assert newest == step, f"{what}: {step} is restored and {newest} left in its place"
    return step


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
