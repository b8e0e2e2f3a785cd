"""Arguments in names of environments: `<name>?<argument>=<value>&…`, as in a URL.

Values are written as in Python; text needs no quotes unless it would read as another value.
"""

import ast
import urllib.parse
from collections.abc import Mapping
from typing import Any

from environments.errors import EnvironmentNameError

_LONGEST = 4_096  # Characters.
_CONSTANTS = {"true": "True", "false": "False", "none": "None", "null": "None"}


def require_length(name: str) -> None:
    """Refuse a name that is too long for any environment.

    Raises:
      EnvironmentNameError: with its length.
    """
    if len(name) > _LONGEST:
        raise EnvironmentNameError(
            f"The name {name!r} has {len(name)} characters; expected at most {_LONGEST}."
        )


def split(name: str) -> tuple[str, dict[str, Any]]:
    """Return what stands before the question mark, and the arguments behind it.

    Raises:
      EnvironmentNameError: if the arguments are malformed, or the name is too long.
    """
    require_length(name)
    before, mark, query = name.partition("?")
    try:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
    except ValueError as error:
        raise EnvironmentNameError(
            f"The arguments of {name!r} are malformed; expected NAME=VALUE, joined by '&', after"
            " the question mark."
        ) from error
    arguments = {key: _read(key, value) for key, value in pairs}
    if len(arguments) < len(pairs):
        raise EnvironmentNameError(f"{name!r} gives an argument twice; expected once.")
    return before, arguments


def with_arguments(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a name with arguments, besides those that it has, in the order of their names.

    Raises:
      EnvironmentNameError: if those that it has are malformed.
    """
    before, given = split(name)
    written = {
        key: _written(key, value) for key, value in sorted((given | dict(arguments)).items())
    }
    return f"{before}?{urllib.parse.urlencode(written)}" if written else before


def _read(argument: str, text: str) -> Any:
    """Return the Python literal that a text is, or the text itself.

    Raises:
      EnvironmentNameError: if it is a constant as other languages write it, or nested too deeply.
    """
    if text.lower() in _CONSTANTS and text not in _CONSTANTS.values():
        raise EnvironmentNameError(
            f"The argument {argument!r} is {text}; expected {_CONSTANTS[text.lower()]}, or"
            f" {text!r} in quotes."
        )
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    except (RecursionError, MemoryError) as error:
        raise EnvironmentNameError(
            f"The argument {argument!r} is {text!r}, which is nested too deeply for a value."
        ) from error


def _written(argument: str, value: Any) -> str:
    """Return what `_read` reads as this value.

    Raises:
      EnvironmentNameError: if there is nothing, as for numbers that are not finite.
    """
    is_plain = isinstance(value, str) and value.lower() not in _CONSTANTS
    text = value if is_plain and _read(argument, value) == value else repr(value)
    if _read(argument, text) != value:
        raise EnvironmentNameError(
            f"The argument {argument!r} is {value!r}; expected what Python writes as a literal."
        )
    return text
