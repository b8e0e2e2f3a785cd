"""From settings to the objects of a discovery run."""

import dataclasses
from typing import Any

import jax

import disco
import environments
from agents.agent import AgentConfig
from launch.settings import DiscoverSettings
from meta.discovery import Discovery
from meta.mesh import make_mesh


def make_discovery(
    settings: DiscoverSettings, tasks: tuple[environments.Environment, ...] | None = None
) -> Discovery:
    """The discovery run that settings describe. Compiles nothing.

    Args:
      settings: all of it.
      tasks: instead of the suites'.

    Raises:
      ValueError: if a name or a value is unknown or out of range.
    """
    if tasks is None:
        tasks = tuple(
            task for name in settings.suite.split(",") for task in environments.suite(name.strip())
        )
    return Discovery(
        tasks,
        make_rule(settings),
        settings.agent,
        settings.value_function,
        settings.objective,
        settings.population,
        settings.meta,
        seed=settings.seed,
        mesh=make_mesh(settings.devices_per_agent),
        family_agents=make_family_agents(settings),
    )


def make_family_agents(settings: DiscoverSettings) -> dict[str, AgentConfig]:
    """The agents of those families of environments that have their own.

    Raises:
      ValueError: if an entry is malformed, or its values are out of range.
    """
    agents = {}
    for entry in settings.families:
        family, separator, changes = entry.partition(":")
        values: dict[str, str] = dict(
            change.partition("=")[::2]
            for change in changes.split()  # pyright: ignore
        )
        known = {"memory", "frame_stack", "burn_in"}
        if not (separator and values and set(values) <= known) or not all(
            value.isdigit() for value in values.values()
        ):
            raise ValueError(
                f"families has {entry!r}; expected a family, a colon and whole numbers for some of"
                f" {sorted(known)}, for example 'dmlab: memory=256 frame_stack=1'."
            )
        numbers: dict[str, Any] = {name: int(value) for name, value in values.items()}
        network = settings.agent.network
        if "memory" in numbers:
            network = dataclasses.replace(network, memory=numbers.pop("memory"))
        agents[family.strip()] = dataclasses.replace(settings.agent, network=network, **numbers)
    return agents


def make_rule(settings: DiscoverSettings) -> disco.DiscoveredRule:
    """The rule that a run starts from: a file's, or a random one."""
    rule = settings.rule
    if rule.start:
        return disco.load(rule.start)
    values = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    del values["start"]
    return disco.DiscoveredRule.create(jax.random.key(settings.seed), **values)
