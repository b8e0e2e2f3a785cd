"""Files that are complete whenever they are there."""

import os
import pathlib
import tempfile


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file, whole or not at all; an existing one is replaced only by a complete one.

    Raises:
      OSError: if it cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise
