"""The registry of environments by name.

A name is `"<family>/<parameters>"`, for example `"catch/8x8"`, `"gymnax/CartPole-v1"` or
`"grid57/00_dense_fixed"`. A suite, a tuple of environments, is named without a slash: `"grid57"`.

Other packages add families by an entry point of the group `disco.environments`, which has the
family's name and is a function from parameters to an `Environment` (`docs/extending.md`). Such a
function needs no entry point if the family is named as `<module>:<function>`:
`"my_lamps:make/4"`.
"""

import dataclasses
import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from disco_common import plugins
from environments.base import Environment, HostEnvironment, JaxEnvironment, Task
from environments.errors import EnvironmentNameError, unknown_member, unknown_name
from environments.names import require_length
from environments.protocols import SuiteProtocol

# The modules of `environments.suites` are imported when one of their names is used: some need
# large packages. A suite's module has the tables `SUITES`, names of environments, and
# `PROTOCOLS`; a family's has a function from parameters to an environment.
_SUITES = {
    "grid57": "grid57",
    "grid_generated": "grid_generated",
    "grid_heldout": "grid_heldout",
    "mdp_generated": "mdp_generated",
    "lpg": "lpg",
    "delayed_chain": "delayed_chain",
    "atari57": "atari",
    "atari100k": "atari",
    "procgen16": "procgen",
    "procgen16_unseen": "procgen",
    "procgen16_all": "procgen",
    "nethack": "nethack",
    "crafter": "crafter",
    "craftax_classic": "craftax_classic",
    "sokoban": "sokoban",
    "dmlab30": "dmlab",
    "dmlab30_test": "dmlab",
    "dmlab30_r2d2": "dmlab",
    "dmlab30_r2d2_test": "dmlab",
    "bsuite": "bsuite",
    "bsuite_first": "bsuite",
    "gymnax": "gymnax",
    "minatar": "minatar",
    "control_proprio": "control",
    "control_vision": "control",
    "minecraft_diamond": "minecraft",
    "diagnostic": "diagnostic",
}


class _Family(NamedTuple):
    """The environments `<family>/<parameters>`.

    Attributes:
      module: of `environments.suites`.
      function: returns the environment of some parameters.
      examples: names of some members, for families without a suite.
      is_host: whether they are simulated outside JAX.
    """

    module: str
    function: str = "make"
    examples: tuple[str, ...] = ()
    is_host: bool = False


_FAMILIES = {
    "catch": _Family("catch", examples=("catch", "catch/5x5", "catch/8x8", "catch/10x5/recall")),
    "deep_sea": _Family("deep_sea", examples=("deep_sea/5", "deep_sea/10")),
    "grid57": _Family("grid57"),
    "grid_generated": _Family("grid_generated"),
    "mdp_generated": _Family("mdp_generated"),
    "grid_heldout": _Family("grid_heldout"),
    "lpg": _Family("lpg"),
    "diagnostic": _Family("diagnostic"),
    "delayed_chain": _Family("delayed_chain"),
    "gymnax": _Family(
        "gymnax",
        examples=("gymnax/CartPole-v1", "gymnax/Breakout-MinAtar", "gymnax/Catch-bsuite"),
    ),
    "gymnasium": _Family(
        "gymnasium",
        examples=("gymnasium/CartPole-v1", "gymnasium/minigrid:MiniGrid-Empty-8x8-v0"),
        is_host=True,
    ),
    "atari": _Family("atari", is_host=True),
    "atari100k": _Family("atari", "make_100k", is_host=True),
    "procgen": _Family("procgen", is_host=True),
    "procgen_unseen": _Family("procgen", "make_unseen", is_host=True),
    "procgen_all": _Family("procgen", "make_all", is_host=True),
    "nethack": _Family("nethack", is_host=True),
    "crafter": _Family("crafter", is_host=True),
    "craftax_classic": _Family("craftax_classic", examples=("craftax_classic/pixels",)),
    "sokoban": _Family("sokoban", examples=("sokoban/valid", "sokoban/test")),
    "dmlab": _Family("dmlab", is_host=True),
    "dmlab_test": _Family("dmlab", "make_test", is_host=True),
    "dmlab_r2d2": _Family("dmlab", "make_r2d2", is_host=True),
    "dmlab_r2d2_test": _Family("dmlab", "make_r2d2_test", is_host=True),
    "bsuite": _Family("bsuite", is_host=True),
    "minatar": _Family("minatar"),
    "control_proprio": _Family("control", "make_proprio", is_host=True),
    "control_vision": _Family("control", "make_vision", is_host=True),
    "minecraft": _Family("minecraft", is_host=True),
    "pixels": _Family("pixels", examples=("pixels/catch/8x8", "pixels/grid57/00_dense_fixed")),
}

