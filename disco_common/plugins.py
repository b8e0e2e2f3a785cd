"""Plugins: functions and values that other packages add (`docs/extending.md`).

They are named by their packages' entry points, or, without any, as `<module>:<function>`.
"""

import contextlib
import contextvars
import importlib
import inspect
import pathlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

from disco_common import stopping

_MODULE_AND_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)
_IMPORTS = contextvars.ContextVar("imports", default=True)
_INSTALLED = {"site-packages", "dist-packages"}  # Folders of packages.
_imported: list[str] = []  # Modules.
_kinds: dict[str, tuple[bool, tuple[type, ...]]] = {}  # Of groups: whether of values, and types.


class PluginError(ImportError):
    """A plugin cannot be imported, is not of the kind that its group has, or fails."""


def define(group: str, *returned: type, is_of_values: bool = False) -> str:
    """Define a group of entry points; return its name.

    Its plugins are functions that return values of one of the types, or such values themselves.
    """
    _kinds[group] = is_of_values, returned
    return group


def import_modules(names: Iterable[str]) -> None:
    """Import modules that register environments; worker processes import them, too.

    Raises:
      PluginError: naming the module, if it cannot be imported.
    """
    for name in names:
        with _failures_explained(f"--imports: the module {name!r}", "cannot be imported"):
            importlib.import_module(name)
        _imported.append(name)


def imported() -> tuple[str, ...]:
    """Return the modules that `import_modules` has imported."""
    return tuple(dict.fromkeys(_imported))


def place_of(error: BaseException) -> str:
    """Return the file and line outside Python's library that raised an error; empty without one."""
    library = sysconfig.get_path("stdlib")
    for x in reversed(traceback.extract_tb(error.__traceback__)):
        is_installed = _INSTALLED & {*pathlib.Path(x.filename).parts}
        is_own = is_installed or not x.filename.startswith(("<", library))
        if is_own and x.filename != __file__:
            return f" ({x.filename}, line {x.lineno})"
    return ""


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
    """Raise a `ValueError` if no module must be imported for a name."""
    if not _IMPORTS.get():
        raise ValueError(
            f"A file names {name!r}, for which a module would be imported. Allow it, if you trust"
            " the file: load_agent(…, imports=True), launch.watch --imports."
        )


def names_module(name: str) -> bool:
    """Return whether a name is `<module>:<function>`: `find` imports the module."""
    return _MODULE_AND_FUNCTION.fullmatch(name) is not None


def find(group: str, name: str) -> Callable[..., Any] | None:
    """Return the function of an entry point, or of `<module>:<function>`; None if there is none.

    In a group of values, it is a function of no argument that returns the value. A function that
    Python's own modules or installed packages define, and what is neither function nor class, is
    refused and never called.

    The function raises `ValueError` if the plugin does, which so refuses its parameters, and
    `PluginError` for any other exception and for a result of another type. Both name the plugin,
    and an entry point's package.

    Raises:
      PluginError: naming the entry point and its package, or the module, if it cannot be imported
        or is of another kind.
    """
    is_of_values, returned = _kinds[group]
    expected = " or ".join(one.__name__ for one in returned)
    if names_module(name):
        short = whole = repr(name)
        plugin = _of_module(name)
        if not is_of_values:
            _require_function(name, plugin, expected)
    else:
        entry = next(iter(metadata.entry_points(group=group, name=name)), None)
        if entry is None:
            return None
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "another package"
        short = f"{name!r} of {package}"
        whole = f"{short} (entry point {entry.value!r} of the group {group!r})"
        with _failures_explained(whole, "cannot be imported"):
            plugin = entry.load()
    if is_of_values:
        if not isinstance(plugin, returned):
            raise PluginError(
                f"{whole} is a value of type {type(plugin).__name__}; expected {expected}."
            )
        return lambda: plugin

    def call(*arguments: Any) -> Any:
        try:
            with _failures_explained(whole, "fails", ValueError):
                made = plugin(*arguments)
        except ValueError as error:
            raise ValueError(f"{short}: {error}") from error
        if not isinstance(made, returned):
            raise PluginError(
                f"{whole} returns a value of type {type(made).__name__}; expected {expected}."
            )
        return made

    return call


def _of_module(name: str) -> Any:
    """Return what `<module>:<name>` names."""
    require_imports(name)
    module, _, attribute = name.partition(":")
    require_other_module(name, module)
    with _failures_explained(repr(name), "cannot be imported", hint="<module>:<function>"):
        return getattr(importlib.import_module(module), attribute)


def _require_function(name: str, plugin: Any, expected: str) -> None:
    """Refuse what is no function of a module that is neither Python's nor installed."""
    if not isinstance(plugin, type) and not inspect.isfunction(plugin):
        raise PluginError(
            f"{name!r} is a value of type {type(plugin).__name__}; expected a function that"
            f" returns {expected}."
        )
    require_other_module(name, plugin.__module__ or "")
    file = getattr(sys.modules.get(plugin.__module__), "__file__", None) or ""
    if _INSTALLED & {*pathlib.Path(file).parts}:
        raise PluginError(f"{name!r} is of an installed package; expected one of its entry points.")


def require_other_module(name: str, module: str) -> None:
    """Raise a `PluginError` if Python itself has a module, before it is imported for a name."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise PluginError(f"{name!r} names {module!r}, which comes with Python; expected another.")


@contextlib.contextmanager
def _failures_explained(
    plugin: str, what: str, *passed: type[Exception], hint: str = ""
) -> Iterator[None]:
    """Convert what another package raises, which may be anything, to `PluginError`."""
    try:
        yield
    except passed:
        raise
    except (Exception, SystemExit) as error:
        if stopping.is_requested():  # The signal's.
            raise
        expected = f"; expected {hint}." if hint else ""
        raise PluginError(
            f"{plugin} {what}: {type(error).__name__}: {error}{place_of(error)}{expected}"
        ) from error
