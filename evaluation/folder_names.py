"""Names of folders and files for tasks and contenders, whose own names users and files choose.

Different names have different folders, but for tasks as `a/b_c` and `a_b/c`: of a name with one
slash the folder is `family_rest`. No name leads out of a folder, or is too long for a file system.
"""

import hashlib
import urllib.parse

# Beside letters, digits and `_.-~`. All others are percent-encoded, as is `%`.
_ORDINARY = " !#$&'()+,:;=@[]^{}"
_LONGEST = 200  # Bytes; file systems take 255, of which some are for suffixes.
_HASH_DIGITS = 16


def of_contender(name: str) -> str:
    """The name of a contender's folder."""
    return _limited(_quoted(name), name)


def of_task(name: str) -> str:
    """The name of a task's folder; `family_rest` for `family/rest`."""
    return _limited("_".join(map(_quoted, name.split("/", 1))), name)


def _quoted(text: str) -> str:
    # A file's name that is not UTF-8 has surrogates.
    return urllib.parse.quote(text, safe=_ORDINARY, errors="surrogatepass")


def _limited(quoted: str, name: str) -> str:
    """A quoted name that is a folder's: none that the file system reserves, or cannot hold."""
    if not quoted.strip("."):  # Including the empty one.
        return quoted.replace(".", "%2E") or "%"
    if len(quoted) <= _LONGEST:
        return quoted
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    # No quoted name has a percent sign before a hyphen.
    return f"{quoted[: _LONGEST - len(digest) - 2]}%-{digest}"
