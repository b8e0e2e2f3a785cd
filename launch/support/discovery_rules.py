"""The average rules of a discovery: kept with its checkpoints, probed along the way, exported.

Rewards per validation step hardly tell a good rule from a bad one, as the agents of a population
learn by many versions of the rule. So every `probe.interval` meta-steps, fresh agents learn some
tasks of the discovery by the average rule for a whole lifetime. The score is the mean over these
tasks, each between the random policy's (0) and the reference's (1; `evaluation.scoring.references`)
and at least -1. `launch.export` writes the rule with the best one. The files are described in
`evaluation.report.discoveries`.
"""

import dataclasses
import json
import logging
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import disco
import environments
from disco import rule_sources
from disco_common import files, stopping
from disco_common.configuration import from_json
from disco_common.files import write_atomically
from disco_common.json_lines import read_object
from evaluation.config import EvaluationConfig
from evaluation.contenders import rule_contenders
from evaluation.evaluate import Experiment, make_runs
from evaluation.report.discoveries import (
    PROBES,
    RULE,
    SCORE,
    Probe,
    best_probe,
    read_probe,
    read_probes,
)
from evaluation.report.rule_card import rule_card
from evaluation.report.stored import merge, read_manifest
from evaluation.rules import fingerprint
from evaluation.scoring import references
from evaluation.scoring.references import Reference, by_references
from evaluation.studies import formula_rule
from launch.support import workdirs
from launch.support.discovery_config import START, DiscoveryRunConfig, make_rule

_log = logging.getLogger(__name__)

_PARTS = ("agent", "population", "meta", "objective", "evolution")  # Settings in the provenance.


def rule_provenance(
    settings: DiscoveryRunConfig, meta_steps: int, steps_by_task: Mapping[str, int]
) -> dict[str, Any]:
    """Return the provenance of a discovery's rule, for its file's header.

    `steps_by_task` are the environment steps of all agents' learning, by the name of the task.
    """
    parts = {name: dataclasses.asdict(getattr(settings, name)) for name in _PARTS}
    return {
        "code_version": workdirs.code_version(),
        "jax_version": jax.__version__,
        "environments": settings.suite,
        "estimator": settings.estimator,
        "meta_steps": meta_steps,
        "planned_meta_steps": settings.meta_steps,
        "environment_steps": sum(steps_by_task.values()),
        "seed": settings.seed,
        **json.loads(json.dumps(parts)),  # With JSON's types: tuples become lists.
        "tasks": {name: steps for name, steps in steps_by_task.items() if steps},
    }


def kept_rule(folder: pathlib.Path, meta_step: int) -> pathlib.Path:
    """Return the file, in a discovery's workdir, of the average rule after so many meta-steps."""
    return folder / "rules" / f"{_number(meta_step)}.npz"


def _number(meta_step: int) -> str:
    return f"{meta_step:08d}"


def keep_start(
    settings: DiscoveryRunConfig, folder: pathlib.Path, rule: disco.DiscoveredRule
) -> None:
    """Copy the rule file that a run starts from to its locked workdir.

    A continued run reads the copy. If the file now has another rule, there is a warning.

    Raises:
      ValueError: if the file or the copy is not `rule`, that of `make_rule`, any more.
      OSError: if the copy cannot be written.
    """
    name, copy = settings.rule.start, folder / START
    if not name:
        return
    keep_rule(name, copy, rule)
    if fingerprint(formula_rule.load(copy)) != fingerprint(
        rule
    ):  # Written after the rule was read.
        raise ValueError(
            f"The run in {folder} was started with another rule at the same time; try again."
        )
    try:
        is_same = fingerprint(formula_rule.load(name)) == fingerprint(rule)
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        is_same = False
    if not is_same:
        _log.warning(
            "%s is another rule now than the one that the run in %s was started with. The run"
            " continues with the first rule, of which it has a copy (%s).",
            name,
            folder,
            START,
        )


def keep_rule(name: str, copy: pathlib.Path, rule: disco.Rule, **changes: Any) -> None:
    """Copy a rule's file, by name (`disco.rule_sources`), to a workdir, unless there is a copy.

    `changes` are fields of the rule that were changed after it was read from the file.

    Raises:
      ValueError: if the file has changed since.
      OSError: if the copy cannot be written.
    """
    if copy.exists():
        return
    content = files.read_bytes(rule_sources.find(name), files.MOST_DATA)
    copy.parent.mkdir(exist_ok=True)
    write_atomically(copy, content)
    if fingerprint(dataclasses.replace(formula_rule.load(copy), **changes)) != fingerprint(rule):
        copy.unlink()
        raise ValueError(f"Rule file {name!r} was replaced while the run was starting; try again.")


