"""What goes wrong with environments, and the messages that say so."""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType

_MOST_NAMES = 30  # That a message lists.


class EnvironmentNameError(ValueError):
    """No environment or suite has this name, or its parameters are malformed.

    The message says what was asked, what would be right, and where to find all names.
    """


class MissingPackageError(ImportError):
    """An environment needs an optional package, or a system library, that is not installed."""


class EngineDiedError(RuntimeError):
    """What a simulator in a worker process raises when its engine died: to be replaced with it."""


class SimulatorError(RuntimeError):
    """A simulator died or failed, and could not be replaced."""


def require(condition: bool, message: str) -> None:
    """Raises a `ValueError` with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


def unknown_name(
    what: str, name: str, known: Iterable[str], hint: str = "", prefix: str = ""
) -> EnvironmentNameError:
    """An error that says which known names are near, or, if none is, which there are.

    Args:
      what: the kind of thing, for example "Atari game".
      name: that was asked for.
      known: all names of that kind.
      hint: a last sentence.
      prefix: to put before the known names in the message.
    """
    folded = {known_name.lower(): known_name for known_name in known}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)
    lead = "Near it" if near else "There are"
    if not near and len(folded) <= _MOST_NAMES:
        near = list(folded)
    return EnvironmentNameError(
        f"There is no {what} {name!r}."
        + (f" {lead}: {', '.join(repr(prefix + folded[n]) for n in near)}." if near else "")
        + (f" {hint}" if hint else "")
    )


def import_package(package: str, extra: str, environments: str) -> ModuleType:
    """Imports what an environment needs.

    Args:
      package: the module's name.
      extra: of this project, which installs it.
      environments: that need it, for the message.

    Raises:
      MissingPackageError: if it is not installed, with the command that installs it; or if a
        system library that it needs is missing, naming it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"Environments named {environments!r} need the package {error.name!r}, which is not"
            f" installed: pip install 'disco[{extra}]'"
        ) from error
    except ImportError as error:
        raise MissingPackageError(
            f"Environments named {environments!r} need {package!r}, which cannot be loaded: {error}"
        ) from error
