"""Text for terminals and plots: names of rules, tasks and folders are shown literally."""

import os
import re
import typing

if typing.TYPE_CHECKING:
    import rich.console

_LONGEST_WORD, _LONGEST_LINE = 300, 2_000  # Characters of a message.
# Control characters, line separators, changes of the direction of text, and surrogates, which stand
# for bytes of file names that are not UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str | os.PathLike) -> str:
    """Return a text with control characters and surrogates as backslash escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def message(text: object, lines: bool = False) -> str:
    """Return a message as a terminal shows it: printable, with long names shortened.

    `lines` says whether it keeps its lines.
    """
    shown = (
        _shortened(
            re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", lambda x: _shortened(x[0], _LONGEST_WORD), line),
            _LONGEST_LINE,
        )
        for line in map(printable, str(text).split("\n") if lines else [str(text).strip()])
    )
    return "\n".join(shown)


def _shortened(text: str, most: int) -> str:
    """Return a text without its middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    kept = most // 2 - 20
    return f"{text[:kept]}[{len(text) - 2 * kept} characters]{text[-kept:]}"


def require_printable(what: str, name: str) -> None:
    """Raise a `ValueError` if the name of `what` has control characters or surrogates."""
    if _CONTROL.search(name):
        raise ValueError(
            f"{what} {name!r} has characters that control a terminal or are not UTF-8; expected"
            " others."
        )


def console(log_width: int = 80) -> "rich.console.Console":
    """Return a console that prints literally, without rich's markup and emoji codes.

    It has `log_width` columns if the output is not a terminal.
    """
    # `launch.support.commands` prints before imports that take long.
    from rich.console import Console

    made = Console(markup=False, emoji=False)
    if not made.is_terminal:
        made.width = log_width
    return made
