"""Probes: how well fresh agents learn a discovery's own tasks by its average rule, along the way.

Rewards per validation step hardly tell a good rule from a bad one, as the agents of a population
learn by many versions of the rule. So every `probe.interval` meta-steps, fresh agents learn some
tasks of the discovery by the average rule for a whole lifetime. The score is the mean over these
tasks, each between the random policy's (0) and the reference's (1; `evaluation.scoring.references`)
and at least -1. `launch.export` writes the rule with the best one. The files are described in
`evaluation.report.probe_scores`.
"""

import json
import logging
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import disco
import environments
from disco_common import stopping
from disco_common.files import write_atomically
from evaluation.config import EvaluationConfig
from evaluation.contenders import rule_contenders
from evaluation.evaluate import Execution, make_runs
from evaluation.report.probe_scores import FOLDER, RULE, SCORE, Probe, read_one
from evaluation.rules import fingerprint
from evaluation.scoring import references
from evaluation.scoring.normalization import by_references
from evaluation.scoring.references import Reference
from evaluation.studies import ablations
from launch.support.settings import DiscoverSettings, ProbeSettings

_log = logging.getLogger(__name__)


class Probes:
    """The probes of a discovery, in its workdir.

    Attributes:
      interval: meta-steps between probes; 0 for none.
    """

    def __init__(self, settings: DiscoverSettings, tasks: Sequence[environments.Environment]):
        """Choose the tasks. If none of the discovery's has reference scores, there is a warning.

        Args:
          settings: of the discovery.
          tasks: of the discovery.

        Raises:
          ValueError: if there are probes, and their budget is too short for an update.
        """
        wanted = settings.probe.interval
        self._chosen = _choose(settings.probe, tasks) if wanted else {}
        self._config = EvaluationConfig()
        self.interval = wanted if self._chosen else 0
        if self.interval:
            self._config = EvaluationConfig(
                agent=settings.agent,
                seeds=settings.probe.seeds,
                budget=settings.probe.budget,
                baselines=(),
                rule_learning_rate=settings.agent.learning_rate,
                strip_frames=0,
            )
        elif wanted:
            _log.warning("No task of the suite has reference scores: there are no probes.")

    def make(
        self,
        folder: pathlib.Path,
        step: int,
        rule: disco.DiscoveredRule,
        provenance: Mapping[str, Any],
    ) -> Probe:
        """Make or continue a probe.

        Args:
          folder: workdir of the discovery, locked.
          step: the meta-steps so far.
          rule: the average rule.
          provenance: for the rule's file.

        Raises:
          CheckpointError, OSError: if something cannot be written.
          StoppedBySignal: if a signal stopped it, after a checkpoint was saved.
        """
        own = folder / FOLDER / f"{step:08d}"
        file = own / RULE
        if file.exists() and fingerprint(ablations.load(file)) != fingerprint(rule):
            _log.warning("%s is of another rule than the run has now: probed again.", own)
            shutil.rmtree(own)
        own.mkdir(parents=True, exist_ok=True)
        if (own / SCORE).exists():
            return read_one(own)
        disco.save(rule, file, provenance)
        contenders = rule_contenders([str(file)], self._config)
        tasks = [task for task, _ in self._chosen.values()]
        curves = make_runs(tasks, contenders, self._config, own, provenance, Execution())
        stopping.raise_if_requested()
        returns = curves[contenders[0].name].window.mean_return
        scores = by_references(returns, [scale for _, scale in self._chosen.values()])
        by_task = dict(zip(self._chosen, scores.tolist(), strict=True))
        found = {"meta_step": step, "score": float(np.mean(scores)), "tasks": by_task}
        write_atomically(own / SCORE, json.dumps(found, indent=1, allow_nan=False) + "\n")
        return read_one(own)


def _choose(
    settings: ProbeSettings, tasks: Sequence[environments.Environment]
) -> dict[str, tuple[environments.Environment, Reference]]:
    """Return the tasks to learn, evenly spaced among those with reference scores."""
    known, _ = references.of_tasks(tasks, settings.budget, references.shipped())
    with_scale = [task for task in tasks if task.name in known]
    if not with_scale:
        return {}
    number = min(settings.num_tasks, len(with_scale))
    places = np.linspace(0, len(with_scale) - 1, number).round().astype(int)
    return {with_scale[i].name: (with_scale[i], known[with_scale[i].name]) for i in places}
