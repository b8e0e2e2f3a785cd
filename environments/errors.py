"""Errors of environments and their messages."""

import difflib
import importlib
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from types import ModuleType

_DISTRIBUTION = "disco-update-rules"  # In `pyproject.toml`.
_PYTHON_MARKER = re.compile(r"python_version < ['\"](\d+)\.(\d+)['\"]")
_MOST_NAMES = 30  # In a message.


class EnvironmentNameError(ValueError):
    """No environment or suite has this name, or its parameters are malformed.

    The message has the name, similar names, and where to find all names.
    """


class MissingPackageError(ImportError):
    """An environment needs an optional package, or a system library, that is not installed."""


class NoReleaseError(MissingPackageError):
    """The optional package has no release for this version of Python."""


class EngineDiedError(RuntimeError):
    """A simulator's engine died. Its worker process is replaced."""


class SimulatorError(RuntimeError):
    """A simulator died or failed, and could not be replaced."""


class OutputError(SimulatorError):
    """An environment's first reset or step returned something else than it declares."""


def simulator_failed(where: str, trace: str) -> SimulatorError:
    """Return an error whose first line has the last one of a traceback."""
    cause = trace.strip().splitlines()[-1]
    return SimulatorError(f"A simulator failed{where}: {cause}\n{trace}")


def require(condition: bool, message: str) -> None:
    """Raise a `ValueError` with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def unknown_name(
    name: str,
    known: Iterable[str],
    hint: str = "environments.registry.suites() and environments.registry.names() list all.",
    kind: str = "environment",
) -> EnvironmentNameError:
    """Return an error that lists similar known names, or all names if none is similar.

    `kind` is what has no such name; `hint` is the message's last sentence.
    """
    folded = {known_name.lower(): known_name for known_name in known}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)
    lead = "Near it" if near else "There are"
    if not near and len(folded) <= _MOST_NAMES:
        near = list(folded)
    listed = f" {lead}: {', '.join(repr(folded[n]) for n in near)}." if near else ""
    return EnvironmentNameError(f"There is no {kind} {name!r}.{listed} {hint}")


def import_package(package: str, extra: str, environments: str) -> ModuleType:
    """Import a package that environments need.

    Args:
      package: the module's name.
      extra: this project's extra that installs it.
      environments: the names that need it, for the message.

    Raises:
      NoReleaseError: if it is not installed and has no release for this Python, with the
        versions that have one.
      MissingPackageError: if it is not installed, with the command that installs it; or if a
        system library that it needs is missing, naming it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        kind = MissingPackageError if _first_python_without(extra) is None else NoReleaseError
        raise kind(
            f"Environments named {environments!r} need the package {error.name!r}, which is not"
            f" installed. {how_to_install(extra)}"
        ) from error
    except ImportError as error:
        raise MissingPackageError(
            f"Environments named {environments!r} need {package!r}, which cannot be loaded: {error}"
        ) from error


def how_to_install(extra: str) -> str:
    """Return a sentence that says how to install one of this project's extras.

    If the extra's packages exist for other versions of Python only, it says for which.
    """
    first_without = _first_python_without(extra)
    if first_without is None:
        return (
            f"To install it, run `pip install --editable '.[{extra}]'` in a checkout of this"
            f" project, or `pip install '{_DISTRIBUTION}[{extra}]'`."
        )
    major, minor = first_without
    return (
        f"There is no release of it for Python {platform.python_version()}; expected a Python older"
        f" than {major}.{minor}: `make install PYTHON=python{major}.{minor - 1}` in a new checkout"
        " makes such an environment."
    )


def _first_python_without(extra: str) -> tuple[int, int] | None:
    """Return the first Python without an extra's packages, if this one is not older."""
    try:
        requirements = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # Imported from a checkout that is not installed.
        return None
    for requirement in requirements:
        marker = _PYTHON_MARKER.search(requirement)
        if marker and f'extra == "{extra}"' in requirement.replace("'", '"'):
            first_without = int(marker[1]), int(marker[2])
            if sys.version_info[:2] >= first_without:
                return first_without
    return None
