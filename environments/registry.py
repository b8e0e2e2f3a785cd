"""The registry of environments by name; that of algorithms is `agents.registry`.

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
from environments.base import Environment, HostEnvironment, JaxEnvironment, TaskParams
from environments.errors import EnvironmentNameError, unknown_name
from environments.names import require_length


class _Module(NamedTuple):
    """A module of `environments.suites`, imported when one of its names is used.

    It has the table `SUITES`, names of environments, unless it has no suite; and `make`, from an
    environment's whole name to the environment. `make` refuses the names that do not exist in a
    module with families of parameters; elsewhere `registry.make` does.

    Attributes:
      families: of its environments.
      suites: of its environments.
      examples: names of environments that no suite has.
      has_parameters: whether there are other environments than those of suites and examples.
      is_host: whether they are simulated outside JAX.
      frames_per_action: steps of the simulator for which each action is repeated.
    """

    families: str
    suites: str = ""
    examples: str = ""
    has_parameters: bool = False
    is_host: bool = False
    frames_per_action: int = 1


_MODULES = {
    "grid57": _Module("grid57 grid_generated lpg", "grid57 grid_generated lpg"),
    "grid_heldout": _Module("grid_heldout", "grid_heldout"),
    "mdp_generated": _Module("mdp_generated", "mdp_generated"),
    "varied": _Module(
        "varied", "varied varied_1 varied_4 varied_16 varied_64 varied_256 varied_heldout"
    ),
    "robustness": _Module("robustness", "robustness"),
    "small_tasks": _Module(
        "catch deep_sea delayed_chain",
        "delayed_chain",
        "catch catch/5x5 catch/8x8 catch/10x5/recall deep_sea/5 deep_sea/10",
        has_parameters=True,
    ),
    "atari": _Module(
        "atari atari100k",
        "atari57 atari100k",
        has_parameters=True,
        is_host=True,
        frames_per_action=4,
    ),
    "procgen": _Module(
        "procgen procgen_unseen procgen_all",
        "procgen16 procgen16_unseen procgen16_all",
        is_host=True,
    ),
    "nethack": _Module("nethack", "nethack", is_host=True),
    "crafter": _Module("crafter", "crafter", is_host=True),
    "craftax_classic": _Module("craftax_classic", "craftax_classic", "craftax_classic/pixels"),
    "sokoban": _Module("sokoban", "sokoban", "sokoban/valid sokoban/test", has_parameters=True),
    "dmlab": _Module(
        "dmlab dmlab_test dmlab_r2d2 dmlab_r2d2_test",
        "dmlab30 dmlab30_test dmlab30_r2d2 dmlab30_r2d2_test",
        is_host=True,
        frames_per_action=4,
    ),
    "bsuite": _Module("bsuite", "bsuite bsuite_first", has_parameters=True, is_host=True),
    "gymnax": _Module(
        "gymnax minatar",
        "gymnax minatar",
        "gymnax/CartPole-v1 gymnax/Breakout-MinAtar gymnax/Catch-bsuite",
        has_parameters=True,
    ),
    "jumanji": _Module("jumanji", "jumanji", "jumanji/RubiksCube-v0", has_parameters=True),
    "control": _Module(
        "control_proprio control_vision",
        "control_proprio control_vision",
        is_host=True,
        frames_per_action=2,
    ),
    "minecraft": _Module("minecraft", "minecraft_diamond", is_host=True),
    "diagnostic": _Module("diagnostic", "diagnostic"),
    "gymnasium": _Module(
        "gymnasium",
        "",
        "gymnasium/CartPole-v1 gymnasium/minigrid:MiniGrid-Empty-8x8-v0",
        has_parameters=True,
        is_host=True,
    ),
    "pixels": _Module(
        "pixels", "", "pixels/catch/8x8 pixels/grid57/00_dense_fixed", has_parameters=True
    ),
}

PLUGINS = plugins.define("disco.environments", Environment)


class TaskGroup(NamedTuple):
    """Environments of equal dynamics: one compiled program, vmapped over agents.

    Attributes:
      dynamics: of all members.
      task_params: the members' parameters, stacked along a new leading axis; a tuple for host
        environments.
      names: of the members, in the order of that axis.
    """

    dynamics: JaxEnvironment | HostEnvironment
    task_params: TaskParams
    names: tuple[str, ...]


def make(name: str) -> Environment:
    """Make the environment of this name.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which names are near.
      MissingPackageError: (an `ImportError`) if a package that it needs is not installed.
    """
    require_length(name)
    family, _, parameters = name.partition("/")
    if family in suites() and not parameters:
        members = members_of(family)
        raise EnvironmentNameError(
            f"{name!r} is a suite of {len(members)} environments, expected the name of one,"
            f" for example {members[0]!r}; environments.suite({name!r}) gives them all."
        )
    if module := _module_of_family(family):
        if not _MODULES[module].has_parameters and name not in _listed(module):
            raise unknown_name(name, [x for x in _listed(module) if family_of(x) == family])
        return _imported(module).make(name)
    if plugin := plugins.find(PLUGINS, family):
        made = plugin(parameters)
        # By what it was asked for, so that the name alone makes it again.
        return dataclasses.replace(made, name=name) if plugins.names_module(family) else made
    raise unknown_name(name, names())


def suite(name: str) -> tuple[Environment, ...]:
    """Make the environments of a suite; for the name of an environment, make only that one.

    Raises:
      EnvironmentNameError: (a `ValueError`) if there is none, saying which names are near.
      MissingPackageError: (an `ImportError`) if a package that they need is not installed.
    """
    check_name(name)
    if name in suites():
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
    if not (name in suites() or _module_of_family(family) or plugins.find(PLUGINS, family)):
        kind = "environment" if "/" in name else "suite or environment"
        raise unknown_name(name, (*suites(), *names()), kind=kind)


def frames_per_action(family: str) -> int:
    """Return the steps of the simulator for which a family's environments repeat an action.

    It is 1 for other packages' environments, too.
    """
    module = _module_of_family(family)
    return _MODULES[module].frames_per_action if module else 1


def family_of(name: str) -> str:
    """Return the family of an environment, or of a suite's first one: the part before the slash.

    No environment and no array is made.
    """
    if name in suites():
        name = members_of(name)[0]
    return name.partition("/")[0]


def is_host(name: str) -> bool:
    """Return whether an environment, or a suite's first, is simulated outside JAX.

    No environment is made, unless it is another package's.
    """
    family = family_of(name)
    if module := _module_of_family(family):
        return _MODULES[module].is_host
    return plugins.find(PLUGINS, family) is not None and make(name).is_host


def suites() -> tuple[str, ...]:
    """Return the names of all suites."""
    return tuple(name for module in _MODULES.values() for name in module.suites.split())


def members_of(name: str) -> tuple[str, ...]:
    """Return the names of a suite's environments. Their packages need not be installed."""
    return _imported(_module_of_suite(name)).SUITES[name]