PLUGINS = plugins.define("disco.environments", Environment, parameters=1)


class Group(NamedTuple):
    """Environments of equal dynamics: one compiled program, vmapped over agents.

    Attributes:
      dynamics: of all members.
      params: the members' parameters, stacked along a new leading axis; a tuple for host
        environments.
      names: of the members, in the order of that axis.
    """

    dynamics: JaxEnvironment | HostEnvironment
    params: Task
    names: tuple[str, ...]


def make(name: str) -> Environment:
    """Make the environment of this name.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which names are near.
      MissingPackageError: (an `ImportError`) if a package that it needs is not installed.
    """
    require_length(name)
    family, _, parameters = name.partition("/")
    if family in _SUITES and not parameters:
        members = members_of(family)
        raise EnvironmentNameError(
            f"{name!r} is a suite of {len(members)} environments, expected the name of one,"
            f" for example {members[0]!r}; environments.suite({name!r}) gives them all."
        )
    if family in _FAMILIES:
        entry = _FAMILIES[family]
        return getattr(_module(entry.module), entry.function)(parameters)
    if plugin := plugins.find(PLUGINS, family):
        made = plugin(parameters)
        # By what it was asked for, so that the name alone makes it again.
        return dataclasses.replace(made, name=name) if plugins.names_module(family) else made
    raise unknown_member(name, names())


def suite(name: str) -> tuple[Environment, ...]:
    """Make the environments of a suite; for the name of an environment, make only that one.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which names are near.
      MissingPackageError: (an `ImportError`) if a package that they need is not installed.
    """
    check_name(name)
    if name in _SUITES:
        return tuple(make(member) for member in members_of(name))
    return (make(name),)


def check_name(name: str) -> None:
    """Refuse what no suite and no family of environments is called; no environment is made.

    Raises:
      EnvironmentNameError: (a `ValueError`) saying which names are near.
      disco_common.plugins.PluginError: if another package's family cannot be imported.
    """
    require_length(name)
    family = name.partition("/")[0]
    if not (name in _SUITES or family in _FAMILIES or plugins.find(PLUGINS, family)):
        kind = "environment" if "/" in name else "suite or environment"
        raise unknown_member(name, (*suites(), *names()), kind=kind)


def protocol(name: str) -> SuiteProtocol:
    """Return the published protocol of a suite.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is no such suite, saying which are near.
    """
    if name not in _SUITES:
        raise unknown_name("suite", name, _SUITES)
    return _module(_SUITES[name]).PROTOCOLS[name]


def frames_per_action(family: str) -> int:
    """Return the frames for which a family's environments repeat an action; 1 if no suite says."""
    module = _FAMILIES[family].module if family in _FAMILIES else ""
    suites = (name for name, of in _SUITES.items() if of == module and family_of(name) == family)
    return next((protocol(name).frames_per_action for name in suites), 1)


def family_of(name: str) -> str:
    """Return the family of an environment, or of a suite's first one: the part before the slash.

    No environment and no array is made.
    """
    if name in _SUITES:
        name = members_of(name)[0]
    return name.partition("/")[0]


def is_host(name: str) -> bool:
    """Return whether an environment, or a suite's first, is simulated outside JAX.

    No environment is made, unless it is another package's.
    """
    family = family_of(name)
    if family in _FAMILIES:
        return _FAMILIES[family].is_host
    return plugins.find(PLUGINS, family) is not None and make(name).is_host


def suites() -> tuple[str, ...]:
    """Return the names of all suites."""
    return tuple(_SUITES)


def members_of(name: str) -> tuple[str, ...]:
    """Return the names of a suite's environments. Their packages need not be installed."""
    return _module(_SUITES[name]).SUITES[name]


def names() -> tuple[str, ...]:
    """Return the names of all environments; for families with parameters, examples."""
    members = (member for name in _SUITES for member in members_of(name))
    examples = (example for family in _FAMILIES.values() for example in family.examples)
    return tuple(dict.fromkeys((*members, *examples, *plugins.names(PLUGINS))))


def group(environments: Iterable[Environment]) -> list[Group]:
    """Group environments by their dynamics, in order of first appearance."""
    by_dynamics: dict[JaxEnvironment | HostEnvironment, list[Environment]] = {}
    for environment in environments:
        by_dynamics.setdefault(environment.dynamics, []).append(environment)
    return [
        Group(
            dynamics=dynamics,
            params=_stack_params(members),
            names=tuple(member.name for member in members),
        )
        for dynamics, members in by_dynamics.items()
    ]


def _stack_params(members: list[Environment]) -> Task:
    params = [member.params for member in members]
    if members[0].is_host:
        return tuple(params)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"environments.suites.{name}")
