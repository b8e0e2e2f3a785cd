"""Reading and writing rule files.

A rule file is an `.npz` archive of float arrays. Their names and shapes are those of the
published `disco_103.npz`, so that this code and the published code read each other's files; a
transformer has arrays of that name instead of `lstm/lstm/linear`. Files of this code have one more
entry, `header`: a JSON text with the format's version, the architecture's name, sizes,
hyper-parameters and provenance. The sizes of a rule without a header, as the published one, are
those of its arrays. Nothing in a file is executed or unpickled.
"""

import dataclasses
import io
import os
import pathlib
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from disco import meta_network, npz, rule_sources
from disco.anchored import FORMS, form_of
from disco.architectures import MetaNetworkSizes
from disco.discovered import DiscoveredRule
from disco.rule_sources import RuleFileError
from disco_common import json_lines
from disco_common.files import write_atomically

_FORMAT_VERSION = 1
_HEADER, _ARCHITECTURE = "header", "architecture"
_KIND = "discovered"
_MOST_HEADER_BYTES = 1 << 24
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_ABLATIONS = ("reads_values", "has_lifetime")  # True for rules that are not ablated.
_LATER_SIZES = ("transformer_layers", "prior_outputs", "agent_features", "prior_features")

_EMBEDDING_NAMES = {
    "y_net_0": "mlp/~/linear_0",
    "y_net_1": "mlp/~/linear_1",
    "z_net_0": "mlp_1/~/linear_0",
    "z_net_1": "mlp_1/~/linear_1",
    "policy_net_0": "sequential/conv1_d",
    "policy_net_1": "sequential/conv1_d_1",
}
_TRAJECTORY_NAMES = {
    "lstm": "lstm/linear",
    "lifetime_gate": "linear",
    "summary": "linear_1",
    "y_target": "linear_2",
    "z_target": "linear_3",
    "policy_target_0": "sequential_1/conv1_d",
    "policy_target_1": "linear_4",
}
_LIFETIME_NAMES = {"input": "mlp_2/~/linear_0", "lstm": "lstm/linear"}
_PUBLISHED_NAMES = {
    f"{part}/{name}": f"{prefix}/{published}"
    for part, prefix, names in (
        ("trajectory", "lstm", _EMBEDDING_NAMES | _TRAJECTORY_NAMES),
        ("lifetime", "lstm/~/meta_lstm/~unroll", _EMBEDDING_NAMES | _LIFETIME_NAMES),
    )
    for name, published in names.items()
}


def load(name: str | os.PathLike, *, sha256: str | None = None) -> DiscoveredRule:
    """Read a rule.

    Args:
      name: a rule file's path, the name of a rule in the zoo, `disco_103` for the published weights
        in the user's cache folder, or `hf:owner/name` for a rule of the Hugging Face Hub, which
        needs the extra `hub` (`disco.rule_sources` has all forms).
      sha256: hash that the file must have, 64 hexadecimal digits; None for any. Evaluations record
        the hash of each rule file that they read (`manifest.json`).

    Raises:
      FileNotFoundError: if there is no such file and no such name, here or on the hub.
      RuleFileError: if the file is damaged, not a rule, or has another hash.
      ImportError: if the hub's package is needed and not installed.
      OSError: if the hub cannot be read.
      ValueError: if a name of the hub, or the hash, is malformed.
    """
    return read(name, sha256)[0]


def load_header(name: str | os.PathLike) -> dict[str, Any]:
    """Return the header of a rule file; `{}` for the published file. Raises as `load`."""
    return read(name)[1]


def recommended(name: str | os.PathLike) -> dict[str, Any]:
    """Return the settings of the agents that a rule was discovered with.

    Among them are `learning_rate`, of Adam, `end_learning_rate`, the fraction of it that is left
    after `lifetime` environment steps, and `replay_ratio`, the replayed part of each batch. `{}` if
    the file does not say, as the published one. Raises as `load`.
    """
    agent = load_header(name).get("provenance", {}).get("agent", {})
    return dict(agent) if isinstance(agent, dict) else {}


