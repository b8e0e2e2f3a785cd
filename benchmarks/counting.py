"""Counts of a function's arithmetic and memory in its jaxpr, without compilation.

XLA's own count takes a loop's body once. Here, a loop's body counts once per iteration, so that the
count holds for K updates and for a scan over time. Like the compiler, it leaves out dead code, and
counts common subexpressions once. It leaves out multiplications by a convolution's padding and
dilation zeros.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from agents.convolutions import convolution, convolve


class Product(NamedTuple):
    """A matrix product or convolution.

    Attributes:
      flop: number of its multiplications and additions.
      num_bytes: size of its two operands and its result.
      dtype: of the operands.
    """

    flop: int
    num_bytes: int
    dtype: str


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a program.

    Attributes:
      products: number of times that each product is computed.
      other_flop: of all other operations, one for each number that an operation returns or reduces.
    """

    products: Counter[Product]
    other_flop: int

    @property
    def flop(self) -> int:
        """FLOP of all products."""
        return sum(times * product.flop for product, times in self.products.items())

    @property
    def num_bytes(self) -> int:
        """Memory traffic of all products, if each one reads its operands and writes its result."""
        return sum(times * product.num_bytes for product, times in self.products.items())

    def __mul__(self, times: int) -> "Work":
        products = Counter({product: n * times for product, n in self.products.items()})
        return Work(products, self.other_flop * times)

    __rmul__ = __mul__

    def __add__(self, other: "Work") -> "Work":
        return Work(self.products + other.products, self.other_flop + other.other_flop)


NO_WORK = Work(Counter(), 0)

# Primitives without arithmetic: they move, create or reinterpret arrays.
_MOVES = frozenset(
    """broadcast_in_dim bitcast_convert_type concatenate convert_element_type copy copy_p device_put
    dynamic_slice dynamic_update_slice expand_dims gather iota optimization_barrier pad
    random_unwrap random_wrap reshape rev sharding_constraint slice split squeeze stop_gradient
    transpose""".split()
)
_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "shard_map": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
_BARRIERS = ("remat2", "checkpoint")  # Subexpressions are not shared across their bounds.


def count(function: Callable, *arguments: Any) -> Work:
    """Return the work of a function of arrays or shapes.

    Raises:
      ValueError: if a product is in a loop of unknown length.
    """
    return _Counting().body(_program(function, arguments))


def peak_bytes(function: Callable, *arguments: Any) -> int:
    """Return the peak memory of intermediate results, without arguments and results.

    Each operation's result counts from its computation to its last use, in the order of the
    program. The compiler needs less if it fuses operations or finds a better order.
    """
    return _peak_bytes(_program(function, arguments))


def num_bytes(tree: Any) -> int:
    """Return the size of the arrays or shapes in a tree."""
    return sum(_size(x) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _program(function: Callable, arguments: tuple) -> core.Jaxpr:
    """Return a function's jaxpr without dead code."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return partial_eval.dce_jaxpr(program, [True] * len(program.outvars), instantiate=True)[0]


class _Counting:
    """A count of a program in which common subexpressions are computed once."""

    def __init__(self):
        self._numbers = iter(range(2**62))  # Of values; equal values have the same number.
        self._known: dict[Any, list] = {}
        self._work = NO_WORK

    def body(self, jaxpr: core.Jaxpr) -> Work:
        """Return the work of a program, with new numbers for its inputs."""
        self._walk(jaxpr, [next(self._numbers) for _ in jaxpr.invars])
        return self._work

    def _walk(self, jaxpr: core.Jaxpr, inputs: list) -> list:
        values: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        values |= {var: next(self._numbers) for var in jaxpr.constvars}

        def value(atom):
            if isinstance(atom, core.Literal):
                return (str(atom.aval), str(atom.val))
            return values[atom]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [value(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: core.JaxprEqn, inputs: list) -> list:
        name = eqn.primitive.name
        if name in _CALLS and name not in _BARRIERS:
            return self._walk(_opened(eqn.params[_CALLS[name]]), inputs)
        inner = list(_inner(eqn))
        key = (name, str(eqn.params), tuple(inputs))
        if not inner and key in self._known:
            return self._known[key]
        self._work += _work(eqn)
        results = [next(self._numbers) for _ in eqn.outvars]
        if not inner:
            self._known[key] = results
        return results


def _work(eqn: core.JaxprEqn) -> Work:
    """Return the work of one operation, including its inner programs."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        return _product(eqn, _dot_flop(eqn))
    if name == "conv_general_dilated":
        return _product(eqn, _convolution_flop(eqn))
    if eqn.primitive is convolution:
        shapes = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in _arrays(eqn.invars))
        return count(partial(convolve, **params), *shapes)
    if name in _CALLS:
        return _Counting().body(_opened(params[_CALLS[name]]))
    if name == "scan":
        return _Counting().body(_opened(params["jaxpr"])) * params["length"]
    if name == "cond":
        works = [_Counting().body(_opened(branch)) for branch in params["branches"]]
        return max(works, key=lambda work: (work.flop, work.other_flop))
    if name == "while":
        once = _Counting().body(_opened(params["body_jaxpr"]))
        if once.products:
            raise ValueError("A matrix product is in a while loop, whose length is unknown.")
        return once
    if name in _MOVES:
        return NO_WORK
    if name.startswith("reduce_window"):
        size = sum(map(_size, _arrays(eqn.outvars)))
        return Work(Counter(), size * math.prod(params["window_dimensions"]))
    # A reduction takes as many operations as it has inputs.
    arrays = [*_arrays(eqn.outvars), *_arrays(eqn.invars)]
    return Work(Counter(), max(map(_size, arrays), default=0))


