"""The folder in which this project keeps files of a user between runs."""

import os
import pathlib

VARIABLE = "DISCO_CACHE_DIR"


def user_cache() -> pathlib.Path:
    """Return the user's cache folder of this project, which need not exist.

    It is what the environment variable DISCO_CACHE_DIR names; by default `disco` in
    `$XDG_CACHE_HOME`, or in `~/.cache`.

    Raises:
      RuntimeError: if neither variable is set and the user has no home folder.
    """
    if named := os.environ.get(VARIABLE):
        return pathlib.Path(named).expanduser()
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "disco"
