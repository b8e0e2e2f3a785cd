"""Reading and writing rule files.

A rule file is an `.npz` archive of float arrays. Their names and shapes are those of the
published `disco_103.npz`, so that either code reads the other's. Ours hold one entry more,
`header`: a JSON text with the format's version, sizes, hyper-parameters and provenance. A rule
with a transformer has that one's arrays, under names of ours, in place of `lstm/lstm/linear`.
Files are data: nothing in them is executed or unpickled.
"""

import dataclasses
import io
import json
import os
import pathlib
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from disco import meta_network
from disco.atomic import write_atomically
from disco.discovered import DiscoveredRule
from disco.meta_network import MetaNetworkSizes

FORMAT_VERSION = 1
ZOO = pathlib.Path(__file__).parent / "zoo"

_HEADER = "header"
_KIND = "discovered"
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


class RuleFileError(ValueError):
    """A rule file cannot be used; the message says which, why, and what was expected."""


def zoo() -> list[str]:
    """Names of the rules that come with this package."""
    return sorted(path.stem for path in ZOO.glob("*.npz"))


def load(name: str | os.PathLike) -> DiscoveredRule:
    """Reads a rule.

    Args:
      name: a rule file's path, or the name of a rule in the zoo.

    Raises:
      FileNotFoundError: if there is no such file and no such name.
      RuleFileError: if the file is damaged or not a rule.
    """
    return _read(_find(name))[0]


def load_header(name: str | os.PathLike) -> dict[str, Any]:
    """A rule file's header; `{}` for the published file, which has none. Raises as `load`."""
    return _read(_find(name))[1]


def save(
    rule: DiscoveredRule,
    path: str | os.PathLike,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Writes a rule. An existing file is replaced only once the new one is complete.

    Args:
      rule: to write.
      path: of the file, ending in `.npz`.
      provenance: how the rule came about (code version, environments, budget, seed, ...);
        JSON values.

    Raises:
      ValueError: if the path does not end in `.npz`, or the rule holds a non-finite number.
      OSError: if the file cannot be written.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"Rule file {str(path)!r} must end in '.npz'.")
    arrays = {}
    for name, layer in rule.parameters.items():
        for part, value in layer.items():
            value = np.asarray(value, np.float32)
            if not np.all(np.isfinite(value)):
                raise ValueError(f"Parameter {name}/{part} of the rule is not finite; not saved.")
            arrays[f"{_name_in_file(name)}/{part}"] = value.reshape(
                _published_shape(name, part, value.shape)
            )
    header = {
        "format_version": FORMAT_VERSION,
        "kind": _KIND,
        "sizes": dataclasses.asdict(rule.sizes),
        "hyper_parameters": {name: getattr(rule, name) for name in _hyper_parameter_names()},
        "provenance": dict(provenance or {}),
    }
    arrays[_HEADER] = np.array(json.dumps(header))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def _find(name: str | os.PathLike) -> pathlib.Path:
    path = pathlib.Path(name)
    if path.is_file():
        return path
    in_zoo = ZOO / f"{os.fspath(name)}.npz"
    if path.name == os.fspath(name) and in_zoo.is_file():
        return in_zoo
    kind = "is a directory" if path.is_dir() else "does not exist"
    raise FileNotFoundError(
        f"Rule file {str(path)!r} {kind}, and the zoo has no rule of that name. The zoo has"
        f" {zoo()}; the published Disco103 weights are `disco_103.npz` of the authors' release"
        " (github.com/google-deepmind/disco_rl)."
    )


def _read(path: pathlib.Path) -> tuple[DiscoveredRule, dict[str, Any]]:
    arrays = _read_arrays(path)
    header = _read_header(path, arrays.pop(_HEADER, None))
    layers = sum(_TRANSFORMER_LAYER.fullmatch(name) is not None for name in arrays)
    names = meta_network.layer_shapes(MetaNetworkSizes(transformer_layers=layers))
    expected = {f"{_name_in_file(name)}/{part}" for name in names for part in "wb"}
    if set(arrays) != expected:
        raise RuleFileError(
            f"{path} is not a rule file: missing arrays {sorted(expected - set(arrays))},"
            f" unknown arrays {sorted(set(arrays) - expected)}."
        )
    for name, value in arrays.items():
        if not np.issubdtype(value.dtype, np.floating):
            raise RuleFileError(f"{path}: array {name!r} is {value.dtype}; expected floats.")
    sizes = _infer_sizes(path, arrays, layers)
    if header and dataclasses.asdict(sizes) != header["sizes"]:
        raise RuleFileError(
            f"{path}: the arrays' shapes say {dataclasses.asdict(sizes)}, the header's sizes"
            f" {header['sizes']}."
        )
    parameters = {}
    for name, (inputs, outputs) in meta_network.layer_shapes(sizes).items():
        parameters[name] = {}
        for part, shape in (("w", (inputs, outputs)), ("b", (outputs,))):
            key = f"{_name_in_file(name)}/{part}"
            value = arrays[key]
            if value.shape != _published_shape(name, part, shape):
                raise RuleFileError(
                    f"{path}: array {key!r} has shape {value.shape}; expected"
                    f" {_published_shape(name, part, shape)} beside the others."
                )
            if not np.all(np.isfinite(value)):
                bad = int(np.sum(~np.isfinite(value)))
                raise RuleFileError(f"{path}: array {key!r} has {bad} non-finite numbers.")
            parameters[name][part] = jnp.asarray(value.reshape(shape), jnp.float32)
    rule = DiscoveredRule(parameters=parameters, sizes=sizes, **header.get("hyper_parameters", {}))
    try:
        rule.check_hyper_parameters()
    except (TypeError, ValueError) as error:
        raise RuleFileError(f"{path}: {error}") from error
    return rule, header


