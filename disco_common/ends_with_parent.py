"""What the process that forks workers imports first: it and they end with its parent.

Their imports take seconds, in which they look at nothing else. Imported elsewhere, it does nothing.
"""

import contextlib
import os
import re
import select
import sys

# The start of that process, with a pipe whose other end only its parent has at first.
_SERVER = re.compile(
    r"from multiprocessing\.forkserver import main; main\((?:listener_fd=)?\d+, (?:alive_r=)?(\d+)"
)


def _end_if_readable(file: int) -> None:
    if select.select([file], [], [], 0.0)[0]:
        os._exit(1)


class _EndsWithParent:
    """A finder of modules that finds none."""

    def __init__(self):
        self._parent = os.pidfd_open(os.getppid())  # Can be read from once it has ended.

    def find_spec(self, *_: object) -> None:
        _end_if_readable(self._parent)


if found := _SERVER.match(sys.orig_argv[-1]):
    with contextlib.suppress(AttributeError, OSError):  # Not every system has it.
        sys.meta_path.insert(0, _EndsWithParent())
    _end_if_readable(int(found[1]))  # The parent had ended before.