class Probes:
    """The probes of a discovery, in its workdir.

    Attributes:
      interval: meta-steps between probes; 0 for none.
    """

    def __init__(self, settings: DiscoveryRunConfig, tasks: Sequence[environments.Environment]):
        """Choose tasks, evenly spaced among those with reference scores; warn if there are none.

        Raises:
          ValueError: if there are probes, and their budget is too short for an update.
        """
        own, known = settings.probe, dict[str, Reference]()
        if own.interval:
            known, _ = references.of_tasks(tasks, own.budget, references.shipped())
        scored = [task for task in tasks if task.name in known]
        number = min(own.num_tasks, len(scored))
        places = np.linspace(0, len(scored) - 1, number).round().astype(int)
        self._chosen = {scored[i].name: (scored[i], known[scored[i].name]) for i in places}
        self.interval = own.interval if self._chosen else 0
        if self.interval:
            self._config = EvaluationConfig(
                agent=settings.agent,
                seeds=own.seeds,
                budget=own.budget,
                baselines=(),
                rule_learning_rate=settings.agent.learning_rate,
            )
        elif own.interval:
            _log.warning("No task of the suite has reference scores: there are no probes.")

    def make(
        self,
        folder: pathlib.Path,
        step: int,
        rule: disco.DiscoveredRule,
        provenance: Mapping[str, Any],
    ) -> Probe:
        """Make or continue a probe of the average rule after some meta-steps, in a locked workdir.

        Raises:
          CheckpointError, OSError: if something cannot be written.
          StoppedBySignal: if a signal stopped it, after a checkpoint was saved.
        """
        own = folder / PROBES / _number(step)
        file = own / RULE
        if file.exists() and fingerprint(formula_rule.load(file)) != fingerprint(rule):
            _log.warning("%s is of another rule than the run has now: probed again.", own)
            shutil.rmtree(own)
        own.mkdir(parents=True, exist_ok=True)
        if (own / SCORE).exists():
            return read_probe(own)
        disco.save(rule, file, provenance)
        contenders = rule_contenders([str(file)], self._config)
        tasks = [task for task, _ in self._chosen.values()]
        curves = make_runs(Experiment(tasks, self._config, own, provenance), contenders)
        stopping.raise_if_requested()
        returns = curves[contenders[0].name].window.mean_return
        scores = by_references(returns, [scale for _, scale in self._chosen.values()])
        by_task = dict(zip(self._chosen, scores.tolist(), strict=True))
        found = {"meta_step": step, "score": float(np.mean(scores)), "tasks": by_task}
        write_atomically(own / SCORE, json.dumps(found, indent=1, allow_nan=False) + "\n")
        return read_probe(own)


def export(
    workdir: str, output: str, meta_step: int | None = None, evaluations: Sequence[str] = ()
) -> dict[str, Any]:
    """Write an average rule of a run to a rule file; return its provenance.

    The rule is that of a meta-step's probe or checkpoint, or of the start (0); by default of the
    best probe, or the newest good one if there is no probe. Workdirs of evaluations of that rule
    are for its card.

    Raises:
      ValueError: if the workdir is not that of a discovery run, or has no such rule; if a probe is
        damaged; if a folder is not that of an evaluation of the rule.
      OSError, disco.RuleFileError: if the rule cannot be read.
    """
    folder = pathlib.Path(workdir)
    settings = _settings(folder)
    probe = best_probe([x for x in read_probes(folder) if meta_step in (None, x.meta_step)])
    which = "*" if meta_step is None else _number(meta_step)
    kept = sorted(folder.glob(f"rules/{which}.npz")) if probe is None else [probe.rule]
    if meta_step == 0:
        rule, found = make_rule(settings, folder), rule_provenance(settings, 0, {})
    elif kept:
        rule, header = _newest_good(kept)
        found = header["provenance"] | ({} if probe is None else {"probe_score": probe.score})
    else:
        there = sorted(int(x.stem) for x in folder.glob("rules/*.npz") if x.stem.isdecimal())
        reason = (
            f"of meta-step {meta_step}; it has {len(there)}, of {there[0]} to {there[-1]}"
            if there
            else "yet. A run writes one with each checkpoint; runs of version 0.1.0, which wrote"
            " none, do when launch.discover continues them, to more --config.meta_steps"
        )
        raise ValueError(f"{str(folder)!r} has no rule {reason}.")
    if evaluations:
        path = pathlib.Path(output)
        merged = merge([read_manifest(pathlib.Path(name)) for name in evaluations])
        card = rule_card(path.stem, fingerprint(rule), found, merged)
        write_atomically(path.with_suffix(".md"), card)
    disco.save(rule, output, found)
    return found


def _newest_good(kept: Sequence[pathlib.Path]) -> tuple[disco.DiscoveredRule, dict[str, Any]]:
    """Return the last of some rules that can be read, with its header; raise the oldest's error."""
    for file in reversed(kept[1:]):
        try:
            return formula_rule.read(file)
        except (OSError, disco.RuleFileError) as error:
            logging.warning("%s The one before it is exported.", error)
    return formula_rule.read(kept[0])


def _settings(folder: pathlib.Path) -> DiscoveryRunConfig:
    """Return the settings of the run in a folder."""
    file = folder / workdirs.CONFIG
    try:
        return from_json(DiscoveryRunConfig, read_object(file))
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{str(folder)!r} is not the workdir of a discovery run: {file}: {error}"
        ) from error
