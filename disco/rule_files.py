"""Reading and writing rule files.

A rule file is an `.npz` archive of float arrays. Their names and shapes are those of the
published `disco_103.npz`, so that this code and the published code read each other's files; a
transformer has arrays of that name instead of `lstm/lstm/linear`. Files of this code have one more
entry, `header`: a JSON text with the format's version, the architecture's name, sizes,
hyper-parameters and provenance. In files without the architecture's name (the published one, and
older ones of this code) the names of the arrays distinguish LSTM and transformer. Nothing in a file
is executed or unpickled.
"""

import dataclasses
import io
import os
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from disco import meta_network, npz, rule_sources
from disco.anchored import FORMS, PRIOR, form_of
from disco.architectures import LSTM, TRANSFORMER
from disco.discovered import DiscoveredRule
from disco.rule_headers import (
    ARCHITECTURE,
    FORMAT_VERSION,
    HEADER,
    KIND,
    RuleFileError,
    hyper_parameter_names,
    read_header,
    shown,
)
from disco.sizes import MetaNetworkSizes
from disco_common import json_lines
from disco_common.atomic import write_atomically

_LIFETIME = "lstm/~/meta_lstm/~unroll"
_PUBLISHED_NAMES = {
    "trajectory/y_net_0": "lstm/mlp/~/linear_0",
    "trajectory/y_net_1": "lstm/mlp/~/linear_1",
    "trajectory/z_net_0": "lstm/mlp_1/~/linear_0",
    "trajectory/z_net_1": "lstm/mlp_1/~/linear_1",
    "trajectory/policy_net_0": "lstm/sequential/conv1_d",
    "trajectory/policy_net_1": "lstm/sequential/conv1_d_1",
    "trajectory/lstm": "lstm/lstm/linear",
    "trajectory/lifetime_gate": "lstm/linear",
    "trajectory/summary": "lstm/linear_1",
    "trajectory/y_target": "lstm/linear_2",
    "trajectory/z_target": "lstm/linear_3",
    "trajectory/policy_target_0": "lstm/sequential_1/conv1_d",
    "trajectory/policy_target_1": "lstm/linear_4",
    "lifetime/y_net_0": f"{_LIFETIME}/mlp/~/linear_0",
    "lifetime/y_net_1": f"{_LIFETIME}/mlp/~/linear_1",
    "lifetime/z_net_0": f"{_LIFETIME}/mlp_1/~/linear_0",
    "lifetime/z_net_1": f"{_LIFETIME}/mlp_1/~/linear_1",
    "lifetime/policy_net_0": f"{_LIFETIME}/sequential/conv1_d",
    "lifetime/policy_net_1": f"{_LIFETIME}/sequential/conv1_d_1",
    "lifetime/input": f"{_LIFETIME}/mlp_2/~/linear_0",
    "lifetime/lstm": f"{_LIFETIME}/lstm/linear",
}
_TRANSFORMER_LAYER = re.compile(r"lstm/transformer/\d+/heads/w")


def load(name: str | os.PathLike, *, sha256: str | None = None) -> DiscoveredRule:
    """Read a rule.

    Args:
      name: a rule file's path, the name of a rule in the zoo, `disco_103` for the published weights
        in the user's cache folder, or `hf:owner/name` for a rule of the Hugging Face Hub
        (`disco.rule_sources` has all forms). The hub needs the extra `hub`; it was tested against a
        server of the tests, never against the real hub.
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
      provenance: how the rule was made (code version, environments, budget, seed, ...); JSON
        values.

    Raises:
      ValueError: if the path does not end in `.npz`, the provenance is not of JSON values, or the
        rule holds a number that is not finite in float32.
      OSError: if the file cannot be written.
    """
    path = pathlib.Path(os.path.expanduser(path))
    if path.suffix != ".npz":
        raise ValueError(f"Rule file {str(path)!r} must end in '.npz'.")
    arrays, names = _arrays(rule), hyper_parameter_names(type(rule))
    header = {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        ARCHITECTURE: rule.sizes.architecture,
        "sizes": dataclasses.asdict(rule.sizes),
        "hyper_parameters": {name: getattr(rule, name) for name in names},
        "provenance": dict(provenance or {}),
    }
    try:
        arrays[HEADER] = np.array(json_lines.dumps(header))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The provenance for {path} is not JSON: {error}.") from error
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_atomically(path, buffer.getvalue())