def names() -> tuple[str, ...]:
    """Return the names of all environments; for families with parameters, examples."""
    listed = (name for module in _MODULES for name in _listed(module))
    return tuple(dict.fromkeys((*listed, *plugins.names(PLUGINS))))


def group_by_dynamics(environments: Iterable[Environment]) -> list[TaskGroup]:
    """Group environments by their dynamics, in order of first appearance."""
    by_dynamics: dict[JaxEnvironment | HostEnvironment, list[Environment]] = {}
    for environment in environments:
        by_dynamics.setdefault(environment.dynamics, []).append(environment)
    return [
        TaskGroup(
            dynamics=dynamics,
            task_params=_stack_params(members),
            names=tuple(member.name for member in members),
        )
        for dynamics, members in by_dynamics.items()
    ]


def _stack_params(members: list[Environment]) -> TaskParams:
    params = [member.params for member in members]
    if members[0].is_host:
        return tuple(params)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


def _listed(module: str) -> tuple[str, ...]:
    """Return the names of a module's suites' environments, and its examples."""
    entry = _MODULES[module]
    members = (member for name in entry.suites.split() for member in members_of(name))
    return (*members, *entry.examples.split())


def _module_of_family(family: str) -> str | None:
    return next((x for x, entry in _MODULES.items() if family in entry.families.split()), None)


def _module_of_suite(name: str) -> str:
    return next(x for x, entry in _MODULES.items() if name in entry.suites.split())


def _imported(module: str) -> ModuleType:
    return importlib.import_module(f"environments.suites.{module}")
