"""From settings to the objects of a discovery run."""

import dataclasses

import jax

import disco
import environments
from launch.settings import DiscoverSettings
from meta.discovery import Discovery


def make_discovery(settings: DiscoverSettings) -> Discovery:
    """The discovery run that settings describe. Compiles nothing.

    Raises:
      ValueError: if a name or a value is unknown or out of range.
    """
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
    )


def make_rule(settings: DiscoverSettings) -> disco.DiscoveredRule:
    """The rule that a run starts from: a file's, or a random one."""
    rule = settings.rule
    if rule.start:
        return disco.load(rule.start)
    values = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    del values["start"]
    return disco.DiscoveredRule.create(jax.random.key(settings.seed), **values)
