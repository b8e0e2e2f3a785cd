"""Files that must not be opened, or not be read to their end, are refused at once."""

import os
import socket
import stat

import pytest

from disco_common import files
from disco_common.json_lines import JsonLines, read_object
from tests.common import at_once, misplaced


@pytest.fixture(autouse=True)
def _quick():
    with at_once():
        yield


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "/dev/zero", "/dev/tty", "folder"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = misplaced(tmp_path / "file.json", kind)
    for read in (read_object, files.read_text, lambda x: JsonLines(x).read_undamaged()):
        with pytest.raises(OSError, match=str(path)):
            read(path)


def test_a_socket_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Addresses are short.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("file.json")
        with pytest.raises(OSError, match=r"file\.json"):
            read_object(tmp_path / "file.json")


def test_a_file_of_a_size_that_its_kind_cannot_have_is_not_read(tmp_path):
    path = misplaced(tmp_path / "file.json", "huge")
    expected = rf"file\.json has {1 << 41} bytes; expected a file of at most {files.MOST_OBJECT}"
    with pytest.raises(OSError, match=expected):
        read_object(path)
    with pytest.raises(OSError, match=f"at most {files.MOST_DATA}"):
        JsonLines(path).read()


def test_a_link_to_a_regular_file_is_read(tmp_path):
    (tmp_path / "real").write_text('{"a": 1}')
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert read_object(tmp_path / "link") == {"a": 1}


def test_a_missing_log_has_no_lines_and_is_made_with_the_usual_permissions(tmp_path):
    log = JsonLines(tmp_path / "log.jsonl")
    assert log.read() == []
    log.append([{"a": 1}])
    log.append([{"b": 2}])
    assert log.read() == [{"a": 1}, {"b": 2}]
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(os.stat(log.path).st_mode) == stat.S_IMODE(
        os.stat(tmp_path / "plain").st_mode
    )


def test_appending_to_a_pipe_does_not_wait_for_its_reader(tmp_path):
    log = JsonLines(misplaced(tmp_path / "log.jsonl", "pipe"))
    with pytest.raises(OSError, match=r"log\.jsonl"):
        log.append([{"a": 1}])
