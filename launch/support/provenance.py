"""Provenance of results: the version of the code."""

import functools
import pathlib
import subprocess

import disco


@functools.cache
def code_version() -> str:
    """Return the package's version, with the commit if the code is in a git checkout."""
    version = disco.__version__
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version}+{commit}"