def _product(eqn: core.JaxprEqn, flop: int) -> Work:
    arrays = [*_arrays(eqn.invars), *_arrays(eqn.outvars)]
    return Work(Counter([Product(flop, num_bytes(arrays), str(arrays[0].dtype))]), 0)


def _dot_flop(eqn: core.JaxprEqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    (left, _), (out,) = _arrays(eqn.invars), _arrays(eqn.outvars)
    return 2 * _size(out) * math.prod(left.shape[i] for i in contracted)


def _convolution_flop(eqn: core.JaxprEqn) -> int:
    (image, kernel), (out,) = _arrays(eqn.invars), _arrays(eqn.outvars)
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    pairs = 1
    for axis, (low, _) in enumerate(params["padding"]):
        pairs *= _pairs(
            image.shape[numbers.lhs_spec[2 + axis]],
            kernel.shape[numbers.rhs_spec[2 + axis]],
            out.shape[numbers.out_spec[2 + axis]],
            params["window_strides"][axis],
            params["lhs_dilation"][axis],
            params["rhs_dilation"][axis],
            low,
        )
    batch, features = (out.shape[axis] for axis in numbers.out_spec[:2])
    inputs = kernel.shape[numbers.rhs_spec[1]]
    # With batch groups, as in some gradients, each group computes a part of the features.
    return 2 * batch * features * inputs * pairs


def _pairs(
    image: int, kernel: int, out: int, stride: int, image_dilation: int, dilation: int, low: int
) -> int:
    """Return the number of pairs of result and kernel entries, along an axis, inside the image."""
    at = stride * np.arange(out)[:, None] + dilation * np.arange(kernel) - low
    is_inside = (at >= 0) & (at < (image - 1) * image_dilation + 1)
    return int(np.sum(is_inside & (at % image_dilation == 0)))


def _peak_bytes(jaxpr: core.Jaxpr) -> int:
    last_use = {atom: i for i, eqn in enumerate(jaxpr.eqns) for atom in _variables(eqn)}
    kept = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    made: dict[Any, int] = {}
    live = peak = 0
    for i, eqn in enumerate(jaxpr.eqns):
        for var in eqn.outvars:
            if var in last_use and var not in kept:
                made[var] = num_bytes(var.aval)
        live += sum(made.get(var, 0) for var in eqn.outvars)
        inside = max((_peak_bytes(inner) for inner in _inner(eqn)), default=0)
        peak = max(peak, live + inside)
        live -= sum(made.pop(a, 0) for a in set(_variables(eqn)) if last_use[a] == i)
    return peak


def _variables(eqn: core.JaxprEqn) -> list:
    return [atom for atom in eqn.invars if not isinstance(atom, core.Literal)]


def _arrays(atoms: Sequence) -> list[Any]:
    """Return the shapes and dtypes of a jaxpr's atoms."""
    return [atom.aval for atom in atoms]


def _inner(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    """Yield the inner programs of a call, a loop, or branches; not those of a reduction."""
    if eqn.primitive.name in (*_CALLS, "scan", "cond", "while"):
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, core.Jaxpr | core.ClosedJaxpr):
                    yield _opened(part)


def _opened(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> core.Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr


def _size(x: Any) -> int:
    return math.prod(x.shape)
