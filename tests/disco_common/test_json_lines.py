"""Logs of an object per line: damaged lines are named, or dropped."""

import json
import math
import re

import numpy as np
import pytest

from disco_common.json_lines import JsonLines, dumps, loads, read_object

DAMAGED = {
    "cut": b'{"step": 3, "loss": 0.',
    "binary": b"\xff\xfe\x00\x01",
    "empty": b"",
    "number": b"3",
    "list": b"[3]",
    "null": b"null",
    "deep": b"[" * 100_000,
}


def log_of(tmp_path, *lines: bytes) -> JsonLines:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return JsonLines(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"{2**63 - 1}", 2**63 - 1),
        (f"{-(2**63)}", -(2**63)),
        (f"{2**63}", 2.0**63),
        (f"{-(2**63) - 1}", -(2.0**63)),
        ("9" * 400, math.inf),
        ("-" + "9" * 5_000, -math.inf),  # Python makes integers of at most 4,300 digits.
    ],
)
def test_integers_that_int64_cannot_hold_are_floats(tmp_path, text, value):
    log = log_of(tmp_path, f'{{"step": {text}}}'.encode())
    for found in (read_object(log.path)["step"], log.read()[0]["step"]):
        assert type(found) is type(value)
        assert found == value


def test_what_was_appended_is_read(tmp_path):
    log = JsonLines(tmp_path / "log.jsonl")
    assert log.read() == []
    log.append([{"step": 1}, {"step": 2}])
    log.append([{"step": 3}])
    assert [line["step"] for line in log.read()] == [1, 2, 3]
    log.keep("step", 2)
    assert [line["step"] for line in log.read()] == [1, 2]


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named(tmp_path, damaged):
    log = log_of(tmp_path, b'{"step": 1}', damaged, b'{"step": 4}')
    message = f"Line 2 of {log.path} is damaged: expected a JSON object, found "
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        log.read()
    assert len(str(caught.value)) < len(message) + 400
    objects, problems = log.read_undamaged()
    assert objects == {1: {"step": 1}, 3: {"step": 4}}
    assert len(problems) == 1


@pytest.mark.parametrize("damaged", [*DAMAGED.values(), b"{}", b'{"step": "2"}', b'{"step": null}'])
def test_a_damaged_line_is_dropped(tmp_path, damaged):
    log = log_of(tmp_path, b'{"step": 1}', damaged, b'{"step": 4}', b'{"step": 5}')
    log.keep("step", 4)
    assert log.path.read_text() == '{"step": 1}\n{"step": 4}\n'


def test_what_is_kept_is_not_written_again(tmp_path):
    log = log_of(tmp_path, json.dumps({"step": 1, "name": "\udcff é"}).encode())
    inode = log.path.stat().st_ino
    log.keep("step", 4)
    assert log.path.stat().st_ino == inode


def _refuse(constant: str):
    raise AssertionError(f"{constant} is no JSON")


def test_what_is_not_finite_is_null(tmp_path):
    """JSON has no NaN; files of older versions do, and are read."""
    values = {
        "a": math.nan,
        "b": [1.5, -math.inf],
        "c": np.array([np.inf, 2.0]),
        "d": np.float32(3),
    }
    plain = {"a": None, "b": [1.5, None], "c": [None, 2.0], "d": 3.0}
    assert json.loads(dumps(values), parse_constant=_refuse) == plain
    log = JsonLines(tmp_path / "log.jsonl")
    log.append([values])
    assert json.loads(log.path.read_text(), parse_constant=_refuse) == plain
    assert log.read() == [plain]
    assert math.isnan(loads("[NaN]")[0])
    assert dumps({"b": 1, "a": 0.1}, indent=1) == json.dumps({"b": 1, "a": 0.1}, indent=1)
