"""The arithmetic and memory of a function's program, without compilation.

XLA counts a loop's body once, whatever the number of its iterations. Here the products of a
function's jaxpr are counted, each by XLA: those in a loop as often as it runs, so that the count
holds for K updates and for a scan over time. As in the compiler's program, dead code does not
count, and equal expressions count once.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.interpreters import partial_eval


class Product(NamedTuple):
    """A matrix product or convolution.

    Attributes:
      flop: number of its multiplications and additions, without those of a padding's zeros.
      num_bytes: size of its operands and its result.
      dtype: of the operands.
    """

    flop: int
    num_bytes: int
    dtype: str


Work = Counter[Product]
"""How often a program computes each product."""

_BARRIERS = ("remat2", "checkpoint")  # Subexpressions are not shared across their bounds.
_CALLS = ("jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "shard_map")
_WITH_PROGRAMS = (*_CALLS, *_BARRIERS, "scan", "cond", "while")


def count(function: Callable, *arguments: Any) -> Work:
    """Return the products that a function of arrays or shapes computes.

    Raises:
      ValueError: if a product is in a loop of unknown length.
    """
    return _Counting().body(_program(function, arguments))


def flop(work: Work) -> int:
    """Return the FLOP of all products."""
    return sum(number * product.flop for product, number in work.items())


def repeated(work: Work, number: int) -> Work:
    """Return some work that is done a number of times."""
    return Counter({product: number * times for product, times in work.items()})


def peak_bytes(function: Callable, *arguments: Any) -> int:
    """Return the peak memory of intermediate results, without arguments and results.

    Each operation's result counts from its computation to its last use, in the order of the
    program. The compiler needs less if it fuses operations or finds a better order.
    """
    return _peak_bytes(_program(function, arguments))


def num_bytes(tree: Any) -> int:
    """Return the size of the arrays or shapes in a tree."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _program(function: Callable, arguments: tuple) -> core.Jaxpr:
    """Return a function's jaxpr without dead code."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return partial_eval.dce_jaxpr(program, [True] * len(program.outvars), instantiate=True)[0]


class _Counting:
    """A count of a program, in which equal values have the same number."""

    def __init__(self):
        self._numbers = itertools.count()
        self._known: dict[Any, list] = {}
        self._work: Work = Counter()

    def body(self, jaxpr: core.Jaxpr) -> Work:
        """Return the work of a program, with new numbers for its inputs."""
        self._walk(jaxpr, [next(self._numbers) for _ in jaxpr.invars])
        return self._work

    def _walk(self, jaxpr: core.Jaxpr, inputs: list) -> list:
        values: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        values |= {var: next(self._numbers) for var in jaxpr.constvars}

        def value(atom: Any) -> Any:
            if isinstance(atom, core.Literal):
                return str(atom.aval), str(atom.val)
            return values[atom]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [value(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: core.JaxprEqn, inputs: list) -> list:
        name, inner = eqn.primitive.name, _inner(eqn)
        if name in _CALLS:
            return self._walk(inner[0], inputs)
        key = (name, str(eqn.params), tuple(inputs))
        if inner or key not in self._known:
            self._work += _work(eqn)
            self._known[key] = [next(self._numbers) for _ in eqn.outvars]
        return self._known[key]


def _work(eqn: core.JaxprEqn) -> Work:
    """Return the work of one operation, including its inner programs."""
    name = eqn.primitive.name
    if name in ("dot_general", "conv_general_dilated"):
        shapes: list[Any] = [x.aval for x in eqn.invars]
        operands = tuple((x.shape, x.dtype) for x in shapes)
        return Counter([_product(eqn.primitive, tuple(sorted(eqn.params.items())), operands)])
    works = [_Counting().body(inner) for inner in _inner(eqn)]
    if name == "while" and any(works):
        raise ValueError("A matrix product is in a while loop, whose length is unknown.")
    most = max(works, key=flop, default=Counter())  # Of branches; of others there is one.
    return repeated(most, eqn.params["length"]) if name == "scan" else most


@functools.cache
def _product(primitive: core.Primitive, params: tuple, operands: tuple) -> Product:
    shapes = [jax.ShapeDtypeStruct(*operand) for operand in operands]
    program = jax.jit(lambda *operands: primitive.bind(*operands, **dict(params)))
    cost = program.lower(*shapes).cost_analysis()
    assert cost is not None
    return Product(int(cost["flops"]), int(cost["bytes accessed"]), str(shapes[0].dtype))


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


def _inner(eqn: core.JaxprEqn) -> list[core.Jaxpr]:
    """Return the inner programs of a call, a loop, or branches; not those of a reduction."""
    if eqn.primitive.name not in _WITH_PROGRAMS:
        return []
    values = (x if isinstance(x, tuple) else (x,) for x in eqn.params.values())
    parts = [x for x in itertools.chain(*values) if isinstance(x, core.Jaxpr | core.ClosedJaxpr)]
    return [x.jaxpr if isinstance(x, core.ClosedJaxpr) else x for x in parts]
