"""Plugins: functions that other packages add by entry points (`docs/extending.md`)."""

from collections.abc import Callable
from importlib import metadata
from typing import Any


class PluginError(ImportError):
    """A plugin cannot be imported, or it fails."""


def names(group: str) -> list[str]:
    """Return the sorted names of a group's entry points."""
    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def find(group: str, name: str) -> Callable[..., Any] | None:
    """Return the function of an entry point; None if there is no entry point of this name.

    The function raises `ValueError` if the plugin does, which so refuses its parameters, and
    `PluginError` for any other exception. Both name the entry point and its package.

    Raises:
      PluginError: naming the entry point and its package, if it cannot be imported.
    """
    entries = tuple(metadata.entry_points(group=group, name=name))
    if not entries:
        return None
    entry = entries[0]
    try:
        function = entry.load()
    except Exception as error:  # The other package may raise any.
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
