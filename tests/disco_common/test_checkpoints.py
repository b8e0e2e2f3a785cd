"""Checkpoints: what is written comes back, and nothing that is damaged passes for good."""

import contextlib
import errno
import json
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

from disco_common.checkpoints import CheckpointError, Checkpoints, steps
from disco_common.json_lines import crc32


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


def test_bfloat16_comes_back_bit_by_bit(tmp_path):
    """All of its numbers, in an array of the host as a replay's, and in one of a device."""
    bits = np.arange(2**16, dtype=np.uint16)
    saved = {"host": bits.view(jnp.bfloat16), "device": jnp.arange(9.0, dtype=jnp.bfloat16) / 7}
    checkpoints = Checkpoints(tmp_path)
    with contextlib.closing(checkpoints):
        checkpoints.save(3, saved)
        checkpoints.wait()
        found = checkpoints.restore(saved)
    assert found is not None
    assert isinstance(found[1]["host"], np.ndarray)
    for name, array in saved.items():
        assert found[1][name].dtype == jnp.bfloat16
        one, other = (np.asarray(x).view(np.uint16) for x in (found[1][name], array))
        np.testing.assert_array_equal(one, other)


def test_empty_folder_has_none(tmp_path):
    assert restore(tmp_path / "new" / "checkpoints") is None


def test_arrays_may_change_as_soon_as_save_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    arrays = {"big": np.zeros(2_000_000)}
    checkpoints.save(1, arrays)
    arrays["big"] += 1.0
    checkpoints.wait()
    restored = checkpoints.restore({"big": np.zeros(2_000_000)})
    checkpoints.close()
    assert restored is not None
    assert not restored[1]["big"].any()


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
        assert restored is not None
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


@pytest.mark.parametrize(
    "noted", ['{"performance_metrics": 1}', f'{{"commit_timestamp_nsecs": 1{"0" * 400}}}']
)
def test_a_checkpoint_whose_description_orbax_cannot_read_is_set_aside(written, tmp_path, noted):
    """Orbax opens all descriptions at once, and its errors name no file."""
    directory = tmp_path / "checkpoints"
    shutil.copytree(written, directory)
    (directory / "4" / "_CHECKPOINT_METADATA").write_text(noted)
    assert_is_state(restore(directory), 3)
    assert (tmp_path / "damaged" / "4").is_dir()


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
    with pytest.raises(
        CheckpointError,
        match=r"None of the checkpoints \[2, 3, 4\] in .* can be read: 2: \w+: .+; 3: .+; 4: .",
    ):
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
from disco_common.checkpoints import CheckpointError, Checkpoints
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


