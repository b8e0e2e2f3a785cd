"""The manifest of a checkpoint: its step, and each array's shape, dtype and CRC-32."""

import itertools
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from disco_common import json_lines

_FORMAT = 3  # Of manifests.
CRC = "crc32"


class CheckpointError(OSError):
    """A checkpoint cannot be written, or none can be read."""


def manifest_of(step: int, arrays: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the manifest of a checkpoint, by which the arrays are checked when they are read."""
    described = {
        name: {
            "shape": list(unpadded(x, counts[name])),
            "dtype": str(x.dtype),
        }
        for name, x in arrays.items()
    }
    starts = np.cumsum([0, *(max(1, counts[name]) for name in arrays)])
    own = np.zeros(starts[-1], np.uint32)  # 0 for agents of other processes.
    for start, (name, x) in zip(starts, arrays.items(), strict=False):
        for agent, crc in checksums(x, counts[name]):
            own[start + agent] = crc
    if jax.process_count() > 1:
        own = np.max(multihost_utils.process_allgather(own), axis=0)
    for (start, end), name in zip(itertools.pairwise(starts), arrays, strict=True):
        described[name][CRC] = own[start:end].tolist()
    manifest = {"format": _FORMAT, "step": step, "arrays": described}
    return {**manifest, CRC: json_lines.crc32(manifest)}


def arrays_of(manifest: Any, folder: pathlib.Path) -> dict[str, Any]:
    """Return a manifest's description of each array.

    Raises:
      ValueError: if the manifest is damaged, or is of another step than its folder.
      CheckpointError: if an unsupported version of this module wrote it.
    """
    damaged = ValueError("the manifest does not have its checksum")
    if not isinstance(manifest, dict):
        raise damaged
    content = {name: value for name, value in manifest.items() if name != CRC}
    if manifest.get(CRC) != json_lines.crc32(content):
        raise damaged
    # After the CRC: a flipped bit in the format's number is damage, not another version.
    if content.get("format") != _FORMAT:
        raise CheckpointError(
            f"Checkpoint {folder} has format {content.get('format')!r}; this version of disco reads"
            f" format {_FORMAT}."
        )
    if str(content["step"]) != folder.name:
        raise ValueError(f"it is of step {content['step']}, in a folder named {folder.name}")
    if not isinstance(content["arrays"], dict):
        raise damaged
    return content["arrays"]


def checksums(array: Any, count: int) -> Iterator[tuple[int, int]]:
    """Yield each agent that this process holds, and the CRC-32 of its part of an array.

    For an array that is not stacked over agents, yield 0 and the CRC-32 of all of it.
    """
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
    """Return the CRC-32 of an array's bytes, without copying them."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def unpadded(array: Any, count: int) -> tuple[int, ...]:
    """Return the shape of an array, or of its abstract value, without the padding."""
    return (count, *array.shape[1:]) if count else array.shape


def require_fit(
    folder: pathlib.Path,
    described: Mapping[str, Any],
    expected: Mapping[str, Any],
    counts: Mapping[str, int],
    part: bool,
) -> None:
    """Refuse a checkpoint whose arrays do not fit the run."""
    missing, other = set(expected) - set(described), set(described) - set(expected)
    if missing or (other and not part):
        odd = sorted(missing if part else missing | other)[:3]
        raise CheckpointError(
            f"Checkpoint {folder} is of another kind of run: it differs in {odd}. If another"
            " version of this code wrote it, that version can finish the run; without the folder"
            f" {folder.parent} the run starts from the beginning."
        )
    for name, target in expected.items():
        shape = unpadded(target, counts[name])
        found = (tuple(described[name]["shape"]), described[name]["dtype"])
        if found != (shape, str(target.dtype)):
            raise CheckpointError(
                f"Checkpoint {folder} is of a run of other sizes: {name} is {found}; expected"
                f" {(shape, str(target.dtype))}."
            )
