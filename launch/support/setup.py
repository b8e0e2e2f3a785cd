"""Construction of a discovery run from its settings, and copies of the rule files of a run."""

import dataclasses
import pathlib
from typing import Any

import jax
from absl import logging

import disco
import environments
from agents.rule_agent import AgentConfig
from disco import rule_sources
from disco_common import files
from disco_common.files import write_atomically
from environments import registry
from evaluation.rules import fingerprint
from evaluation.studies import ablations
from launch.support.settings import DiscoverSettings
from meta.discovery import Discovery
from meta.sharding import make_mesh

TASKS = "tasks.json"  # In a run's workdir: the tasks' names in each group of the population.
START = "start.npz"  # In a run's workdir: a copy of the rule file that it started from, if any.


def make_discovery(
    settings: DiscoverSettings,
    tasks: tuple[environments.Environment, ...] | None = None,
    rule: disco.DiscoveredRule | None = None,
) -> Discovery:
    """Return the discovery run of some settings. Nothing is compiled.

    Args:
      settings: of the run.
      tasks: of the run; by default the suites'.
      rule: to start from; by default the result of `make_rule`.

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
    """Return the tasks of the settings' suites.

    Raises:
      ValueError: if a name is unknown.
      ImportError: if a package that an environment needs is not installed.
    """
    names = [name.strip() for name in settings.suite.split(",")]
    for name in names:  # Before one is made, which can take long.
        registry.check_name(name)
    return tuple(task for name in names for task in environments.suite(name))


def make_family_agents(settings: DiscoverSettings) -> dict[str, AgentConfig]:
    """Return the agents' configurations for families of environments that have their own.

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
    """Return the rule that a run starts from: a file's, or a random one.

    Args:
      settings: of the run.
      folder: its workdir. A copy of the file in it is read instead of the file.

    Raises:
      FileNotFoundError, disco.RuleFileError: if the file cannot be read.
    """
    rule = settings.rule
    if rule.start:
        copy = folder / START if folder is not None else None
        return ablations.load(copy if copy is not None and copy.is_file() else rule.start)
    return ablations.create(
        jax.random.key(settings.seed), is_published=rule.is_published_init, **rule.of_rule
    )


def kept_rule(folder: pathlib.Path, meta_step: int) -> pathlib.Path:
    """Return the file, in a discovery's workdir, of the average rule after so many meta-steps."""
    return folder / "rules" / f"{meta_step:08d}.npz"


def keep_start(
    settings: DiscoverSettings, folder: pathlib.Path, rule: disco.DiscoveredRule
) -> None:
    """Copy the rule file that a run starts from to its workdir.

    A continued run reads the copy. If the file now has another rule, there is a warning.

    Args:
      settings: of the run.
      folder: its workdir, locked.
      rule: from `make_rule`.

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
    if fingerprint(ablations.load(copy)) != fingerprint(rule):  # Written after the rule was read.
        raise ValueError(
            f"The run in {folder} was started with another rule at the same time; try again."
        )
    try:
        is_same = fingerprint(ablations.load(name)) == fingerprint(rule)
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        logging.warning(
            "%s is another rule now than the one that the run in %s was started with. The run"
            " continues with the first rule, of which it has a copy (%s).",
            name,
            folder,
            START,
        )


def keep_rule(name: str, copy: pathlib.Path, rule: disco.Rule, **changes: Any) -> None:
    """Copy a rule file to a workdir, unless there is a copy.

    Args:
      name: of the rule (`disco.rule_sources`).
      copy: file to write.
      rule: that was read from the file.
      **changes: fields of the rule that were changed after it was read.

    Raises:
      ValueError: if the file has changed since.
      OSError: if the copy cannot be written.
    """
    if copy.exists():
        return
    content = files.read_bytes(rule_sources.find(name), files.MOST_DATA)
    copy.parent.mkdir(exist_ok=True)
    write_atomically(copy, content)
    if fingerprint(dataclasses.replace(ablations.load(copy), **changes)) != fingerprint(rule):
        copy.unlink()
        raise ValueError(f"Rule file {name!r} was replaced while the run was starting; try again.")
