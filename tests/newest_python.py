"""Prints the newest Python of this machine that the project's packages may support."""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

_NEWEST = 14  # Python 3.14: JAX has wheels for it.
_VERSION = re.compile(r"3\.(\d+)\.\d+")


def interpreters() -> list[str]:
    """Executables named like a Python 3 on the path, and of pyenv."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    found = [sys.executable, *sorted(glob.glob(str(pyenv / "versions/*/bin/python")))]
    named = (shutil.which(f"python3.{minor}") for minor in range(11, _NEWEST + 1))
    return found + [path for path in named if path is not None]


def minor_version(executable: str) -> int:
    """12 for Python 3.12; 0 for what does not run, cannot make environments or is too new."""
    code = "import ensurepip, platform, venv; print(platform.python_version())"
    done = subprocess.run([executable, "-c", code], capture_output=True, text=True)
    match = _VERSION.fullmatch(done.stdout.strip())
    minor = int(match[1]) if done.returncode == 0 and match else 0
    return minor if minor <= _NEWEST else 0


if __name__ == "__main__":
    print(max(interpreters(), key=minor_version))
