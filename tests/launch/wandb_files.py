"""What Weights & Biases wrote offline: the records of its `.wandb` files, a LevelDB log."""

import json
import pathlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_BLOCK, _FILE_HEADER, _HEADER = 32768, 7, struct.Struct("<IHB")
_FULL, _LAST = 1, 4


class OfflineRun(NamedTuple):
    """One start of a run: its id and names, its settings, and the rows that it logged."""

    id: str
    project: str
    name: str
    group: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]


def read(workdir: pathlib.Path) -> list[OfflineRun]:
    """All starts of runs in a workdir, in order."""
    folders = sorted((workdir / "wandb").glob("offline-run-*"))
    return [_read(file) for folder in folders for file in folder.glob("*.wandb")]


def _read(file: pathlib.Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2

    run: Any = None
    rows = []
    for data in _records(file.read_bytes()):
        record: Any = wandb_internal_pb2.Record.FromString(data)  # pyright: ignore
        if record.HasField("run"):
            run = record.run
        elif record.HasField("history"):
            items = record.history.item
            row = {x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in items}
            rows.append({name: x for name, x in row.items() if name[0] != "_" or name == "_step"})
    config = {x.key or x.nested_key[0]: json.loads(x.value_json) for x in run.config.update}
    return OfflineRun(run.run_id, run.project, run.display_name, run.run_group, config, rows)


def _records(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    place, parts = _FILE_HEADER, b""
    while place + _HEADER.size <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER.size:
            place += left
            continue
        _, length, kind = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        parts += data[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""
