"""Plugins: functions and values that other packages add (`docs/extending.md`).

They are named by their packages' entry points, or, without any, as `<module>:<function>`.
"""

import contextlib
import contextvars
import functools
import importlib.util
import inspect
import pathlib
import re
import sysconfig
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any, NamedTuple

from disco_common import stopping

_MODULE_AND_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)

_IMPORTS = contextvars.ContextVar("imports", default=True)


_imported: list[str] = []  # Modules.


class _Kind(NamedTuple):
    """What the functions of a group take and return. A group of values has no `parameters`."""

    parameters: int | None
    returned: tuple[type, ...]


_KINDS: dict[str, _Kind] = {}
_INSTALLED = {"site-packages", "dist-packages"}  # Folders of packages.


class PluginError(ImportError):
    """A plugin cannot be imported, is not of the kind that its group has, or fails."""


def define(group: str, *returned: type, parameters: int | None) -> str:
    """Define a group of plugins; return its name.

    Args:
      group: of entry points.
      *returned: types, of one of which is what a function of the group returns.
      parameters: number of texts that the function is called with; None for a group of values.
    """
    _KINDS[group] = _Kind(parameters, returned)
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
    """Return the file and line outside Python's library that raised an error, in brackets.

    It is empty if there is none.
    """
    places = [x for x in traceback.extract_tb(error.__traceback__) if x.filename != __file__]
    own = [x for x in places if x.filename[0] != "<" and not _is_in_library(x.filename)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


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

    In a group of values, it is a function of no argument that returns the value.

    Any function of any module can be named that is of the group's kind: within `names_from_files`
    they may be refused. What is certainly of another kind is not called: what Python's own modules
    define, what is no function, takes other arguments, or is annotated to return something else.

    The function raises `ValueError` if the plugin does, which so refuses its parameters, and
    `PluginError` for any other exception and for a result of another type. Both name the plugin,
    and an entry point's package.

    Args:
      group: as `define` returned it.
      name: of an entry point, or `<module>:<function>`.

    Raises:
      PluginError: naming the entry point and its package, or the module, if it cannot be imported
        or is of another kind.
    """
    kind = _KINDS[group]
    if names_module(name):
        function, short, whole = _of_module(name, kind), repr(name), repr(name)
    else:
        entry = next(iter(metadata.entry_points(group=group, name=name)), None)
        if entry is None:
            return None
        short, whole = f"{entry.name!r} of {_package(entry)}", _described(entry)
        with _failures_explained(whole, "cannot be imported"):
            function = entry.load()
    if kind.parameters is None:
        value = function
        if not isinstance(value, kind.returned):
            raise PluginError(f"{whole} is {_a(type(value))}; expected {_names(kind)}.")
        return lambda: value

    def call(*arguments: Any) -> Any:
        try:
            with _failures_explained(whole, "fails", ValueError):
                made = function(*arguments)
        except ValueError as error:
            raise ValueError(f"{short}: {error}") from error
        if not isinstance(made, kind.returned):
            raise PluginError(f"{whole} returns {_a(type(made))}; expected {_names(kind)}.")
        return made

    return call


def require_other_module(name: str, module: str) -> None:
    """Refuse a module that Python itself has, before it is imported for a name.

    Raises:
      PluginError: with the name.
    """
    if _is_pythons_own(module):
        raise PluginError(f"{name!r} names {module!r}, which comes with Python; expected another.")


def _of_module(name: str, kind: _Kind) -> Any:
    """Return the function or value `<module>:<name>`, which is not certainly of another kind."""
    require_imports(name)
    module, _, function = name.partition(":")
    require_other_module(name, module)
    with _failures_explained(repr(name), "cannot be imported", hint="<module>:<function>"):
        found = getattr(importlib.import_module(module), function)
        problem = "" if kind.parameters is None else _problem(found, kind)
    if problem:
        taken = "argument" if kind.parameters == 1 else "arguments"
        raise PluginError(
            f"{name!r} {problem}; expected a function of {kind.parameters} {taken} that returns"
            f" {_names(kind)}."
        )
    return found


def _problem(found: Any, kind: _Kind) -> str:
    """Return why something cannot make what a group has, as a predicate; empty if it can."""
    plain = inspect.unwrap(found.func if isinstance(found, functools.partial) else found)
    if isinstance(plain, type):
        returned: Any = plain
    elif inspect.isfunction(plain) or inspect.ismethod(plain):
        try:
            returned = typing.get_type_hints(plain).get("return", Any)
        except Exception:  # Annotations may be any text.
            returned = Any
    else:
        return f"is {_a(type(found))}"
    if _is_pythons_own(plain.__module__ or ""):
        return f"comes with Python, of {plain.__module__!r}"
    if returned is Any and _is_others(plain):
        return "is of an installed package, and is not annotated with what it returns"
    if not _may_be(returned, kind):
        return f"makes {inspect.formatannotation(returned)}"
    try:
        signature = inspect.signature(found)
        signature.bind(*[""] * (kind.parameters or 0))
    except (TypeError, ValueError) as error:
        return f"takes other arguments ({error})"
    return ""


def _may_be(annotation: Any, kind: _Kind) -> bool:
    """Return whether what is annotated may be of one of the types that a group has."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_may_be(one, kind) for one in typing.get_args(annotation))
    cls = typing.get_origin(annotation) or annotation
    if cls is Any or not isinstance(cls, type):
        return cls is not None
    return any(_is_subclass(cls, one) or _is_subclass(one, cls) for one in kind.returned)


def _is_subclass(cls: type, other: type) -> bool:
    try:
        return issubclass(cls, other)
    except TypeError:  # A protocol with attributes that are no methods.
        methods = (x for x in dir(other) if x[0] != "_" and callable(getattr(other, x)))
        return all(hasattr(cls, method) for method in methods)


def _is_pythons_own(module: str) -> bool:
    """Return whether a module comes with Python. The module is not imported."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    return spec.origin in ("built-in", "frozen") or _is_in_library(spec.origin)


def _is_in_library(file: str) -> bool:
    """Return whether a file belongs to Python's own library."""
    path = pathlib.Path(file)
    return path.is_relative_to(sysconfig.get_path("stdlib")) and not _INSTALLED & {*path.parts}


def _is_others(function: Any) -> bool:
    """Return whether an installed package has a function, in a module that knows none of ours."""
    if not _INSTALLED & {*pathlib.Path(inspect.getsourcefile(function) or "").parts}:
        return False
    ours = {one.__module__.partition(".")[0] for kind in _KINDS.values() for one in kind.returned}
    values = function.__globals__.values()
    names = (getattr(x, "__module__", None) or getattr(x, "__name__", "") for x in values)
    return not any(str(name).partition(".")[0] in ours for name in names)


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


def _a(cls: type) -> str:
    return f"a value of type {cls.__name__}"


def _names(kind: _Kind) -> str:
    return " or ".join(one.__name__ for one in kind.returned)


def _described(entry: metadata.EntryPoint) -> str:
    return (
        f"{entry.name!r} of {_package(entry)} (entry point {entry.value!r} of the group"
        f" {entry.group!r})"
    )


def _package(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "another package"
