"""What the process that forks workers imports first: it and they end with their parent.

Their imports take seconds, in which they look at nothing else.
"""

import os
import sys

_parents = {os.getpid(): os.getppid()}  # Of this process, and of those that are forked from it.


class _EndsWithParent:
    """A finder of modules that finds none."""

    @staticmethod
    def find_spec(*_: object) -> None:
        if _parents.setdefault(os.getpid(), os.getppid()) != os.getppid():
            os._exit(1)


sys.meta_path.insert(0, _EndsWithParent)
