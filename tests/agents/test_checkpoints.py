"""Checkpoints: what is written comes back, and nothing that is damaged passes for good."""

import errno
import logging
import pathlib
import shutil
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from agents.checkpoints import CheckpointError, Checkpoints


def state(step: int) -> dict:
    """Arrays of several kinds, other ones at each step."""
    rng = np.random.default_rng(step)
    return {
        "rule": {"w": jnp.asarray(rng.normal(size=(30, 40)), jnp.float32)},
        "agents": (jnp.asarray(rng.integers(100, size=7)), jnp.asarray(rng.random(5) < 0.5)),
        "step": jnp.asarray(step),
    }


def assert_is_state(restored, step: int) -> None:
    found_step, found = restored
    assert found_step == step
    expected = state(step)
    for one, other in (
        (found["rule"]["w"], expected["rule"]["w"]),
        (found["agents"][0], expected["agents"][0]),
        (found["agents"][1], expected["agents"][1]),
        (found["step"], expected["step"]),
    ):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def restore(directory: pathlib.Path):
    checkpoints = Checkpoints(directory)
    try:
        return checkpoints.restore(state(0))
    finally:
        checkpoints.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> pathlib.Path:
    """A folder with checkpoints 1 to 4, of which the newest three are kept."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(directory, keep=3)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state(step))
    checkpoints.wait()
    checkpoints.close()
    return directory


@pytest.fixture
def directory(written, tmp_path) -> pathlib.Path:
    """A copy of `written` to damage."""
    return pathlib.Path(shutil.copytree(written, tmp_path / "checkpoints"))


def files_of(directory: pathlib.Path, step: int) -> list[pathlib.Path]:
    return sorted(path for path in (directory / str(step)).rglob("*") if path.is_file())


def test_newest_comes_back(directory):
    assert sorted(int(path.name) for path in directory.iterdir()) == [2, 3, 4]
    assert_is_state(restore(directory), 4)


def test_empty_folder_has_none(tmp_path):
    assert restore(tmp_path / "new" / "checkpoints") is None


def test_arrays_may_change_as_soon_as_save_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    arrays = {"big": np.zeros(2_000_000)}
    checkpoints.save(1, arrays)
    arrays["big"] += 1.0
    checkpoints.wait()
    _, restored = checkpoints.restore({"big": np.zeros(2_000_000)})
    checkpoints.close()
    assert not restored["big"].any()


def truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 7):
        content[position] ^= 0x55
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, flip, pathlib.Path.unlink])
def test_damaged_newest_is_passed_over_with_a_warning(written, tmp_path, caplog, damage):
    """Whichever file is damaged; where it holds nothing that is needed, nothing is lost."""
    num_damaged = 0
    for number, file in enumerate(files_of(written, 4)):
        if file.stat().st_size == 0:
            continue
        directory = tmp_path / str(number) / "checkpoints"
        shutil.copytree(written, directory)
        damage(directory / file.relative_to(written))
        contents = [path.read_bytes() for path in files_of(directory, 4)]
        caplog.clear()
        restored = restore(directory)
        if restored[0] == 4:
            assert_is_state(restored, 4)
            continue
        num_damaged += 1
        assert_is_state(restored, 3)
        (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert str(directory / "4") in warning.getMessage()
        assert not (directory / "4").exists()
        moved = directory.parent / "damaged"
        assert [path.read_bytes() for path in files_of(moved, 4)] == contents
        # It is not met again, and its place is free.
        checkpoints = Checkpoints(directory)
        checkpoints.save(4, state(4))
        checkpoints.wait()
        checkpoints.close()
        assert_is_state(restore(directory), 4)
    assert num_damaged >= 2  # At least the arrays and the manifest.


def test_read_that_fails_once_is_tried_again(directory, monkeypatch):
    read, reads = ocp.Checkpointer.restore, []

    def fails_once(*args, **kwargs):
        reads.append(args)
        if len(reads) == 2:  # The arrays, after the manifest.
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(*args, **kwargs)

    monkeypatch.setattr(ocp.Checkpointer, "restore", fails_once)
    assert_is_state(restore(directory), 4)
    assert len(reads) == 4


def test_half_written_checkpoint_does_not_count(directory):
    shutil.copytree(directory / "4", directory / "5.orbax-checkpoint-tmp")
    for path in files_of(directory, 5):
        truncate(path)
    assert_is_state(restore(directory), 4)


def test_none_good(directory):
    for step in (2, 3, 4):
        for path in files_of(directory, step):
            path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"None of the checkpoints \[2, 3, 4\] in .* be read"):
        restore(directory)
    assert all(files_of(directory, step) for step in (2, 3, 4))


def test_clock_that_jumps_while_a_checkpoint_is_written(directory, monkeypatch):
    clock = time.time
    checkpoints = Checkpoints(directory)
    for step, hours in ((5, 1), (6, -1), (7, 0)):
        checkpoints.save(step, state(step) | {"big": np.zeros(2_000_000)})
        monkeypatch.setattr(time, "time", lambda hours=hours: clock() + 3600 * hours)
    checkpoints.wait()
    checkpoints.close()
    assert sorted(int(path.name) for path in directory.iterdir()) == [5, 6, 7]


def test_run_of_other_sizes(directory):
    checkpoints = Checkpoints(directory)
    other = state(0)
    other["rule"]["w"] = jnp.zeros((30, 41))
    with pytest.raises(CheckpointError, match=r"of other sizes: rule/w is \(\(30, 40\)"):
        checkpoints.restore(other)
    with pytest.raises(CheckpointError, match=r"of another kind of run: it differs in \['more'\]"):
        checkpoints.restore(state(0) | {"more": jnp.zeros(())})
    checkpoints.close()
    assert_is_state(restore(directory), 4)


def test_folder_below_a_file(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CheckpointError, match=r"Cannot write checkpoints in .*file/checkpoints"):
        Checkpoints(file / "checkpoints")


FULL_DISK = """
import pathlib, resource, sys
import numpy as np
from agents.checkpoints import CheckpointError, Checkpoints
checkpoints = Checkpoints(pathlib.Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    checkpoints.save(5, {"big": np.random.default_rng(0).random(1 << 20)})
    checkpoints.wait()
except CheckpointError as error:
    print(error)
"""


def test_full_disk(directory):
    """No file may grow beyond 64 kB, which is what a full disk feels like."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(directory)],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"Cannot write a checkpoint in {directory}" in done.stdout, done.stderr
    assert "[2, 3, 4]" in done.stdout
    assert done.returncode == 0, done.stderr
    assert_is_state(restore(directory), 4)
