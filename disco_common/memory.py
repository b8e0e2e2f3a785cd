"""The memory that is free on this machine."""

import contextlib
import pathlib
from collections.abc import Iterator

import psutil

_MEMBERSHIPS = pathlib.Path("/proc/self/cgroup")
_CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes that this process may still use.

    Both the machine and the control groups of the process limit them.
    """
    free = psutil.virtual_memory().available
    for folder, (limit, used, cache) in _control_groups():
        with contextlib.suppress(OSError, ValueError, StopIteration):  # "max" is no number.
            bound = int((folder / limit).read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
            # Pages of files that can be dropped are counted as used.
            droppable = next(int(x.split()[1]) for x in lines if x.split()[0] == cache)
            free = min(free, bound - int((folder / used).read_text()) + droppable)
    return max(free, 0)


def _control_groups() -> Iterator[tuple[pathlib.Path, tuple[str, str, str]]]:
    """Yield the folders of this process's control groups and of their parents.

    Each comes with the names of two files and of one statistic, of Linux's version 2 or 1.
    """
    names = {
        "": ("memory.max", "memory.current", "inactive_file"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    try:
        memberships = _MEMBERSHIPS.read_text().splitlines()
    except OSError:
        return  # No Linux.
    for line in memberships:
        _, controllers, own = line.split(":", 2)
        for controller in set(names) & set(controllers.split(",")):
            mount, own_folder = _CONTROL_GROUPS / controller, pathlib.PurePosixPath(own)
            for folder in (own_folder, *own_folder.parents):
                yield mount / folder.relative_to("/"), names[controller]
