"""Plugins: functions that other packages add (`docs/extending.md`).

They are named by their packages' entry points, or, without any, as `<module>:<function>`.
"""

import contextlib
import contextvars
import importlib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

_MODULE_AND_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)

_IMPORTS = contextvars.ContextVar("imports", default=True)


_imported: list[str] = []  # Modules.


class PluginError(ImportError):
    """A plugin cannot be imported, or it fails."""


def import_modules(names: Iterable[str]) -> None:
    """Import modules that register environments; worker processes import them, too.

    Raises:
      PluginError: naming the module, if it cannot be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # The module may raise any.
            raise PluginError(
                f"--imports: the module {name!r} cannot be imported:"
                f" {type(error).__name__}: {error}{place_of(error)}."
            ) from error
        _imported.append(name)


def imported() -> tuple[str, ...]:
    """Return the modules that `import_modules` has imported."""
    return tuple(dict.fromkeys(_imported))


def place_of(error: BaseException) -> str:
    """Return the file and line that raised an error, in brackets; empty if it was not raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def names(group: str) -> list[str]:
    """Return the sorted names of a group's entry points."""
    return sorted({entry.name for entry in metadata.entry_points(group=group)})


@contextlib.contextmanager
def names_from_files(*, imports: bool) -> Iterator[None]:
    """Within it, names that come from files import modules only if `imports` is True."""
    token = _IMPORTS.set(imports)
    try:
        yield
    finally:
        _IMPORTS.reset(token)


def require_imports(name: str) -> None:
    """Raise an error if modules must not be imported for names.

    Raises:
      ValueError: with the name, for which a module was about to be imported.
    """
    if not _IMPORTS.get():
        raise ValueError(
            f"A file names {name!r}, for which a module would be imported. Allow it, if you trust"
            " the file: load_agent(…, imports=True), launch.watch --imports."
        )


def names_module(name: str) -> bool:
    """Return whether a name is `<module>:<function>`: `find` imports the module."""
    return _MODULE_AND_FUNCTION.fullmatch(name) is not None


def find(group: str, name: str) -> Callable[..., Any] | None:
    """Return the function of an entry point, or of a module; None if there is none of this name.

    Any function of any module can be named: within `names_from_files` they may be refused.

    The function raises `ValueError` if the plugin does, which so refuses its parameters, and
    `PluginError` for any other exception. Both name the entry point and its package.

    Raises:
      PluginError: naming the entry point and its package, or the module, if it cannot be imported.
    """
    if names_module(name):
        return _of_module(name)
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


def _of_module(name: str) -> Callable[..., Any]:
    """Return the function `<module>:<function>`, whose own errors name it already."""
    require_imports(name)
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except Exception as error:  # The module may raise any.
        raise PluginError(
            f"{name!r} cannot be imported: {type(error).__name__}: {error}{place_of(error)};"
            " expected <module>:<function>."
        ) from error


def _failure(entry: metadata.EntryPoint, what: str, error: Exception) -> PluginError:
    return PluginError(
        f"{entry.name!r} of {_package(entry)} (entry point {entry.value!r} of the group"
        f" {entry.group!r}) {what}: {type(error).__name__}: {error}{place_of(error)}"
    )


def _package(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "another package"
