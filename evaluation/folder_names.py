"""Folder names for tasks and contenders, whose own names may hold any character.

Different names have different folders, except for tasks like `a/b_c` and `a_b/c`: the folder of
`family/rest` is `family_rest`. No folder name leads out of its parent folder, or is too long for a
file system.
"""

import hashlib
import urllib.parse

# Characters that are not percent-encoded, besides letters, digits and `_.-~`.
_ORDINARY = " !#$&'()+,:;=@[]^{}"
_LONGEST = 200  # Bytes. File systems allow 255, of which some are for suffixes.
_HASH_DIGITS = 16


def of_contender(name: str) -> str:
    """Return the name of a contender's folder."""
    return _limited(_quoted(name), name)


def of_task(name: str) -> str:
    """Return the name of a task's folder; `family_rest` for `family/rest`."""
    return _limited("_".join(map(_quoted, name.split("/", 1))), name)


def _quoted(text: str) -> str:
    # File names that are not UTF-8 have surrogates.
    return urllib.parse.quote(text, safe=_ORDINARY, errors="surrogatepass")


def _limited(quoted: str, name: str) -> str:
    """Return a quoted name, changed if it is reserved by the file system or too long."""
    if not quoted.strip("."):  # Also the empty name.
        return quoted.replace(".", "%2E") or "%"
    if len(quoted) <= _LONGEST:
        return quoted
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    # No other quoted name has a percent sign before a hyphen.
    return f"{quoted[: _LONGEST - len(digest) - 2]}%-{digest}"
