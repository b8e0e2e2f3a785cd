"""Names that users choose, of rules, tasks and folders: shown literally on terminals and plots."""

import os
import re

from rich.console import Console

# What ends a line, moves a terminal's cursor, or has no encoding: control characters, separators of
# lines, and surrogates, which stand for bytes of a file's name that are not UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str | os.PathLike) -> str:
    """Returns a text with backslash escapes for what must not reach a terminal or a plot."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def require_printable(what: str, name: str) -> None:
    """Refuses a name that could only be printed with escapes.

    Args:
      what: that has the name, for the message.
      name: of it.

    Raises:
      ValueError: if the name has such a character.
    """
    if _CONTROL.search(name):
        raise ValueError(
            f"{what} {name!r} has characters that control a terminal or are not UTF-8; expected"
            " others."
        )


def console(log_width: int = 80) -> Console:
    """Returns a console that prints texts as they are, without rich's markup and emoji codes.

    Args:
      log_width: columns where the output is no terminal, whose width would be known.
    """
    made = Console(markup=False, emoji=False)
    if not made.is_terminal:
        made.width = log_width
    return made
