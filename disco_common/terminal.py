"""Text for terminals and plots: names of rules, tasks and folders are shown literally."""

import os
import re

from rich.console import Console

# Control characters, line separators, and surrogates, which stand for bytes of file names that are
# not UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str | os.PathLike) -> str:
    """Return a text with control characters and surrogates as backslash escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def require_printable(what: str, name: str) -> None:
    """Refuse a name with control characters or surrogates.

    Args:
      what: the thing that has the name, for the message.
      name: to check.

    Raises:
      ValueError: if the name has such a character.
    """
    if _CONTROL.search(name):
        raise ValueError(
            f"{what} {name!r} has characters that control a terminal or are not UTF-8; expected"
            " others."
        )


def console(log_width: int = 80) -> Console:
    """Return a console that prints texts literally, without rich's markup and emoji codes.

    Args:
      log_width: number of columns if the output is not a terminal.
    """
    made = Console(markup=False, emoji=False)
    if not made.is_terminal:
        made.width = log_width
    return made
