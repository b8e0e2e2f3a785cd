"""From names to environments.

A name is `"<family>/<parameters>"`, for example `"catch/8x8"` or
`"gymnax/CartPole-v1"`, or that of a member of a suite, for example
`"grid57/00_dense_fixed"`. A suite is named without a slash: `"grid57"`.
"""

import difflib
import importlib
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from environments.base import Environment, JaxEnvironment, Task
from environments.errors import EnvironmentNameError

# Modules are imported when one of their names is asked for: some need heavy packages.
# A suite's module has `suite()`; a family's has `make(parameters)`.
_SUITES = {
    "grid57": "environments.grid57",
    "grid_heldout": "environments.grid_heldout",
    "lpg": "environments.lpg",
    "delayed_chain": "environments.delayed_chain",
}
_FAMILIES = {
    "catch": ("environments.catch", ("catch", "catch/5x5", "catch/8x8")),
    "deep_sea": ("environments.deep_sea", ("deep_sea/5", "deep_sea/10")),
    "gymnax": (
        "environments.gymnax_adapter",
        ("gymnax/CartPole-v1", "gymnax/Breakout-MinAtar", "gymnax/Catch-bsuite"),
    ),
}


class Group(NamedTuple):
    """Environments of equal dynamics: one compiled program, vmapped over `task`.

    Attributes:
      dynamics: which they share.
      task: their tasks, stacked along a new leading axis.
      names: theirs, in the order of that axis.
    """

    dynamics: JaxEnvironment
    task: Task
    names: tuple[str, ...]


def make(name: str) -> Environment:
    """The environment of this name.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which are near.
      MissingPackageError: (an `ImportError`) if a package it needs is not installed.
    """
    family, _, parameters = name.partition("/")
    if family in _FAMILIES:
        module, _ = _FAMILIES[family]
        return importlib.import_module(module).make(parameters)
    if family in _SUITES and parameters:
        for environment in suite(family):
            if environment.name == name:
                return environment
    if family in _SUITES and not parameters:
        raise EnvironmentNameError(
            f"{name!r} is a suite of {len(suite(name))} environments, expected the name of one,"
            f" for example {suite(name)[0].name!r}; environments.suite({name!r}) gives them all."
        )
    raise _unknown("environment", name, names())


def suite(name: str) -> tuple[Environment, ...]:
    """The environments of the suite of this name; of an environment's name, that one.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which are near.
      MissingPackageError: (an `ImportError`) if a package it needs is not installed.
    """
    if name in _SUITES:
        return importlib.import_module(_SUITES[name]).suite()
    if "/" in name or name in _FAMILIES:
        return (make(name),)
    raise _unknown("suite or environment", name, (*suites(), *names()))


def suites() -> tuple[str, ...]:
    """The names of all suites."""
    return tuple(_SUITES)


def names() -> tuple[str, ...]:
    """The names of all environments; of families with parameters, some examples."""
    members = [environment.name for name in _SUITES for environment in suite(name)]
    examples = [name for _, examples in _FAMILIES.values() for name in examples]
    return (*members, *examples)


def group(environments: Iterable[Environment]) -> list[Group]:
    """Groups environments by their dynamics, in order of first appearance."""
    by_dynamics: dict[JaxEnvironment, list[Environment]] = {}
    for environment in environments:
        by_dynamics.setdefault(environment.dynamics, []).append(environment)
    return [
        Group(
            dynamics=dynamics,
            task=jax.tree.map(lambda *leaves: jnp.stack(leaves), *(m.task for m in members)),
            names=tuple(member.name for member in members),
        )
        for dynamics, members in by_dynamics.items()
    ]


def _unknown(what: str, name: str, known: Iterable[str]) -> EnvironmentNameError:
    known = tuple(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return EnvironmentNameError(
        f"There is no {what} {name!r}."
        + (f" Near it: {', '.join(map(repr, near))}." if near else "")
        + " environments.registry.suites() and environments.registry.names() list all."
    )
