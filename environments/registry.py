"""From names to environments.

A name is `"<family>/<parameters>"`, for example `"catch/8x8"` or
`"gymnax/CartPole-v1"`, or that of a member of a suite, for example
`"grid57/00_dense_fixed"`. A suite is named without a slash: `"grid57"`.

Other packages add families by an entry point of the group `disco.environments`, which has the
family's name and is a function from parameters to an `Environment` (`docs/extending.md`).
"""

import importlib
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from common import plugins
from environments.base import Environment, HostEnvironment, JaxEnvironment, Task
from environments.errors import EnvironmentNameError, unknown_name

# Modules are imported when one of their names is asked for: some need heavy packages. A suite's
# module has `suite()`, or a table `SUITES` of names; a family's has a function of parameters.
_SUITES = {
    "grid57": "environments.grid57",
    "grid_heldout": "environments.grid_heldout",
    "lpg": "environments.lpg",
    "delayed_chain": "environments.delayed_chain",
    "atari57": "environments.atari",
    "atari100k": "environments.atari",
    "procgen16": "environments.procgen",
    "procgen16_unseen": "environments.procgen",
    "nethack": "environments.nethack",
    "crafter": "environments.crafter",
    "craftax_classic": "environments.craftax_classic",
    "sokoban": "environments.sokoban",
    "dmlab30": "environments.dmlab",
    "dmlab30_test": "environments.dmlab",
    "bsuite": "environments.bsuite_adapter",
    "bsuite_first": "environments.bsuite_adapter",
    "minatar": "environments.minatar",
    "control_proprio": "environments.control",
    "control_vision": "environments.control",
    "minecraft_diamond": "environments.minecraft",
}


class _Family(NamedTuple):
    """Environments `<family>/<parameters>`, and names to show where there is no table of them."""

    module: str
    function: str = "make"
    examples: tuple[str, ...] = ()
    is_host: bool = False


_FAMILIES = {
    "catch": _Family(
        "environments.catch", examples=("catch", "catch/5x5", "catch/8x8", "catch/10x5/recall")
    ),
    "deep_sea": _Family("environments.deep_sea", examples=("deep_sea/5", "deep_sea/10")),
    "gymnax": _Family(
        "environments.gymnax_adapter",
        examples=("gymnax/CartPole-v1", "gymnax/Breakout-MinAtar", "gymnax/Catch-bsuite"),
    ),
    "atari": _Family("environments.atari", is_host=True),
    "atari100k": _Family("environments.atari", "make_100k", is_host=True),
    "procgen": _Family("environments.procgen", is_host=True),
    "procgen_unseen": _Family("environments.procgen", "make_unseen", is_host=True),
    "nethack": _Family("environments.nethack", is_host=True),
    "crafter": _Family("environments.crafter", is_host=True),
    "craftax_classic": _Family(
        "environments.craftax_classic", examples=("craftax_classic/pixels",)
    ),
    "sokoban": _Family("environments.sokoban", examples=("sokoban/valid", "sokoban/test")),
    "dmlab": _Family("environments.dmlab", is_host=True),
    "dmlab_test": _Family("environments.dmlab", "make_test", is_host=True),
    "bsuite": _Family("environments.bsuite_adapter", is_host=True),
    "minatar": _Family("environments.minatar"),
    "control_proprio": _Family("environments.control", "make_proprio", is_host=True),
    "control_vision": _Family("environments.control", "make_vision", is_host=True),
    "minecraft": _Family("environments.minecraft", is_host=True),
}


PLUGINS = "disco.environments"


class Group(NamedTuple):
    """Environments of equal dynamics: one compiled program, vmapped over agents.

    Attributes:
      dynamics: which they share.
      task: their tasks, stacked along a new leading axis; of host environments a tuple.
      names: theirs, in the order of that axis.
    """

    dynamics: JaxEnvironment | HostEnvironment
    task: Task
    names: tuple[str, ...]


def make(name: str) -> Environment:
    """The environment of this name.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which are near.
      MissingPackageError: (an `ImportError`) if a package it needs is not installed.
    """
    family, _, parameters = name.partition("/")
    if family in _SUITES and not parameters:
        members = members_of(family)
        raise EnvironmentNameError(
            f"{name!r} is a suite of {len(members)} environments, expected the name of one,"
            f" for example {members[0]!r}; environments.suite({name!r}) gives them all."
        )
    if family in _FAMILIES:
        entry = _FAMILIES[family]
        return getattr(importlib.import_module(entry.module), entry.function)(parameters)
    if family in _SUITES:
        for environment in suite(family):
            if environment.name == name:
                return environment
    elif plugin := plugins.find(PLUGINS, family):
        return plugin(parameters)
    raise _unknown("environment", name, names())


def suite(name: str) -> tuple[Environment, ...]:
    """The environments of the suite of this name; of an environment's name, that one.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which are near.
      MissingPackageError: (an `ImportError`) if a package it needs is not installed.
    """
    if name in _SUITES:
        module = importlib.import_module(_SUITES[name])
        if hasattr(module, "SUITES"):
            return tuple(make(member) for member in module.SUITES[name])
        return module.suite()
    if "/" in name or name in _FAMILIES or plugins.find(PLUGINS, name):
        return (make(name),)
    raise _unknown("suite or environment", name, (*suites(), *names()))


def family_of(name: str) -> str:
    """What stands before the slash in an environment's name, or in that of a suite's first.

    Makes no environment, and no array.
    """
    if name in _SUITES:
        module = importlib.import_module(_SUITES[name])
        # Where there is no table, the suite's own name stands there.
        name = getattr(module, "SUITES", {}).get(name, (name,))[0]
    return name.partition("/")[0]


def is_host(name: str) -> bool:
    """Whether an environment, or a suite's first, is simulated outside JAX.

    Makes none, unless it is another package's.
    """
    family = family_of(name)
    if family in _FAMILIES:
        return _FAMILIES[family].is_host
    return plugins.find(PLUGINS, family) is not None and make(name).is_host


def suites() -> tuple[str, ...]:
    """The names of all suites."""
    return tuple(_SUITES)


def members_of(name: str) -> tuple[str, ...]:
    """The names of a suite's environments. Needs none of their packages."""
    module = importlib.import_module(_SUITES[name])
    if hasattr(module, "SUITES"):
        return module.SUITES[name]
    return tuple(environment.name for environment in module.suite())


def names() -> tuple[str, ...]:
    """The names of all environments; of families with parameters, some examples."""
    members = (member for name in _SUITES for member in members_of(name))
    examples = (example for family in _FAMILIES.values() for example in family.examples)
    return tuple(dict.fromkeys((*members, *examples, *plugins.names(PLUGINS))))


def group(environments: Iterable[Environment]) -> list[Group]:
    """Groups environments by their dynamics, in order of first appearance."""
    by_dynamics: dict[JaxEnvironment | HostEnvironment, list[Environment]] = {}
    for environment in environments:
        by_dynamics.setdefault(environment.dynamics, []).append(environment)
    return [
        Group(
            dynamics=dynamics,
            task=_together(members),
            names=tuple(member.name for member in members),
        )
        for dynamics, members in by_dynamics.items()
    ]


def _together(members: list[Environment]) -> Task:
    tasks = [member.task for member in members]
    if members[0].is_host:
        return tuple(tasks)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)


def _unknown(what: str, name: str, known: Iterable[str]) -> EnvironmentNameError:
    hint = "environments.registry.suites() and environments.registry.names() list all."
    return unknown_name(what, name, known, hint)
