"""Golden vectors of the public reference: where they are, how to read and to compare them.

`GOLDEN_DIR` names a folder in the format of `shared/golden/FORMAT.md`, `DISCO103_WEIGHTS` the
published weights; both default to the folder `shared` beside the repository.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
from disco.architectures import linear
from disco.meta_network import LifetimeState
from disco.moments import Moments

_SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"
GOLDEN_DIR = pathlib.Path(os.environ.get("GOLDEN_DIR", _SHARED / "golden"))
WEIGHTS = pathlib.Path(os.environ.get("DISCO103_WEIGHTS", _SHARED / "weights" / "disco_103.npz"))

FLOAT64_TOLERANCE = 1e-6
# Below this an array counts as zero, and its error is absolute.
_ZERO = 1e-12

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far an array may be off: relative to its largest entry, or absolute."""

    value: float
    absolute: bool = False


def absolute(value: float) -> Tolerance:
    return Tolerance(value, absolute=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """One golden case, to be computed in one precision."""

    kind: str
    file: str
    attrs: Mapping[str, Any]
    inputs_from: str | None
    precision: str

    def inputs(self) -> dict[str, jax.Array]:
        """What is given, by name; floats widened in float64. Call within `computing`."""
        return {
            name: jnp.asarray(value, jnp.result_type(float))
            if value.dtype == np.float32
            else jnp.asarray(value)
            for name, value in group(self._arrays(self.file), "in/").items()
        }

    def given_targets(self) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """The inputs and the (float32) outputs of the case named by `inputs_from`."""
        assert self.inputs_from is not None
        source = dataclasses.replace(self, file=self.inputs_from)
        outputs = group(self._arrays(self.inputs_from), "out/")
        return source.inputs(), {
            name: jnp.asarray(value, jnp.result_type(float)) for name, value in outputs.items()
        }

    def expected(self) -> Arrays:
        """What must come out, in the case's precision."""
        arrays = self._arrays(self.file)
        expected = group(arrays, "out/")
        if self.precision == "float64":
            expected |= group(arrays, "out64/")
        return expected

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """The case's precision, within a `with` statement."""
        with jax.enable_x64(self.precision == "float64"), jax.default_matmul_precision("highest"):
            yield

    def check(
        self, actual: Mapping[str, Any], tolerance: Callable[[str], Tolerance | float]
    ) -> None:
        """Compares every expected array with the actual one of the same name.

        Args:
          actual: by name; exactly the names of `expected`.
          tolerance: from a name, in float32. In float64 it is 1e-6 for all.
        """
        expected = self.expected()
        assert set(actual) == set(expected)
        failures = []
        for name, right in expected.items():
            allowed = FLOAT64_TOLERANCE if self.precision == "float64" else tolerance(name)
            if not isinstance(allowed, Tolerance):
                allowed = Tolerance(allowed)
            error = deviation(np.asarray(actual[name]), right, absolute=allowed.absolute)
            if not error <= allowed.value:
                failures.append(f"{name}: {error:.2g}, allowed {allowed.value:.2g}")
        assert not failures, f"{self.file} in {self.precision}:\n" + "\n".join(failures)

    @staticmethod
    def _arrays(file: str) -> Arrays:
        with np.load(GOLDEN_DIR / file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def deviation(actual: np.ndarray, expected: np.ndarray, *, absolute: bool = False) -> float:
    """Largest difference, relative to the expected array's largest entry unless absolute."""
    assert actual.shape == expected.shape
    difference = float(np.max(np.abs(np.asarray(actual, np.float64) - expected)))
    scale = float(np.max(np.abs(expected)))
    return difference if absolute or scale < _ZERO else difference / scale


def golden_cases(kind: str, rest: str = "fast", **selected: Any) -> pytest.MarkDecorator:
    """Runs a test for every `case` of a kind, in float64, whose tolerance is 1e-6, and float32.

    Args:
      kind: FORMAT.md's.
      rest: what the cases after the first are in float64: "fast" tests, "slow" ones, or "thorough"
        ones but for the first in the middle of a lifetime, which is slow. Those of float32 repeat
        the others: they are slow tests, and thorough ones where they compile a rule.
      **selected: attributes that a case must have.
    """
    index = GOLDEN_DIR / "index.json"
    if not index.is_file():
        skip = pytest.mark.skip(reason=f"no golden vectors at {GOLDEN_DIR} (set GOLDEN_DIR)")
        return pytest.mark.parametrize("case", [pytest.param(None, marks=skip)])
    chosen = [
        entry
        for entry in json.loads(index.read_text())["cases"]
        if entry["kind"] == kind
        and all(entry["attrs"].get(name) == value for name, value in selected.items())
    ]
    in_mid_life = [i for i, entry in enumerate(chosen) if i and entry["attrs"].get("warm")]
    marks = {
        "fast": [],
        "slow": [pytest.mark.slow],
        "thorough": [pytest.mark.thorough],
    }
    cases = []
    for i, entry in enumerate(chosen):
        is_kept = i in in_mid_life[:1] and rest == "thorough"
        of_float64 = marks["fast" if i == 0 else "slow" if is_kept else rest]
        compiles_much = kind != "value_utils" and (i > 0 or rest == "thorough")
        of_float32 = marks["thorough" if compiles_much else "slow"]
        cases += [
            pytest.param(
                Case(kind, entry["file"], entry["attrs"], entry.get("inputs_from"), precision),
                id=f"{pathlib.PurePath(entry['file']).stem}-{precision}",
                marks=own,
            )
            for precision, own in (("float32", of_float32), ("float64", of_float64))
        ]
    return pytest.mark.parametrize("case", cases)


@functools.cache
def _published_rule() -> disco.DiscoveredRule:
    return disco.load(WEIGHTS)


def disco103(hyper: Mapping[str, float] | None = None) -> disco.DiscoveredRule:
    """The published rule in the precision of the moment, with a case's hyper-parameters."""
    if not WEIGHTS.is_file():
        pytest.skip(f"no published weights at {WEIGHTS} (set DISCO103_WEIGHTS)")
    hyper = dict(hyper or {})
    hyper.pop("discount_factor", None)  # FORMAT.md, section 1: the reference does not read it.
    names = {
        "value_fn_td_lambda": "lambda_",
        "target_params_coeff": "target_params_coefficient",
    }
    rule = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)), _published_rule())
    return dataclasses.replace(rule, **{names.get(k, k): v for k, v in hyper.items()})


