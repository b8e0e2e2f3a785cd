"""Names of rules, and the files that they stand for.

    runs/mine/rule.npz                 a file
    three_families                     a rule of the zoo, which comes with this package
    disco_103                          published weights, in the user's cache folder
    hf:owner/name                      `rule.npz` of a repository of the Hugging Face Hub
    hf:owner/name/file.npz@revision    another file, of a branch, tag or commit

Rules of the hub need the extra `hub`. They are downloaded once, into the cache of
`huggingface_hub`, by that package, whose environment variables apply (`HF_ENDPOINT`, `HF_HOME`,
`HF_TOKEN`, `HF_HUB_OFFLINE`). A branch may change; a commit, or a SHA-256, cannot. The tests
download from a server of their own: nothing here has ever been run against the real hub.
"""

import hashlib
import os
import pathlib
import re
from typing import Any

from disco_common import files
from disco_common.files import CACHE_VARIABLE, user_cache

ZOO = pathlib.Path(__file__).parent / "zoo"
HUB = "hf:"  # Beginning of the names of rules of the hub.

_HUB_FILE = "rule.npz"
_HUB_NAME = re.compile(
    r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[^@]*[^@/]\.npz))?(?:@(?P<revision>\S+))?",
    re.ASCII,
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class RuleFileError(ValueError):
    """A rule file cannot be used; the message has the file, the reason and what was expected."""


# Published weights that this package does not contain: the repository and path, and the SHA-256.
_PUBLISHED = {
    "disco_103": (
        "github.com/google-deepmind/disco_rl, disco_rl/update_rules/weights/disco_103.npz",
        "dac840a15b81e8805326363458c33979626172618f620d9e6e170315388530aa",
    )
}


def zoo() -> list[str]:
    """Return the names of the rules that come with this package."""
    return sorted(path.stem for path in ZOO.glob("*.npz"))


def published() -> list[str]:
    """Return the names of published weights, which the user's cache folder may have."""
    return sorted(_PUBLISHED)


def find(name: str | os.PathLike, sha256: str | None = None) -> pathlib.Path:
    """Return the path of a rule's file; a rule of the hub is downloaded first.

    Arguments and errors are those of `disco.load`.
    """
    wanted = None if sha256 is None else sha256.lower()
    if wanted is not None and not _SHA256.fullmatch(wanted):
        raise ValueError(f"sha256 is {sha256!r}; expected 64 hexadecimal digits.")
    text = os.fspath(name)
    path = _downloaded(text) if text.startswith(HUB) else _local(text)
    if wanted is not None:
        _require_hash(text, path, wanted)
    return path


def sha256_of(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(files.read_bytes(path, files.MOST_DATA)).hexdigest()


def short_names(name: str | os.PathLike) -> tuple[str, str]:
    """Return what to call a rule in results, and a longer name where two rules are called alike.

    The first one is the file's name without its suffix, or the name of the hub's repository; the
    longer one has the folder's name before it, or the owner's, with the revision after it. Raises
    ValueError if a name of the hub is malformed.
    """
    text = os.fspath(name)
    if not text.startswith(HUB):
        path = pathlib.Path(text)
        return path.stem, f"{path.absolute().parent.name}_{path.stem}"
    full_name, file, revision = _parsed(text)
    owner, _, repository = full_name.partition("/")
    stem = "" if file == _HUB_FILE else pathlib.PurePosixPath(file).stem
    return stem or repository, "_".join(filter(None, [owner, repository, stem, revision]))


def _local(name: str) -> pathlib.Path:
    """Return a file's path, or that of a rule of the zoo, or of published weights."""
    path = pathlib.Path(os.path.expanduser(name))
    if path.is_file():
        return path
    in_zoo = ZOO / f"{name}.npz"
    if path.name == name and in_zoo.is_file():
        return in_zoo
    if name in _PUBLISHED:
        return _in_cache(name)
    kind = "does not exist"
    if path.exists():
        kind = "is a directory" if path.is_dir() else "is not a regular file"
    raise FileNotFoundError(
        f"Rule file {str(path)!r} {kind}, and the zoo has no rule of that name. The zoo has"
        f" {zoo()}; published weights are {published()}, and '{HUB}owner/name' is a rule of"
        " the Hugging Face Hub."
    )


def _in_cache(name: str) -> pathlib.Path:
    """Return the path of published weights, or raise FileNotFoundError that says where they are."""
    origin, sha256 = _PUBLISHED[name]
    try:
        path = user_cache() / f"{name}.npz"
    except RuntimeError as error:
        raise FileNotFoundError(
            f"{name!r} is looked for in the user's cache folder, and there is no home folder; set"
            f" {CACHE_VARIABLE}."
        ) from error
    if not path.is_file():
        raise FileNotFoundError(
            f"The published weights {name!r} are not part of this package: copy the file from"
            f" {origin}, to {path} (or set {CACHE_VARIABLE}, now the folder"
            f" {path.parent}); its SHA-256 must be {sha256}."
        )
    _require_hash(name, path, sha256)
    return path


def _require_hash(name: str, path: pathlib.Path, wanted: str) -> None:
    found = sha256_of(path)
    if found != wanted:
        raise RuleFileError(f"{name}: {path} has the SHA-256 {found}; expected {wanted}.")


def _parsed(name: str) -> tuple[str, str, str | None]:
    """Return the repository, the file and the revision, None for that of the default branch."""
    match = _HUB_NAME.fullmatch(name)
    file = (match["file"] if match else None) or _HUB_FILE
    if match is None or ".." in file.split("/"):
        raise ValueError(
            f"{name!r} is no name of a rule of the hub; expected '{HUB}owner/name', or"
            f" '{HUB}owner/name/file.npz', with '@revision' after it or not."
        )
    return match["repository"], file, match["revision"]


def _downloaded(name: str) -> pathlib.Path:
    """Return the path of a file of the hub in the cache of `huggingface_hub`; raise as `find`."""
    repository, file, revision = _parsed(name)
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name!r} is a rule of the hub, for which the package {error.name!r} is not installed:"
            " pip install 'disco-update-rules[hub]', or '.[hub]' in a checkout."
        ) from error
    http_errors: Any = errors.HfHubHTTPError.__bases__  # Also of a connection that breaks.
    try:
        found = huggingface_hub.hf_hub_download(
            repository, file, revision=revision, library_name="disco"
        )
    except errors.LocalEntryNotFoundError as error:
        reason = _first_line(error.__cause__ or error)
        raise FileNotFoundError(
            f"{name}: it was not downloaded before, and now it cannot be: {reason}"
        ) from error
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{name}: the repository is gated; accept its terms on the hub, and log in with"
            " `hf auth login`."
        ) from error
    except (
        errors.EntryNotFoundError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
    ) as error:
        raise FileNotFoundError(
            f"{name}: the hub has no file {file!r} of revision {revision or 'main'!r} of the"
            f" repository {repository!r}, or the repository is private."
        ) from error
    except errors.HFValidationError as error:
        raise ValueError(f"{name}: {_first_line(error)}") from error
    except http_errors as error:
        raise OSError(f"{name}: {_first_line(error)}") from error
    return pathlib.Path(found)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
