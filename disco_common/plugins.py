"""What other packages add, by entry points (`docs/extending.md`)."""

from collections.abc import Callable
from importlib import metadata
from typing import Any


class PluginError(ImportError):
    """What another package adds cannot be imported, or its function fails."""


def names(group: str) -> list[str]:
    """Of the entry points of a group."""
    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def find(group: str, name: str) -> Callable[..., Any] | None:
    """What an entry point of this name stands for, if there is one.

    When it is called and fails, that is a `PluginError` too; a `ValueError`, by which it refuses
    its parameters, remains one. Both name the entry point and its package.

    Raises:
      PluginError: if it cannot be imported, naming it and the package that it is of.
    """
    entries = tuple(metadata.entry_points(group=group, name=name))
    if not entries:
        return None
    entry = entries[0]
    try:
        function = entry.load()
    except Exception as error:  # Whatever it is, it is the other package's.
        raise _failure(entry, "cannot be imported", error) from error

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            raise ValueError(f"{entry.name!r} of {_package(entry)}: {error}") from error
        except Exception as error:
            raise _failure(entry, "fails", error) from error

    return call


def _failure(entry: metadata.EntryPoint, what: str, error: Exception) -> PluginError:
    return PluginError(
        f"{entry.name!r} of {_package(entry)} (entry point {entry.value!r} of the group"
        f" {entry.group!r}) {what}: {type(error).__name__}: {error}"
    )


def _package(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "another package"