def _arrays(rule: DiscoveredRule) -> dict[str, np.ndarray]:
    """Return the arrays of a rule's file, by name.

    Raises:
      ValueError: if a number is not finite in float32.
    """
    arrays = {}
    for name, layer in rule.parameters.items():
        for part, value in layer.items():
            with np.errstate(over="ignore"):
                value = np.asarray(value).astype(np.float32)
            if not np.all(np.isfinite(value)):
                raise ValueError(
                    f"Parameter {name}/{part} of the rule is not finite in float32; not saved."
                )
            arrays[f"{_name_in_file(name)}/{part}"] = value.reshape(
                _published_shape(name, part, value.shape)
            )
    return arrays


def read(
    name: str | os.PathLike,
    sha256: str | None = None,
    forms: Sequence[type[DiscoveredRule]] = FORMS,
) -> tuple[DiscoveredRule, dict[str, Any]]:
    """Return a rule and its file's header.

    Args:
      name: as in `load`, as are the errors.
      sha256: as in `load`.
      forms: that the rule may have (`disco.anchored.form_of`); it has the simplest one.
    """
    path = rule_sources.find(name, sha256)
    try:
        with npz.opened(path) as archive:
            return _read(path, archive, forms)
    except npz.ArchiveError as error:
        raise RuleFileError(f"{path} {error}") from error


def _read(
    path: pathlib.Path, archive: npz.Archive, forms: Sequence[type[DiscoveredRule]]
) -> tuple[DiscoveredRule, dict[str, Any]]:
    header = read_header(path, archive, forms[-1])
    names = set(archive.names) - {HEADER}
    architecture = _architecture(header, names)
    layers = sum(_TRANSFORMER_LAYER.fullmatch(name) is not None for name in names)
    sizes, shapes = _read_shapes(path, archive, names, architecture, layers)
    if header and dataclasses.asdict(sizes) != header["sizes"]:
        raise RuleFileError(
            f"{path}: the arrays' shapes say {dataclasses.asdict(sizes)}, the header's sizes"
            f" {shown(header['sizes'])}."
        )
    known = hyper_parameter_names(forms[-1])
    given = {name: x for name, x in header.get("hyper_parameters", {}).items() if name in known}
    try:
        form, settings = form_of(sizes, given, forms)
        rule = form(parameters={}, sizes=sizes, **settings)
    except ValueError as error:
        raise RuleFileError(f"{path}: {error}") from error
    parameters = {
        name: {
            "w": _read_array(path, archive, shapes, name, "w", (inputs, outputs)),
            "b": _read_array(path, archive, shapes, name, "b", (outputs,)),
        }
        for name, (inputs, outputs) in meta_network.layer_shapes(sizes).items()
    }
    return dataclasses.replace(rule, parameters=parameters), header


def _make_sizes(path: pathlib.Path, **sizes: int) -> MetaNetworkSizes:
    try:
        return MetaNetworkSizes(**sizes)
    except ValueError as error:
        raise RuleFileError(f"{path}: {error}") from error


def _architecture(header: Mapping[str, Any], names: Collection[str]) -> str:
    """Return the architecture that the header names, or that arrays of an older file are of."""
    if ARCHITECTURE in header:
        return header[ARCHITECTURE]
    return TRANSFORMER if any(map(_TRANSFORMER_LAYER.fullmatch, names)) else LSTM


def _read_shapes(
    path: pathlib.Path,
    archive: npz.Archive,
    names: set[str],
    architecture: str,
    transformer_layers: int,
) -> tuple[MetaNetworkSizes, dict[str, tuple[int, ...]]]:
    """Return the sizes of the rule in a file, and the shapes of its arrays.

    Args:
      path: of the file.
      archive: its arrays.
      names: of the rule's arrays.
      architecture: of the rule.
      transformer_layers: whose arrays the file has.
    """
    num_layers = transformer_layers if architecture == TRANSFORMER else 0
    # A transformer has at least one layer.
    sizes = _make_sizes(
        path,
        transformer_layers=num_layers or int(architecture == TRANSFORMER),
        prior_outputs=_prior_outputs(path, archive, names),
    )
    expected = {
        f"{_name_in_file(name)}/{part}"
        for name in meta_network.layer_shapes(sizes)
        for part in "wb"
    }
    if names != expected:
        raise RuleFileError(
            f"{path} is not a rule file: missing arrays {shown(sorted(expected - names))},"
            f" unknown arrays {shown(sorted(names - expected))}."
        )
    shapes = {}
    for name in expected:
        dtype, shapes[name] = archive.describe(name)
        if not np.issubdtype(dtype, np.floating):
            raise RuleFileError(f"{path}: array {name!r} is {dtype}; expected floats.")
    return _infer_sizes(path, shapes, num_layers, sizes.prior_outputs), shapes


