"""What can befall a file: by accident, or by somebody who means it."""

import json
import os
import pathlib
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from disco_common import json_lines
from tests.common import misplaced as place

Damage = Callable[[random.Random, pathlib.Path], str]
"""Damages a file; returns what was done, in words."""

_HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 10**12, 10**400, 1e300, -1e300, float("nan"), float("inf"), "", "x",
    "x" * 100_000, "\x1b[31m", "\udcff", "\0", "os:system", "/dev/zero",
    "<script>alert(1)</script>", "../../x", [], {}, [[]], [1, "a", None], {"a": {"b": 1}}, 0.5,
)  # fmt: skip
_SHAPES = ("(25000000000,)", "(-1,)", "()", "(0,)", "(True,)", "(1, 2", "(" * 500, "(3,) * 2")
_DTYPES = ("'<f4'", "'<f8'", "'>f4'", "'|O'", "'<c8'", "'<U9'", "'|V0'", "'none'", "[('a', '<f4')]")


# By accident.


def truncated(rng: random.Random, path: pathlib.Path) -> str:
    """As after a crash."""
    size = path.stat().st_size
    left = rng.choice([0, 1, size // 2, size - 1, rng.randrange(size + 1)])
    os.truncate(path, max(0, left))
    return f"truncated to {left} of {size} bytes"


def flipped(rng: random.Random, path: pathlib.Path) -> str:
    """A bit or a few."""
    content = bytearray(path.read_bytes())
    if not content:
        return "empty as it was"
    bits = [rng.randrange(8 * len(content)) for _ in range(rng.choice([1, 1, 1, 3, 20]))]
    for bit in bits:
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"bits flipped: {bits}"


def overwritten(rng: random.Random, path: pathlib.Path) -> str:
    """A block of zeros, of noise, or of another place of the file."""
    content = bytearray(path.read_bytes())
    start, length = rng.randrange(len(content) + 1), rng.choice([1, 4, 64, 512])
    kind = rng.choice(["zeros", "noise", "itself"])
    other = rng.randrange(len(content) + 1)
    block = {
        "zeros": bytes(length),
        "noise": rng.randbytes(length),
        "itself": bytes(content[other : other + length]),
    }[kind]
    if rng.random() < 0.5:
        content[start : start + length] = block
    else:
        content[start:start] = block
    path.write_bytes(content)
    return f"{kind}, {length} bytes at {start}"


def replaced(rng: random.Random, path: pathlib.Path) -> str:
    """By something else."""
    kind = rng.choice(["empty", "text", "deep", "digits", "noise", "gone", "file"])
    if kind == "file":
        return misplaced(rng, path)
    path.unlink()
    if kind != "gone":
        content = {
            "empty": b"",
            "text": "Grüße".encode("latin-1"),
            "deep": rng.choice([b"[", b'{"a":']) * 100_000,
            "digits": b"9" * 10_000,
            "noise": rng.randbytes(2_000),
        }[kind]
        path.write_bytes(content)
    return f"replaced: {kind}"


def misplaced(rng: random.Random, path: pathlib.Path) -> str:
    """By a file that must not be read, or not be opened."""
    kind = rng.choice(["folder", "pipe", "huge", "loop", "/dev/zero", "/dev/null", "/dev/tty"])
    place(path, kind)
    return f"replaced: {kind}"


ACCIDENTS: tuple[Damage, ...] = (truncated, flipped, flipped, overwritten, replaced)


# By somebody who means it.


def hostile_json(rng: random.Random, path: pathlib.Path, checksum: str = "") -> str:
    """A JSON file one of whose values is another, with a checksum that says that it is right."""
    value = json.loads(path.read_text())
    done = _make_hostile(rng, value)
    if checksum and isinstance(value, dict) and checksum in value:
        value[checksum] = json_lines.crc32({k: v for k, v in value.items() if k != checksum})
    path.write_text(json.dumps(value))
    return done


def hostile_lines(rng: random.Random, path: pathlib.Path) -> str:
    """Likewise of a line of a file with a JSON object in each."""
    lines = path.read_text().splitlines()
    number = rng.randrange(len(lines))
    value = json.loads(lines[number])
    done = _make_hostile(rng, value)
    lines[number] = json.dumps(value)
    path.write_text("".join(line + "\n" for line in lines))
    return f"line {number + 1}: {done}"


def _make_hostile(rng: random.Random, value: Any) -> str:
    """Changes something within a JSON object or list."""
    place, within = "", value
    while True:
        names = list(within) if isinstance(within, dict) else list(range(len(within)))
        if not names:
            return "nothing"
        name = rng.choice(names)
        inner = within[name]
        place += f"/{name}"
        if not (isinstance(inner, dict | list) and inner and rng.random() < 0.8):
            break
        within = inner
    if rng.random() < 0.15:
        del within[name]
        return f"{place} left out"
    hostile = rng.choice(_HOSTILE)
    within[name] = hostile
    return f"{place} is {repr(hostile)[:60]}"


def hostile_header(rng: random.Random, path: pathlib.Path) -> str:
    """A rule file whose header says something else."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["header"]))
    done = _make_hostile(rng, header)
    text = json.dumps(header)
    if rng.random() < 0.1:
        text, done = rng.choice(["[", '{"a":']) * 50_000, "nested 50,000 deep"
    arrays["header"] = np.array(text)
    np.savez(path, **arrays)
    return f"header: {done}"


def hostile_array(rng: random.Random, path: pathlib.Path) -> str:
    """A rule file one of whose arrays says another shape or dtype, or is of another."""
    shape, dtype = rng.choice(_SHAPES), rng.choice(_DTYPES)
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    version = rng.choice([1, 1, 2, 3, 9])
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    data = rng.randbytes(rng.choice([0, 4, 1000]))
    content = b"\x93NUMPY" + bytes([version, 0]) + length + header + data
    members = _members(path)
    chosen = rng.randrange(len(members))
    members[chosen] = (members[chosen][0], content)
    _write_members(path, members)
    return f"{members[chosen][0]} claims {shape[:40]} of {dtype}, in version {version}"


def hostile_archive(rng: random.Random, path: pathlib.Path) -> str:
    """A rule file with members more, less, twice, or packed otherwise."""
    members = _members(path)
    name, content = rng.choice(members)
    kind = rng.choice(["twice", "bare", "escaping", "gone", "bzip2", "lzma", "zeros", "many"])
    compression = zipfile.ZIP_DEFLATED
    if kind == "twice":
        members.append((name, content))
    elif kind == "bare":
        members.append((name.removesuffix(".npy"), content))
    elif kind == "escaping":
        members.append((f"../../{name}", content))
    elif kind == "gone":
        members.remove((name, content))
    elif kind == "zeros":  # 400 MB in 400 kB.
        head = content[:10]
        members.append(("zeros.npy", head + bytes(400_000_000)))
    elif kind == "many":
        members += [(f"{number}.npy", content) for number in range(3_000)]
    else:
        compression = {"bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}[kind]
    _write_members(path, members, compression)
    return f"members: {kind}"


def _members(path: pathlib.Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def _write_members(
    path: pathlib.Path, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED
) -> None:
    with (
        zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # Of two members of one name.
        for name, content in members:
            archive.writestr(name, content)


def renamed_step(rng: random.Random, path: pathlib.Path) -> str:
    """A checkpoint under another step."""
    other = path.with_name(str(rng.choice([3, 40, 10**20])))
    shutil.move(path, other)
    return f"{path.name} renamed {other.name}"