def read_moments(arrays: Mapping[str, jax.Array], name: str) -> Moments:
    return Moments(
        first=arrays[f"{name}/moment1"],
        second=arrays[f"{name}/moment2"],
        decay_product=arrays[f"{name}/decay_product"],
    )


def write_moments(moments: Moments, name: str) -> dict[str, jax.Array]:
    return {
        f"{name}/moment1": moments.first,
        f"{name}/moment2": moments.second,
        f"{name}/decay_product": moments.decay_product,
    }


def read_memory(arrays: Mapping[str, jax.Array]) -> disco.DiscoveredMemory:
    """The rule's memory from a case's `meta/*`."""
    return disco.DiscoveredMemory(
        lifetime=LifetimeState(hidden=arrays["meta/rnn_hidden"], cell=arrays["meta/rnn_cell"]),
        advantage=read_moments(arrays, "meta/adv_ema"),
        td=read_moments(arrays, "meta/td_ema"),
    )


def write_memory(memory: disco.DiscoveredMemory) -> dict[str, jax.Array]:
    return {
        "meta/rnn_hidden": memory.lifetime.hidden,
        "meta/rnn_cell": memory.lifetime.cell,
        **write_moments(memory.advantage, "meta/adv_ema"),
        **write_moments(memory.td, "meta/td_ema"),
    }


def rollout_trajectory(arrays: Mapping[str, jax.Array]) -> disco.Trajectory:
    """A trajectory from a rollout (FORMAT.md, section 1, convention ii)."""
    discount = arrays["discounts"]
    return disco.Trajectory(
        observation=arrays["obs"],
        action=arrays["actions"][:-1],
        reward=arrays["rewards"][1:],
        discount=discount[1:].astype(arrays["rewards"].dtype),
        last=~discount[1:],
        behaviour_logits=arrays["behaviour_logits"][:-1],
        mask=discount[:-1],
    )


def transition_trajectory(arrays: Mapping[str, jax.Array]) -> disco.Trajectory:
    """A trajectory from a rule's inputs (convention i); there are no observations."""
    terminal = arrays["is_terminal"]
    mask = arrays.get("loss_mask", jnp.ones_like(terminal))
    return disco.Trajectory(
        observation=(),
        action=arrays["actions"][:-1],
        reward=arrays["rewards"],
        discount=1.0 - terminal.astype(arrays["rewards"].dtype),
        last=terminal,
        behaviour_logits=arrays["behaviour/logits"][:-1],
        mask=mask,
    )


def linear_unroll(params: Mapping[str, Mapping[str, jax.Array]], trajectory: disco.Trajectory):
    """The linear agent of the kinds `rule_sequence` and `meta_gradient`."""
    num_actions = trajectory.behaviour_logits.shape[-1]
    outputs = {name: linear(head, trajectory.observation) for name, head in params.items()}
    for name in ("z", "q", "aux_pi"):
        rows = outputs[name]
        outputs[name] = rows.reshape(*rows.shape[:2], num_actions, -1)
    return outputs


def read_tree(arrays: Mapping[str, Any], prefix: str) -> dict[str, dict[str, Any]]:
    """`{head: {"w", "b"}}` from the arrays `prefix/head/w`, `prefix/head/b`."""
    tree: dict[str, dict[str, Any]] = {}
    for name, value in group(arrays, f"{prefix}/").items():
        head, part = name.split("/")
        tree.setdefault(head, {})[part] = value
    return tree


def write_tree(tree: Mapping[str, Mapping[str, Any]], prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}/{head}/{part}": value
        for head, parts in tree.items()
        for part, value in parts.items()
    }


def prefixed(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in arrays.items()}


def group(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Those whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
