"""Golden vectors of the authors' IRIS: where they are, how to read and to compare them.

`GOLDEN_IRIS_DIR` names a folder in the format of `shared/golden_iris/FORMAT.md`; it defaults to
that folder beside the repository.
"""

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.iris.config import IrisConfig
from agents.iris.model import (
    ACTOR_CRITIC,
    CODEBOOK,
    DECODER,
    ENCODER,
    WORLD_MODEL,
    Model,
)
from tests.agents.common import random_params
from tests.golden import group

_SHARED = pathlib.Path(__file__).resolve().parents[4] / "shared"
FOLDER = pathlib.Path(os.environ.get("GOLDEN_IRIS_DIR", _SHARED / "golden_iris"))
_INDEX = FOLDER / "index.json"
_FLOOR = 1e-6
_FLOAT64_TOLERANCE = 1e-6


class Case:
    """A golden case, to be computed in one precision.

    Attributes:
      name: of its file.
      config: its settings.
      precision: `"float32"` or `"float64"`.
      expected: results by name, in this precision as far as the file has them.
    """

    def __init__(self, entry: Mapping[str, Any], precision: str):
        self.name, self.config, self.precision = entry["file"], entry["config"], precision
        with np.load(FOLDER / entry["file"], allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        self.weights = group(arrays, "in/w/")
        self._given = {k: v for k, v in group(arrays, "in/").items() if not k.startswith("w/")}
        self.expected = group(arrays, "out/")
        if precision == "float64":
            self.expected |= group(arrays, "out64/")

    def given(self, name: str) -> jax.Array:
        """An input; floats in the case's precision. Call within `computing`."""
        return self._cast(self._given[name])

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """The case's precision, within a `with` statement."""
        with jax.default_matmul_precision("highest"):
            if self.precision == "float32":
                yield
                return
            # JAX's attention computes weights in float32, which mixes dtypes.
            with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
                yield

    def close(self, actual: Any, expected: np.ndarray, tolerance: float, name: str = "") -> None:
        """Within a fraction of the largest entry, 1e-6 in float64; or `_FLOOR` if that is more."""
        tolerance = _FLOAT64_TOLERANCE if self.precision == "float64" else tolerance
        actual = np.asarray(actual)
        assert actual.shape == expected.shape, f"{name}: {actual.shape}, expected {expected.shape}"
        allowed = max(tolerance * float(np.max(np.abs(expected))), _FLOOR)
        error = float(np.max(np.abs(actual.astype(np.float64) - expected)))
        assert error <= allowed, f"{name}: off by {error:.3g}, allowed {allowed:.3g}"

    def params(self, model: Model) -> dict[str, Any]:
        """Parameters of the case's weights; networks without any have random ones.

        Every weight must be one of ours, and a network's all must be there.
        """
        given = {our_name(k): our_layout(k, v) for k, v in self.weights.items()}
        assert len(given) == len(self.weights)
        with jax.enable_x64(False):
            template = random_params(model.init, jax.random.key(0))
        networks = {name.partition("/")[0] for name in given}

        def replace(path, leaf):
            name = leaf_name(path)
            if name.partition("/")[0] not in networks:
                return self._cast(leaf)
            found = given.pop(name)
            assert found.shape == leaf.shape, f"{name}: {found.shape}, expected {leaf.shape}"
            return self._cast(found)

        filled = jax.tree_util.tree_map_with_path(replace, template)
        assert not given, sorted(given)
        return filled

    def check_gradients(
        self, gradients: Any, tolerance: float, starts: str = "", leave_out: str = "nothing"
    ) -> None:
        """Compares gradients with the stored ones, and the norms of all.

        Args:
          gradients: by network, module and parameter.
          tolerance: relative to the largest entry.
          starts: of the names that have a norm.
          leave_out: names that contain it are not compared.
        """
        flat = jax.tree_util.tree_leaves_with_path(gradients)
        ours = {leaf_name(path): np.asarray(leaf) for path, leaf in flat}
        stored = group(self.expected, "grad/")
        assert stored
        for name, expected in stored.items():
            if leave_out not in name:
                self.close(ours[our_name(name)], our_layout(name, expected), tolerance, name)
        names = sorted(x for x in self.weights if x.startswith(starts))
        counts = np.array([leave_out not in name for name in names])
        norms = np.array([np.linalg.norm(ours[our_name(name)].ravel()) for name in names])
        self.close(norms[counts], self.expected["grad_norms"][counts], tolerance, "norms")

    @staticmethod
    def _cast(x: np.ndarray) -> jax.Array:
        return jnp.asarray(x, jnp.result_type(float)) if x.dtype.kind == "f" else jnp.asarray(x)


def golden_cases(kind: str, *, in_float64: bool = False) -> pytest.MarkDecorator:
    """Runs a test for every `case` of a kind, in float32, and also in float64, which is slow.

    A folder that has none of them skips the test.
    """
    if not _INDEX.is_file():
        reason = f"no golden vectors at {FOLDER} (set GOLDEN_IRIS_DIR)"
        return pytest.mark.parametrize("case", [pytest.param(None, marks=pytest.mark.skip(reason))])
    cases = [
        pytest.param(
            Case(entry, precision),
            id=f"{entry['file'].removesuffix('.npz')}-{precision}",
            marks=[pytest.mark.thorough] if precision == "float64" else [],
        )
        for entry in json.loads(_INDEX.read_text())
        if entry["kind"] == kind
        for precision in ("float32", "float64")[: 1 + in_float64]
    ]
    return pytest.mark.parametrize("case", cases)


def config_of(case: Case) -> IrisConfig:
    """The sizes of a case's networks; those that it has not are as small as can be."""
    meta = case.config
    tokenizer = meta.get("tokenizer", meta if "ch_mult" in meta else {})
    actor = meta.get("actor_critic", {})
    tokens = meta.get("K", 16)
    levels = {1: 7, 4: 6, 9: 5, 16: 5, 64: 4}[tokens]
    return IrisConfig(
        vocabulary=meta.get("V", meta.get("vocab", 2)),
        code_size=tokenizer.get("code_dim", 1),
        latent_channels=tokenizer.get("z_channels", 1),
        channels=tokenizer.get("ch", 32),
        multipliers=tuple(tokenizer.get("ch_mult", (1,) * levels)),
        residual_blocks=tokenizer.get("num_res_blocks", 1),
        attention_resolutions=tuple(tokenizer.get("attn_resolutions", ())),
        memory_steps=meta.get("max_steps", 2),
        layers=meta.get("layers", 1),
        heads=meta.get("heads", 1),
        width=meta.get("D", 1),
        dropout=0.0,
        actor_channels=tuple(actor.get("ch", (1, 1, 1, 1))),
        lstm_size=actor.get("H", 1),
    )


def model_of(case: Case) -> Model:
    tokens = case.config.get("K", 16)
    # Nine tokens a frame are those of an image of three squares a side.
    config = config_of(case)
    size = 48 if tokens == 9 else 64
    return Model(config, size, 3, case.config.get("A", 2))


_RULES = [
    (r"stem", "input"),
    (r"L(\d)/res(\d)/(.*)", r"level\1_block\2/\3"),
    (r"L(\d)/att(\d)/(.*)", r"level\1_attention\2/\3"),
    (r"L(\d)/grow", r"doubling\1"),
    (r"mid/res(\d)/(.*)", r"middle_block\1/\2"),
    (r"mid/att/(.*)", r"middle_attention/\1"),
    (r"tail_gn", "norm"),
    (r"tail", "output"),
    (r"blk(\d)/ln(\d)", r"transformer/block\1_norm\2"),
    (r"blk(\d)/([qkvo])", r"transformer/block\1_attention/\2"),
    (r"blk(\d)/(.*)", r"transformer/block\1_\2"),
    (r"lnf", "transformer/norm"),
    (r"pos", "transformer/positions"),
    (r"emb_(frame|action)", r"\1_tokens/embeddings"),
    (r"head_frame/(.*)", r"next_token/\1"),
    (r"head_(reward|end)/(.*)", r"\1/\2"),
]
_LAST = {
    "gn1": "norm1",
    "gn2": "norm2",
    "gn": "norm",
    "cv1": "convolution1",
    "cv2": "convolution2",
    "skip": "shortcut",
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "output",
    "a": "hidden",
    "b": "output",
}
_TABLES = ("pos", "emb_frame", "emb_action", "codebook")


def our_name(golden: str) -> str:
    """Our name of a tensor, `network/module/parameter`, from that of the golden vectors."""
    golden = golden.removeprefix("tok/").removeprefix("wm/")
    if golden == "codebook":
        return CODEBOOK
    if golden in _TABLES:
        return f"{WORLD_MODEL}/{_renamed(golden)}"
    layer, _, part = golden.rpartition("/")
    if layer.startswith("ac/"):
        layer = layer.removeprefix("ac/")
        if layer == "lstm":
            return f"{ACTOR_CRITIC}/lstm/{dict(x='input', h='hidden')[part[1]]}_{part[0]}"
        if layer.startswith("cv"):
            layer = f"convolution{int(layer[2:]) - 1}"
        return f"{ACTOR_CRITIC}/{layer}/{part}"
    part = {"g": "scale", "b": "offset"}[part] if re.search(r"(gn\d?|ln\w)$", layer) else part
    if layer in ("pre", "post"):
        network, name = {"pre": (ENCODER, "to_codes"), "post": (DECODER, "from_codes")}[layer]
        return f"{network}/{network}/{name}/{part}"
    if layer.startswith(("enc/", "dec/")):
        network = {"enc": ENCODER, "dec": DECODER}[layer[:3]]
        layer = re.sub(r"^L(\d)/shrink", lambda x: f"halving{int(x[1]) + 1}", layer[4:])
        return f"{network}/{network}/{_renamed(layer)}/{part}"
    return f"{WORLD_MODEL}/{_renamed(layer)}/{part}"


def _renamed(layer: str) -> str:
    for pattern, replacement in _RULES:
        if re.fullmatch(pattern, layer):
            layer = re.sub(pattern, replacement, layer)
            break
    head, _, last = layer.rpartition("/")
    return f"{head}/{_LAST.get(last, last)}" if head else last


def our_layout(golden: str, x: np.ndarray) -> np.ndarray:
    """A tensor with axes in our order: channels last, inputs before outputs."""
    golden = golden.removeprefix("tok/").removeprefix("wm/")
    if golden in _TABLES or x.ndim == 1:
        return x
    if x.ndim == 4:
        return x[:, :, 0, 0].T if x.shape[2:] == (1, 1) else x.transpose(2, 3, 1, 0)
    if golden == "ac/lstm/wx":  # Its inputs are pixels of channels: ours are channels of pixels.
        x = x.reshape(len(x), -1, 16).transpose(0, 2, 1).reshape(x.shape)
    return x.T


def leaf_name(path: Any) -> str:
    return "/".join(str(x.key) for x in path)
