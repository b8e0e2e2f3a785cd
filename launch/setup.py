"""From settings to the objects of a discovery run, and copies of the rule files of a run."""

import dataclasses
import pathlib
from typing import Any

import jax
from absl import logging

import disco
import environments
from agents.rule_agent import AgentConfig
from disco.rule_files import ZOO
from disco_common.atomic import write_atomically
from evaluation.contenders import fingerprint
from launch.settings import DiscoverSettings
from meta.discovery import Discovery
from meta.sharding import make_mesh

TASKS = "tasks.json"  # In a run's workdir: the tasks' names in each group of the population.
START = "start.npz"  # In a run's workdir: the rule that it started from, if that was a file's.


def make_discovery(
    settings: DiscoverSettings,
    tasks: tuple[environments.Environment, ...] | None = None,
    rule: disco.DiscoveredRule | None = None,
) -> Discovery:
    """The discovery run that settings describe. Compiles nothing.

    Args:
      settings: all of it.
      tasks: instead of the suites'.
      rule: instead of the one that `make_rule` makes of the settings.

    Raises:
      ValueError: if a name or a value is unknown or out of range.
    """
    return Discovery(
        make_tasks(settings) if tasks is None else tasks,
        make_rule(settings) if rule is None else rule,
        settings.agent,
        settings.value_function,
        settings.objective,
        settings.population,
        settings.meta,
        seed=settings.seed,
        mesh=make_mesh(settings.devices_per_agent),
        family_agents=make_family_agents(settings),
    )


def make_tasks(settings: DiscoverSettings) -> tuple[environments.Environment, ...]:
    """The tasks of the suites that settings name.

    Raises:
      ValueError: if a name is unknown.
      ImportError: if a package that an environment needs is not installed.
    """
    return tuple(
        task for name in settings.suite.split(",") for task in environments.suite(name.strip())
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


def make_rule(
    settings: DiscoverSettings, folder: pathlib.Path | None = None
) -> disco.DiscoveredRule:
    """The rule that a run starts from: a file's, or a random one.

    Args:
      settings: of the run.
      folder: its workdir. If it has a copy of the file, that is read.

    Raises:
      FileNotFoundError, disco.RuleFileError: if the file cannot be read.
    """
    rule = settings.rule
    if rule.start:
        copy = folder / START if folder is not None else None
        return disco.load(copy if copy is not None and copy.is_file() else rule.start)
    values = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    del values["start"]
    return disco.DiscoveredRule.create(jax.random.key(settings.seed), **values)


def keep_start(
    settings: DiscoverSettings, folder: pathlib.Path, rule: disco.DiscoveredRule
) -> None:
    """Keeps a copy of the file of a run's first rule in its workdir, by which the run goes on.

    If the copy is there, and the file has another rule by now, a warning says so.

    Args:
      settings: of the run.
      folder: its workdir, open.
      rule: as `make_rule` made it.

    Raises:
      ValueError: if the file or the copy has changed since the rule was made.
      OSError: if the copy cannot be written.
    """
    name, copy = settings.rule.start, folder / START
    if not name:
        return
    if not copy.exists():
        keep_rule(name, copy, rule)
        return
    if fingerprint(disco.load(copy)) != fingerprint(rule):  # Made since the rule was.
        raise ValueError(f"The run in {folder} was started meanwhile with another rule; try again.")
    try:
        is_same = fingerprint(disco.load(name)) == fingerprint(rule)
    except FileNotFoundError:
        return  # That is what the copy is for.
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        logging.warning(
            "%s is another rule now than the one that the run in %s was started with. It goes on"
            " with that one, of which it has a copy (%s).",
            name,
            folder,
            START,
        )


def keep_rule(name: str, copy: pathlib.Path, rule: disco.Rule, **changes: Any) -> None:
    """Copies a rule's file into a workdir, unless that has a copy.

    Args:
      name: the file, or the name of a rule in the zoo.
      copy: file to write.
      rule: as it was read from the file before.
      **changes: fields in which it was changed then.

    Raises:
      ValueError: if the file has changed since.
      OSError: if the copy cannot be written.
    """
    if copy.exists():
        return
    path = pathlib.Path(name)
    content = (path if path.is_file() else ZOO / f"{name}.npz").read_bytes()
    copy.parent.mkdir(exist_ok=True)
    write_atomically(copy, content)
    if fingerprint(dataclasses.replace(disco.load(copy), **changes)) != fingerprint(rule):
        copy.unlink()
        raise ValueError(f"Rule file {name!r} was replaced while the run was starting; try again.")
