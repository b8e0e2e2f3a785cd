"""Golden vectors of the authors' Dreamer: where they are, how to read and to compare them.

`GOLDEN_DREAMER_DIR` names a folder in the format of `shared/golden_dreamer/FORMAT.md`; it defaults
to that folder beside the repository.
"""

import json
import os
import pathlib
import re
from typing import Any

import jax
import numpy as np
import pytest

from tests.golden import group

_SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared"
FOLDER = pathlib.Path(os.environ.get("GOLDEN_DREAMER_DIR", _SHARED / "golden_dreamer"))

_INDEX = FOLDER / "index.json"

Arrays = dict[str, np.ndarray]

compared: list[str] = []
"""Names of the cases that tests were made for, by `golden_cases`."""


class Case:
    """A golden case.

    Attributes:
      name: of the file, without its ending.
      meta: its settings.
      given: inputs by name.
      expected: float32 results by name, jitted.
      eager: results of those computed without jit.
    """

    def __init__(self, entry: dict[str, Any]):
        self.name, self.meta = entry["name"], entry["meta"]
        with np.load(FOLDER / entry["file"], allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        self.given = group(arrays, "in/")
        self.expected = group(arrays, "out/")
        self.eager = group(arrays, "outeager/")


def golden_cases(kind: str, starts: str = "", **selected: Any) -> pytest.MarkDecorator:
    """Runs a test for every `case` of a kind whose name starts so and whose meta has these values.

    A folder that has none of them skips the test.
    """
    if not _INDEX.is_file():
        reason = f"no golden vectors at {FOLDER} (set GOLDEN_DREAMER_DIR)"
        return pytest.mark.parametrize("case", [pytest.param(None, marks=pytest.mark.skip(reason))])
    found = [
        pytest.param(Case(entry), id=entry["name"])
        for entry in json.loads(_INDEX.read_text())["cases"]
        if entry["kind"] == kind
        and entry["name"].startswith(starts)
        and all(entry["meta"].get(name) == value for name, value in selected.items())
    ]
    compared.extend(str(param.id) for param in found)
    return pytest.mark.parametrize("case", found)


def every_case() -> list[str]:
    """The names of all cases that the folder has."""
    if not _INDEX.is_file():
        return []
    return [entry["name"] for entry in json.loads(_INDEX.read_text())["cases"]]


_FLOOR = 1e-6


def assert_close(actual: Any, expected: np.ndarray, tolerance: float, name: str = "") -> None:
    """Within a fraction of the largest entry, or `_FLOOR` where that is less.

    Gradients that vanish are sums that cancel, which leave rounding of another size on each CPU.
    """
    actual = np.asarray(actual)
    assert actual.shape == expected.shape, name
    allowed = max(tolerance * float(np.max(np.abs(expected))), _FLOOR)
    error = float(np.max(np.abs(actual.astype(np.float64) - expected)))
    assert error <= allowed, f"{name}: off by {error:.3g}, allowed {allowed:.3g}"


_RULES = [
    (r"enc/cnn(\d)norm", r"encoder/norm\1"),
    (r"enc/cnn(\d)", r"encoder/convolution\1"),
    (r"enc/mlp(\d)norm", r"encoder/layer\1/norm"),
    (r"enc/mlp(\d)", r"encoder/layer\1/linear"),
    (r"dyn/dynhid0norm", "rssm/block_norm"),
    (r"dyn/dynhid0", "rssm/block"),
    (r"dyn/dyngru", "rssm/gates"),
    (r"dyn/(prior|obs)logit", r"rssm/\1_logits"),
    (r"dyn/dynin(\d)norm", r"rssm/input\1/norm"),
    (r"dyn/dynin(\d)", r"rssm/input\1/linear"),
    (r"dyn/(prior\d|obs0)norm", r"rssm/\1/norm"),
    (r"dyn/(prior\d|obs0)", r"rssm/\1/linear"),
    (r"dec/conv(\d)norm", r"decoder/norm\1"),
    (r"dec/conv(\d)", r"decoder/convolution\1"),
    (r"dec/imgout", "decoder/image_output"),
    (r"dec/spnorm", "decoder/start_norm"),
    (r"dec/sp0", "decoder/from_h"),
    (r"dec/sp1norm", "decoder/from_z/norm"),
    (r"dec/sp1", "decoder/from_z/linear"),
    (r"dec/sp2", "decoder/from_z_output"),
    (r"dec/mlp/linear(\d)", r"decoder/mlp/layer\1/linear"),
    (r"dec/mlp/norm(\d)", r"decoder/mlp/layer\1/norm"),
    (r"dec/vec/(\w+)/(?:pred|logits)", r"decoder/mlp/\1_output"),
    (r"(\w+)/mlp/linear(\d)", r"\1/layer\2/linear"),
    (r"(\w+)/mlp/norm(\d)", r"\1/layer\2/norm"),
    (r"(\w+)/head/action/(\w+)", r"\1/action_\2_output"),
    (r"(\w+)/head/(\w+)", r"\1/\2_output"),
]
_NAMES = {
    "rew": "reward",
    "con": "continuation",
    "val": "critic",
    "slowval": "critic",
    "pol": "actor",
    "pold": "actor",
    "polc": "actor",
    "rssm/input0": "rssm/input_h",
    "rssm/input1": "rssm/input_z",
    "rssm/input2": "rssm/input_a",
    "rssm/obs0": "rssm/posterior",
    "rssm/obs_logits": "rssm/posterior_logits",
}
_PARTS = {"kernel": "w", "bias": "b", "scale": "scale"}


def our_name(golden: str) -> str:
    """Our name of a tensor, `network/layer/.../part`, from that of the golden vectors."""
    layer, _, part = golden.rpartition("/")
    for pattern, replacement in _RULES:
        if re.fullmatch(pattern, layer):
            layer = re.sub(pattern, replacement, layer)
            break
    else:
        raise AssertionError(f"no name for {golden}")
    for theirs, ours in _NAMES.items():
        if layer == theirs or layer.startswith(f"{theirs}/"):
            layer = ours + layer.removeprefix(theirs)
            break
    return f"{layer}/{_PARTS[part]}"


def named_leaves(params: dict[str, Any]) -> dict[str, Any]:
    """Tensors by the names of `our_name`, from parameters by network, module and part."""
    return {
        "/".join([*(x for x in module.split("/") if not x.startswith("~")), name]): tensor
        for network in params.values()
        for module, tensors in network.items()
        for name, tensor in tensors.items()
    }


def fill(params: dict[str, Any], weights: Arrays) -> dict[str, Any]:
    """Parameters of the golden vectors' weights; all must be there, and no other."""
    ours = {our_name(name): value for name, value in weights.items()}
    names = named_leaves(params)
    assert set(ours) == set(names), set(ours) ^ set(names)
    flat = iter([ours[name] for name in names])

    def of_shape(tensor):
        value = next(flat)
        assert value.shape == tensor.shape
        return jax.numpy.asarray(value)

    return {
        network: {
            module: {name: of_shape(tensor) for name, tensor in tensors.items()}
            for module, tensors in modules.items()
        }
        for network, modules in params.items()
    }
