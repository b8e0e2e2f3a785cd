"""Headers of rule files (`disco.rule_files`)."""

import dataclasses
import pathlib
import reprlib
from collections.abc import Mapping
from typing import Any

from disco import npz
from disco.discovered import DiscoveredRule
from disco.sizes import MetaNetworkSizes
from disco_common import json_lines

FORMAT_VERSION = 1
HEADER, ARCHITECTURE = "header", "architecture"
KIND = "discovered"
_MOST_HEADER_BYTES = 1 << 24
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_ABLATIONS = ("reads_values", "has_lifetime")  # True for rules that are not ablated.
_LATER_SIZES = ("transformer_layers", "prior_outputs", "agent_features", "prior_features")


class RuleFileError(ValueError):
    """A rule file cannot be used; the message has the file, the reason and what was expected."""


def read_header(
    path: pathlib.Path, archive: npz.Archive, form: type[DiscoveredRule]
) -> dict[str, Any]:
    """Return the header of an open rule file; empty if it has none, as the published one.

    Args:
      path: of the file.
      archive: its arrays.
      form: of the rule, whose hyper-parameters the header may have.

    Raises:
      RuleFileError: naming the file, what was found and what was expected.
    """
    if HEADER not in archive.names:
        return {}
    dtype, shape = archive.describe(HEADER)
    if dtype.kind != "U" or shape != () or dtype.itemsize > _MOST_HEADER_BYTES:
        raise RuleFileError(
            f"{path}: the header is an array {shape} of {dtype}; expected one text of at most"
            f" {_MOST_HEADER_BYTES} bytes."
        )
    try:
        data = archive.read(HEADER).astype(dtype.newbyteorder("<")).tobytes()
        header = json_lines.loads(data.decode("utf-32-le").rstrip("\0"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, npz.ArchiveError):
            raise
        raise RuleFileError(f"{path}: the header is not JSON ({str(error)[:200]}).") from error
    _check_header(path, header, form)
    return header


def _check_header(path: pathlib.Path, header: Any, form: type[DiscoveredRule]) -> None:
    """Refuse a header of something else; add entries that older headers lack."""
    if not isinstance(header, dict) or not {"format_version", "sizes", "hyper_parameters"} <= set(
        header
    ):
        raise RuleFileError(f"{path}: the header lacks format_version, sizes or hyper_parameters.")
    version = header["format_version"]
    if type(version) is not int or version != FORMAT_VERSION:
        raise RuleFileError(
            f"{path} has format version {shown(version)}; this code reads {FORMAT_VERSION}."
        )
    if header.get("kind") != KIND:
        raise RuleFileError(f"{path} is of kind {shown(header.get('kind'))}; expected {KIND!r}.")
    if not isinstance(header.setdefault("provenance", {}), dict):
        raise RuleFileError(
            f"{path}: the header's provenance is {shown(header['provenance'])}; expected names."
        )
    sizes = header["sizes"]
    if not isinstance(sizes, dict) or any(type(size) is not int for size in sizes.values()):
        raise RuleFileError(f"{path}: the header's sizes are {shown(sizes)}; expected integers.")
    # Older files lack the sizes that the published rule has not, or have an earlier name of one.
    sizes = {"agent_features" if x == "age_features" else x: size for x, size in sizes.items()}
    header["sizes"] = dict.fromkeys(_LATER_SIZES, 0) | sizes
    _check_hyper_parameters(path, header["hyper_parameters"], form)


def header_sizes(
    path: pathlib.Path, header: Mapping[str, Any], num_arrays: int
) -> MetaNetworkSizes:
    """Return the sizes in a header, that of a file with so many arrays.

    Raises:
      RuleFileError: naming the file, what was found and what was expected.
    """
    found, known = header["sizes"], [field.name for field in dataclasses.fields(MetaNetworkSizes)]
    if set(found) != set(known):
        raise RuleFileError(f"{path}: the header's sizes are {shown(found)}; expected {known}.")
    try:
        sizes = MetaNetworkSizes(**found)
    except ValueError as error:
        raise RuleFileError(f"{path}: {error}") from error
    if sizes.transformer_layers > num_arrays:
        raise RuleFileError(
            f"{path}: sizes.transformer_layers is {sizes.transformer_layers}; expected those of its"
            f" {num_arrays} arrays."
        )
    named = header.get(ARCHITECTURE, sizes.architecture)  # Older headers do not name it.
    if named != sizes.architecture:
        raise RuleFileError(
            f"{path} has the architecture {shown(named)}; expected {sizes.architecture!r} with"
            f" sizes.transformer_layers {sizes.transformer_layers}."
        )
    return sizes


def _check_hyper_parameters(path: pathlib.Path, found: Any, form: type[DiscoveredRule]) -> None:
    """Check names and types; the rule checks ranges."""
    if not isinstance(found, dict):
        raise RuleFileError(
            f"{path}: the header's hyper_parameters are {shown(found)}; expected names."
        )
    known = hyper_parameter_names(form)
    unknown = set(found) - {*known, *_ABLATIONS}
    if unknown:
        raise RuleFileError(
            f"{path}: unknown hyper-parameters {shown(sorted(unknown))}; known are {known}."
        )
    kinds = {bool: "true or false", int: "an integer", float: "a number"}
    for name, value in found.items():
        kind = type(getattr(form, name, True))
        # In Python, a bool is an integer; in JSON, an integer may stand for a float.
        if type(value) not in ((int, float) if kind is float else (kind,)):
            raise RuleFileError(
                f"{path}: hyper-parameter {name} is {shown(value)}; expected {kinds[kind]}."
            )
        if name not in known and not value:
            raise RuleFileError(
                f"{path}: {name} is False: a part of the rule is ablated; expected"
                " evaluation.studies.ablations.load, which reads such rules."
            )


def shown(found: Any) -> str:
    """Return a value for a message, shortened if it is long or deep."""
    return _REPR.repr(found)


def hyper_parameter_names(form: type[DiscoveredRule]) -> list[str]:
    """Return the names of the hyper-parameters of a form of a rule."""
    fields = (field.name for field in dataclasses.fields(form))
    return [name for name in fields if name not in ("parameters", "sizes")]