def _read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise RuleFileError(
            f"{path} is not an npz archive ({path.stat().st_size} bytes): not a rule file, or"
            " truncated."
        )
    arrays = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = archive[name]
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise RuleFileError(f"{path} is damaged: {error}.") from error
    except ValueError as error:
        raise RuleFileError(
            f"{path} holds something other than plain arrays ({error}); rule files hold float"
            " arrays, and pickled objects are never loaded."
        ) from error
    return arrays


def _read_header(path: pathlib.Path, value: np.ndarray | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        header = json.loads(str(value[()]))
    except (json.JSONDecodeError, TypeError) as error:
        raise RuleFileError(f"{path}: the header is not JSON ({error}).") from error
    if not isinstance(header, dict) or not {"format_version", "sizes", "hyper_parameters"} <= set(
        header
    ):
        raise RuleFileError(f"{path}: the header lacks format_version, sizes or hyper_parameters.")
    if isinstance(header["sizes"], dict):  # The zoo's files are from before there were any.
        header["sizes"] = {"transformer_layers": 0} | header["sizes"]
    if header["format_version"] != FORMAT_VERSION:
        raise RuleFileError(
            f"{path} has format version {header['format_version']!r}; this code reads"
            f" {FORMAT_VERSION}."
        )
    if header.get("kind") != _KIND:
        raise RuleFileError(f"{path} is of kind {header.get('kind')!r}; expected {_KIND!r}.")
    _check_hyper_parameters(path, header["hyper_parameters"])
    return header


def _check_hyper_parameters(path: pathlib.Path, found: Any) -> None:
    """Names and types; the rule itself knows their ranges."""
    if not isinstance(found, dict):
        raise RuleFileError(f"{path}: the header's hyper_parameters are {found!r}; expected names.")
    unknown = set(found) - set(_hyper_parameter_names())
    if unknown:
        raise RuleFileError(
            f"{path}: unknown hyper-parameters {sorted(unknown)}; known are"
            f" {_hyper_parameter_names()}."
        )
    kinds = {bool: "true or false", int: "an integer", float: "a number"}
    for name, value in found.items():
        kind = type(getattr(DiscoveredRule, name))
        # To Python, a bool is an integer; to JSON, a float may be one.
        if type(value) not in ((int, float) if kind is float else (kind,)):
            raise RuleFileError(
                f"{path}: hyper-parameter {name} is {value!r}; expected {kinds[kind]}."
            )


def _infer_sizes(
    path: pathlib.Path, arrays: Mapping[str, np.ndarray], transformer_layers: int
) -> MetaNetworkSizes:
    def shape(name: str, part: str, axes: int, expected: str) -> tuple[int, ...]:
        array = arrays[f"{_PUBLISHED_NAMES[name]}/{part}"]
        if array.ndim != axes or array.size == 0:
            raise RuleFileError(
                f"{path}: array '{_PUBLISHED_NAMES[name]}/{part}' has shape {array.shape};"
                f" expected {expected}, not empty."
            )
        return array.shape

    def outputs(name: str) -> int:
        return shape(name, "b", 1, "one axis")[0]

    return MetaNetworkSizes(
        prediction=outputs("trajectory/y_target"),
        prediction_embedding=outputs("trajectory/y_net_0"),
        action_features=shape("trajectory/policy_net_0", "w", 3, "three axes")[1] // 2,
        action_hidden=outputs("trajectory/policy_net_0"),
        action_embedding=outputs("trajectory/policy_net_1"),
        trajectory=outputs("trajectory/lifetime_gate"),
        transformer_layers=transformer_layers,
        lifetime=outputs("lifetime/lstm") // 4,
        lifetime_input=outputs("lifetime/input"),
    )


def _name_in_file(name: str) -> str:
    """The published name of a layer, or one after its manner."""
    return _PUBLISHED_NAMES.get(name, name.replace("trajectory/", "lstm/"))


def _published_shape(name: str, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Maps over the action axis are convolutions of width 1 in the published file."""
    is_convolution = "policy" in name and name != "trajectory/policy_target_1"
    return (1, *shape) if is_convolution and part == "w" else shape


def _hyper_parameter_names() -> list[str]:
    fields = (field.name for field in dataclasses.fields(DiscoveredRule))
    return [name for name in fields if name not in ("parameters", "sizes")]
