"""Arguments in names of environments: `<name>?<argument>=<value>&…`, as in a URL.

Values are written as in Python; text needs no quotes unless it would read as another value.
"""

import ast
import urllib.parse
from collections.abc import Mapping
from typing import Any

from environments.errors import EnvironmentNameError


def split(name: str) -> tuple[str, dict[str, Any]]:
    """Return what stands before the question mark, and the arguments behind it.

    Raises:
      EnvironmentNameError: if the arguments are malformed.
    """
    before, mark, query = name.partition("?")
    try:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
    except ValueError as error:
        raise EnvironmentNameError(
            f"The arguments of {name!r} are malformed; expected NAME=VALUE, joined by '&', after"
            " the question mark."
        ) from error
    return before, {key: _read(value) for key, value in pairs}


def with_arguments(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a name with arguments, besides those that it has, in the order of their names.

    Raises:
      EnvironmentNameError: if those that it has are malformed.
    """
    before, given = split(name)
    written = {key: _written(value) for key, value in sorted((given | dict(arguments)).items())}
    return f"{before}?{urllib.parse.urlencode(written)}" if written else before


def _read(text: str) -> Any:
    """Return the Python literal that a text is, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _written(value: Any) -> str:
    """Return what `_read` reads as this value."""
    return value if isinstance(value, str) and _read(value) == value else repr(value)