def _prior_outputs(path: pathlib.Path, archive: npz.Archive, names: set[str]) -> int:
    """Return the number of the prior's outputs, from the shape of their bias."""
    name = f"{_name_in_file(PRIOR)}/b"
    if name not in names:
        return 0
    _, shape = archive.describe(name)
    if shape not in ((1,), (2,), (3,)):
        raise RuleFileError(
            f"{path}: array {name!r} has shape {shape}; expected (1,), (2,) or (3,)."
        )
    return shape[0]


def _read_array(
    path: pathlib.Path,
    archive: npz.Archive,
    shapes: Mapping[str, tuple[int, ...]],
    name: str,
    part: str,
    shape: tuple[int, ...],
) -> Float[Array, "*shape"]:
    """Return an array of a layer, which must have this shape and finite numbers."""
    key, in_file = f"{_name_in_file(name)}/{part}", _published_shape(name, part, shape)
    if shapes[key] != in_file:
        raise RuleFileError(
            f"{path}: array {key!r} has shape {shapes[key]}; expected {in_file} beside the others."
        )
    with np.errstate(over="ignore"):  # Numbers that float32 cannot hold become infinite.
        value = archive.read(key).astype(np.float32)
    if not np.all(np.isfinite(value)):
        bad = int(np.sum(~np.isfinite(value)))
        raise RuleFileError(f"{path}: array {key!r} has {bad} non-finite numbers.")
    return jnp.asarray(value.reshape(shape))


def _infer_sizes(
    path: pathlib.Path,
    shapes: Mapping[str, tuple[int, ...]],
    transformer_layers: int,
    prior_outputs: int,
) -> MetaNetworkSizes:
    """Return the sizes that follow from the shapes of a file's arrays."""

    def shape(name: str, part: str, axes: int, expected: str) -> tuple[int, ...]:
        found = shapes[f"{_PUBLISHED_NAMES[name]}/{part}"]
        if len(found) != axes or 0 in found:
            raise RuleFileError(
                f"{path}: array '{_PUBLISHED_NAMES[name]}/{part}' has shape {found};"
                f" expected {expected}, not empty."
            )
        return found

    def outputs(name: str) -> int:
        return shape(name, "b", 1, "one axis")[0]

    sizes = _make_sizes(
        path,
        prediction=outputs("trajectory/y_target"),
        prediction_embedding=outputs("trajectory/y_net_0"),
        action_features=shape("trajectory/policy_net_0", "w", 3, "three axes")[1] // 2,
        action_hidden=outputs("trajectory/policy_net_0"),
        action_embedding=outputs("trajectory/policy_net_1"),
        trajectory=outputs("trajectory/lifetime_gate"),
        transformer_layers=transformer_layers,
        lifetime=outputs("lifetime/lstm") // 4,
        lifetime_input=outputs("lifetime/input"),
        prior_outputs=prior_outputs,
    )
    # The features of a transition, and two more. Other numbers do not fit the sizes.
    of_agent = shape("lifetime/input", "w", 2, "two axes")[0] - sizes.features - 2
    sizes = dataclasses.replace(sizes, agent_features=of_agent if of_agent in (1, 2) else 0)
    if not prior_outputs:
        return sizes
    inputs = shapes[f"{_name_in_file(PRIOR)}/w"][:1]
    of_action = sum(inputs) - sizes.trajectory - sizes.agent_features
    return dataclasses.replace(sizes, prior_features=of_action if of_action in (1, 2) else 0)


def _name_in_file(name: str) -> str:
    """Return the published name of a layer, or a similar one for layers of a transformer."""
    return _PUBLISHED_NAMES.get(name, name.replace("trajectory/", "lstm/"))


def _published_shape(name: str, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in a file, where maps over the action axis are convolutions of width 1."""
    is_convolution = "policy_net" in name or name == "trajectory/policy_target_0"
    return (1, *shape) if is_convolution and part == "w" else shape