def save(
    rule: DiscoveredRule,
    path: str | os.PathLike,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a rule. An existing file is replaced only when the new one is complete.

    Args:
      rule: to write.
      path: of the file, ending in `.npz`.
      provenance: JSON values, how it was made (code version, environments, budget, seed, ...).

    Raises:
      ValueError: if the path does not end in `.npz`, the provenance is not of JSON values, or the
        rule holds a number that is not finite in float32.
      OSError: if the file cannot be written.
    """
    path = pathlib.Path(os.path.expanduser(path))
    if path.suffix != ".npz":
        raise ValueError(f"Rule file {str(path)!r} must end in '.npz'.")
    arrays, names = _arrays(rule), _hyper_parameter_names(type(rule))
    header = {
        "format_version": _FORMAT_VERSION,
        "kind": _KIND,
        _ARCHITECTURE: rule.sizes.architecture,
        "sizes": dataclasses.asdict(rule.sizes),
        "hyper_parameters": {name: getattr(rule, name) for name in names},
        "provenance": dict(provenance or {}),
    }
    try:
        arrays[_HEADER] = np.array(json_lines.dumps(header))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The provenance for {path} is not JSON: {error}.") from error
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_atomically(path, buffer.getvalue())


def _arrays(rule: DiscoveredRule) -> dict[str, np.ndarray]:
    """Return the arrays of a rule's file, by name; raise as `save`."""
    arrays = {}
    for name, layer in rule.parameters.items():
        for part, value in layer.items():
            value = _as_float32(np.asarray(value))
            if not np.all(np.isfinite(value)):
                raise ValueError(
                    f"Parameter {name}/{part} of the rule is not finite in float32; not saved."
                )
            in_file = _published_shape(name, part, value.shape)
            arrays[f"{_name_in_file(name)}/{part}"] = value.reshape(in_file)
    return arrays


def _as_float32(value: np.ndarray) -> np.ndarray:
    """Return numbers in float32; those that it cannot hold become infinite."""
    with np.errstate(over="ignore"):
        return value.astype(np.float32)


def read(
    name: str | os.PathLike,
    sha256: str | None = None,
    forms: Sequence[type[DiscoveredRule]] = FORMS,
) -> tuple[DiscoveredRule, dict[str, Any]]:
    """Return a rule, of the simplest form that fits, and its file's header; see `load`."""
    path = rule_sources.find(name, sha256)
    try:
        return _read(npz.read(path), forms)
    except npz.ArchiveError as error:
        raise RuleFileError(f"{path} {error}") from error
    except ValueError as error:
        raise RuleFileError(f"{path}: {error}") from error


def _read(
    arrays: Mapping[str, np.ndarray], forms: Sequence[type[DiscoveredRule]]
) -> tuple[DiscoveredRule, dict[str, Any]]:
    header = _header(arrays[_HEADER], forms[-1]) if _HEADER in arrays else {}
    names = set(arrays) - {_HEADER}
    sizes = _header_sizes(header, len(names)) if header else _array_sizes(arrays)
    _require_names(names, sizes)
    known = _hyper_parameter_names(forms[-1])
    given = {name: x for name, x in header.get("hyper_parameters", {}).items() if name in known}
    form, settings = form_of(sizes, given, forms)
    rule = form(parameters={}, sizes=sizes, **settings)
    parameters = {
        name: {
            "w": _layer_array(arrays, name, "w", (inputs, outputs)),
            "b": _layer_array(arrays, name, "b", (outputs,)),
        }
        for name, (inputs, outputs) in meta_network.layer_shapes(sizes).items()
    }
    return dataclasses.replace(rule, parameters=parameters), header


def _require_names(names: set[str], sizes: MetaNetworkSizes) -> None:
    """Refuse a file with other arrays than those of a meta-network."""
    expected = {
        f"{_name_in_file(name)}/{part}"
        for name in meta_network.layer_shapes(sizes)
        for part in "wb"
    }
    if names != expected:
        raise ValueError(
            f"it is not a rule file: missing arrays {_shown(sorted(expected - names))},"
            f" unknown arrays {_shown(sorted(names - expected))}."
        )


def _layer_array(
    arrays: Mapping[str, np.ndarray], name: str, part: str, shape: tuple[int, ...]
) -> Float[Array, "*shape"]:
    """Return an array of a layer, which must be floats of this shape, and finite."""
    key, in_file = f"{_name_in_file(name)}/{part}", _published_shape(name, part, shape)
    found = arrays[key]
    if not np.issubdtype(found.dtype, np.floating):
        raise ValueError(f"array {key!r} is {found.dtype}; expected floats.")
    if found.shape != in_file:
        raise ValueError(
            f"array {key!r} has shape {found.shape}; expected {in_file} beside the others."
        )
    value = _as_float32(found)
    if bad := int(np.sum(~np.isfinite(value))):
        raise ValueError(f"array {key!r} has {bad} non-finite numbers.")
    return jnp.asarray(value.reshape(shape))


def _array_sizes(arrays: Mapping[str, np.ndarray]) -> MetaNetworkSizes:
    """Return the sizes of a published rule from the shapes of its arrays; it has no header."""
    _require_names(set(arrays), MetaNetworkSizes())

    def shape(name: str, part: str, axes: int) -> tuple[int, ...]:
        key = f"{_PUBLISHED_NAMES[name]}/{part}"
        found = arrays[key].shape
        if len(found) != axes or 0 in found:
            raise ValueError(f"array {key!r} has shape {found}; expected {axes} axes, not empty.")
        return found

    def outputs(name: str) -> int:
        return shape(name, "b", 1)[0]

    return MetaNetworkSizes(
        prediction=outputs("trajectory/y_target"),
        prediction_embedding=outputs("trajectory/y_net_0"),
        action_features=shape("trajectory/policy_net_0", "w", 3)[1] // 2,
        action_hidden=outputs("trajectory/policy_net_0"),
        action_embedding=outputs("trajectory/policy_net_1"),
        trajectory=outputs("trajectory/lifetime_gate"),
        lifetime=outputs("lifetime/lstm") // 4,
        lifetime_input=outputs("lifetime/input"),
    )


def _name_in_file(name: str) -> str:
    """Return the published name of a layer, or a similar one for layers of a transformer."""
    return _PUBLISHED_NAMES.get(name, name.replace("trajectory/", "lstm/"))


def _published_shape(name: str, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in a file, where maps over the action axis are convolutions of width 1."""
    is_convolution = "policy_net" in name or name == "trajectory/policy_target_0"
    return (1, *shape) if is_convolution and part == "w" else shape


def _header(found: np.ndarray, form: type[DiscoveredRule]) -> dict[str, Any]:
    """Return the header of a rule file, which may have the hyper-parameters of this form."""
    dtype, most = found.dtype, _MOST_HEADER_BYTES
    if dtype.kind != "U" or found.shape != () or dtype.itemsize > most:
        raise ValueError(
            f"the header is an array {found.shape} of {dtype}; expected one text of at most {most}"
            " bytes."
        )
    try:
        data = found.astype(dtype.newbyteorder("<")).tobytes()
        header = json_lines.loads(data.decode("utf-32-le").rstrip("\0"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header is not JSON ({str(error)[:200]}).") from error
    _check_header(header, form)
    return header


def _check_header(header: Any, form: type[DiscoveredRule]) -> None:
    """Refuse a header of something else; add entries that older headers lack."""
    needed = {"format_version", "sizes", "hyper_parameters"}
    if not isinstance(header, dict) or not needed <= set(header):
        raise ValueError("the header lacks format_version, sizes or hyper_parameters.")
    version, kind, sizes = header["format_version"], header.get("kind"), header["sizes"]
    if type(version) is not int or version != _FORMAT_VERSION:
        raise ValueError(
            f"it has format version {_shown(version)}; this code reads {_FORMAT_VERSION}."
        )
    if kind != _KIND:
        raise ValueError(f"it is of kind {_shown(kind)}; expected {_KIND!r}.")
    header.setdefault("provenance", {})
    for name in ("provenance", "hyper_parameters"):
        if not isinstance(header[name], dict):
            raise ValueError(f"the header's {name} is {_shown(header[name])}; expected names.")
    if not isinstance(sizes, dict) or any(type(size) is not int for size in sizes.values()):
        raise ValueError(f"the header's sizes are {_shown(sizes)}; expected integers.")
    # Older files lack the sizes that the published rule has not, or have an earlier name of one.
    sizes = {"agent_features" if x == "age_features" else x: size for x, size in sizes.items()}
    header["sizes"] = dict.fromkeys(_LATER_SIZES, 0) | sizes
    _check_hyper_parameters(header["hyper_parameters"], form)


def _header_sizes(header: Mapping[str, Any], num_arrays: int) -> MetaNetworkSizes:
    """Return the sizes in a header, that of a file with so many arrays."""
    found, known = header["sizes"], [field.name for field in dataclasses.fields(MetaNetworkSizes)]
    if set(found) != set(known):
        raise ValueError(f"the header's sizes are {_shown(found)}; expected {known}.")
    sizes = MetaNetworkSizes(**found)
    layers, expected = sizes.transformer_layers, sizes.architecture
    if layers > num_arrays:
        raise ValueError(
            f"sizes.transformer_layers is {layers}; expected those of its {num_arrays} arrays."
        )
    named = header.get(_ARCHITECTURE, expected)  # Older headers do not name it.
    if named != expected:
        raise ValueError(
            f"it has the architecture {_shown(named)}; expected {expected!r} with"
            f" sizes.transformer_layers {layers}."
        )
    return sizes


def _check_hyper_parameters(found: Mapping[str, Any], form: type[DiscoveredRule]) -> None:
    """Check names and types; the rule checks ranges."""
    known = _hyper_parameter_names(form)
    if unknown := set(found) - {*known, *_ABLATIONS}:
        raise ValueError(f"unknown hyper-parameters {_shown(sorted(unknown))}; known are {known}.")
    kinds = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    for name, value in found.items():
        kind = type(getattr(form, name, True))
        # In Python, a bool is an integer; in JSON, an integer may stand for a float.
        if type(value) not in ((int, float) if kind is float else (kind,)):
            raise ValueError(f"hyper-parameter {name} is {_shown(value)}; expected {kinds[kind]}.")
        if name not in known and not value:
            raise ValueError(
                f"{name} is False: a part of the rule is ablated; expected"
                " evaluation.studies.ablations.load, which reads such rules."
            )


def _shown(found: Any) -> str:
    """Return a value for a message, shortened if it is long or deep."""
    return _REPR.repr(found)


def _hyper_parameter_names(form: type[DiscoveredRule]) -> list[str]:
    """Return the names of the hyper-parameters of a form of a rule."""
    fields = (field.name for field in dataclasses.fields(form))
    return [name for name in fields if name not in ("parameters", "sizes")]