def snapshot(folder: pathlib.Path) -> dict:
    """Of all that is in a folder: when it was changed, and to what."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (folder, *folder.rglob("*"))
    }


def test_steps_are_listed_and_nothing_is_changed(directory):
    shutil.copytree(directory / "4", directory / "5.orbax-checkpoint-tmp")
    for name in ("04", "\N{SUPERSCRIPT TWO}", "-1", "notes"):
        (directory / name).mkdir()
    (directory / "7").touch()
    before = snapshot(directory.parent)
    assert steps(directory) == [2, 3, 4]
    assert snapshot(directory.parent) == before


def test_steps_of_a_folder_that_is_not_there_or_is_none(tmp_path):
    assert steps(tmp_path / "none") == []
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"Cannot read checkpoints in .*file: .*Not a direct"):
        steps(tmp_path / "file")


@pytest.fixture
def opened(directory):
    with contextlib.closing(Checkpoints(directory)) as opened:
        yield opened


def test_part_of_a_checkpoint_is_no_state(opened):
    with pytest.raises(CheckpointError, match=r"another kind of run: it differs in \['agents/0"):
        opened.restore({"step": np.array(0, np.int32)})
    with pytest.raises(CheckpointError, match=r"of other sizes: rule/w is \(\(30, 40\)"):
        opened.restore(state(0) | {"rule": state(0)["rule"] | {"w": jnp.zeros((30, 41))}})


# The manifest.


def manifest_of(directory: pathlib.Path, step: int) -> pathlib.Path:
    return directory / str(step) / "manifest" / "metadata"


def rewrite(path: pathlib.Path, change) -> None:
    """Changes a manifest as if it had been written so."""
    manifest = json.loads(path.read_text())
    del manifest["crc32"]
    change(manifest)
    path.write_text(json.dumps({**manifest, "crc32": crc32(manifest)}))


@pytest.mark.parametrize("name", ["5", "99"])
def test_checkpoint_under_another_steps_name_is_damaged(directory, caplog, name):
    (directory / "4").rename(directory / name)
    assert_is_state(restore(directory), 3)
    assert f"{directory / name} is damaged (ValueError: it is of step 4, in a " in caplog.text
    assert f"folder named {name})" in caplog.text
    assert (directory.parent / "damaged" / name).is_dir()


def test_format_of_another_version_is_refused(directory):
    rewrite(manifest_of(directory, 4), lambda manifest: manifest.update(format=4))
    with pytest.raises(CheckpointError, match=r"4 has format 4; this version .* format 3"):
        restore(directory)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "null", "7", '"text"', "{}", '{"crc32": 0}', '{"format": 2}', "[" * 10**5),
        '{"format": 2, "arrays": [], "crc32": "0"}',
        '{"format": [], "arrays": 1, "crc32": {}}',
    ],
)
def test_malformed_manifest_is_damage(directory, opened, content):
    manifest_of(directory, 4).write_text(content)
    assert_is_state(opened.restore(state(0)), 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("step"),
        lambda manifest: manifest.pop("arrays"),
        lambda manifest: manifest.update(arrays=[]),
        lambda manifest: manifest["arrays"].update(step=7),
        lambda manifest: manifest["arrays"]["step"].pop("crc32"),
        lambda manifest: manifest["arrays"]["step"].update(crc32=[]),
    ],
)
def test_malformed_manifest_of_a_right_checksum_is_damage_too(directory, opened, change):
    rewrite(manifest_of(directory, 4), change)
    assert_is_state(opened.restore(state(0)), 3)


def assert_each_flip_is_noticed(directory: pathlib.Path, files, first: int, every: int) -> None:
    """Flips bits of the newest checkpoint's files, one at a time."""
    with contextlib.closing(Checkpoints(directory)) as opened:
        for file in files:
            content = file.read_bytes()
            for bit in range(first, 8 * len(content), every):
                flipped = bytearray(content)
                flipped[bit // 8] ^= 1 << bit % 8
                file.write_bytes(flipped)
                restored = opened.restore(state(0))
                assert restored is not None
                assert restored[0] in (3, 4), f"bit {bit} of {file}"
                assert_is_state(restored, restored[0])
                if restored[0] == 3:
                    shutil.move(directory.parent / "damaged" / "4", directory)
            file.write_bytes(content)


def metadata_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Files of the newest checkpoint but for the arrays, which others of these tests damage."""
    return [path for path in files_of(directory, 4) if path.parent.name != "d"]


def test_flipped_bits(directory):
    """Some of the metadata's; slow tests take more."""
    assert manifest_of(directory, 4) in metadata_files(directory)
    assert_each_flip_is_noticed(directory, metadata_files(directory), first=3, every=131)


def test_flipped_bits_of_the_manifests_format(directory):
    file = manifest_of(directory, 4)
    content = file.read_bytes()
    start = content.index(b'"format"')
    with contextlib.closing(Checkpoints(directory)) as opened:
        for bit in range(8 * start, 8 * (start + len(b'"format": 3'))):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            assert_is_state(opened.restore(state(0)), 3)
            shutil.move(directory.parent / "damaged" / "4", directory)


@pytest.mark.thorough  # The fuzzer flips bits of checkpoints, too.
def test_many_flipped_bits_of_the_manifest(directory):
    assert_each_flip_is_noticed(directory, [manifest_of(directory, 4)], first=0, every=5)


@pytest.mark.thorough  # The fuzzer flips bits of checkpoints, too.
def test_many_flipped_bits_of_other_metadata(directory):
    files = [file for file in metadata_files(directory) if file != manifest_of(directory, 4)]
    assert_each_flip_is_noticed(directory, files, first=0, every=23)
