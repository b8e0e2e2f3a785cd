"""What other packages add, by entry points (`docs/extending.md`)."""

from collections.abc import Callable
from importlib import metadata
from typing import Any


def names(group: str) -> list[str]:
    """Of the entry points of a group."""
    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def find(group: str, name: str) -> Callable[..., Any] | None:
    """What an entry point of this name stands for, if there is one."""
    entries = tuple(metadata.entry_points(group=group, name=name))
    return entries[0].load() if entries else None
