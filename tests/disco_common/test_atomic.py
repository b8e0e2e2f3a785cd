"""Files that are written whole or not at all: their permissions, and what errors say."""

import errno
import os
import pathlib
import resource
import stat

import pytest

from disco_common.files import write_atomically
from disco_common.json_lines import JsonLines


@pytest.fixture
def umask():
    """Sets the process' umask for the test."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.fixture
def small_files():
    """Lets no file grow beyond a hundred bytes, as a full disk would not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def permissions(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077, 0o027])
def test_a_new_file_has_what_the_umask_leaves(tmp_path, umask, mask):
    umask(mask)
    write_atomically(tmp_path / "new", "text")
    assert permissions(tmp_path / "new") == 0o666 & ~mask


@pytest.mark.parametrize("own", [0o600, 0o640, 0o664, 0o444])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, umask, own):
    umask(0o022)
    path = tmp_path / "there"
    path.write_text("before")
    path.chmod(own)
    write_atomically(path, b"after")
    assert path.read_text() == "after"
    assert permissions(path) == own


def test_an_error_names_the_file_and_leaves_the_old_one(tmp_path, small_files):
    path = tmp_path / "there"
    path.write_text("before")
    with pytest.raises(OSError, match="File too large") as caught:
        write_atomically(path, 1000 * "x")
    assert caught.value.errno == errno.EFBIG
    assert str(caught.value) == f"[Errno {errno.EFBIG}] File too large: {str(path)!r}"
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_told_by_the_files_own_name(tmp_path):
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(path, "text")
    assert str(caught.value).endswith(f": {str(path)!r}")


def test_a_log_that_cannot_grow_is_named(tmp_path, small_files):
    log = JsonLines(tmp_path / "log.jsonl")
    with pytest.raises(OSError, match="File too large") as caught:
        log.append([{"text": 1000 * "x"}])
    assert caught.value.filename == str(tmp_path / "log.jsonl")


def test_a_full_disk_is_named():
    if not pathlib.Path("/dev/full").exists():
        pytest.skip("There is no /dev/full.")
    with pytest.raises(OSError, match="'/dev/full'") as caught:
        JsonLines(pathlib.Path("/dev/full")).append([{"step": 1}])
    assert caught.value.errno == errno.ENOSPC


def test_names_that_are_not_utf_8_are_written_as_escapes(tmp_path):
    write_atomically(tmp_path / "text", "a rule called \udcff")
    assert (tmp_path / "text").read_text() == "a rule called \\udcff"
