"""Robustness of a rule to the settings of its agents (DiscoRL, Extended Data Figure 1).

Each of these is varied alone, for the rule and for those of the config's baselines that learn by a
rule (PPO and DPO do not). The grid is the same for all, around each one's tuned settings:

- the size of the agent's network: all of its widths;
- the fraction of replayed trajectories in a batch, with a constant number of fresh ones;
- the optimiser, in 36 combinations: Adam or RMSProp, three learning rates (a third of its own, its
  own, three times its own), three weight decays, with or without a bound on the gradient's norm.

The paper varies them on Ms Pacman, and compares with Muesli. It shows its values only in the
figure; the values here are ours. Each setting is a contender of its own, whose runs are stored like
those of any evaluation.

    index.html       three figures for each task, which are files beside it, too
    robustness.csv   mean score and standard error of each setting
    manifest.json, runs/    as in an evaluation
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco_common.files import write_atomically
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    Contender,
    random_policy,
)
from evaluation.evaluate import Experiment, make_runs
from evaluation.report.drawing import Curve, Drawing, draw_line_panels
from evaluation.report.evaluation_files import to_csv
from evaluation.report.html_report import write_report
from evaluation.report.page import Section
from evaluation.report.tables import format_number
from evaluation.results import LearningCurves
from evaluation.scoring import statistics

WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
REPLAY_RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9)
OPTIMIZER_KINDS = ("adam", "rmsprop")
LEARNING_RATES = (1 / 3, 1.0, 3.0)  # Times the contender's own.
WEIGHT_DECAYS = (0.0, 0.01, 0.1)
GRADIENT_NORMS = (0.0, 0.1)  # 0: no bound.

_LAYERS = ("torso", "channels", "head")

SIZE, REPLAY, OPTIMIZER = "network size", "replay", "optimiser"


@dataclasses.dataclass(frozen=True)
class Variation:
    """A contender with one setting changed.

    Attributes:
      of: name of the contender that is varied.
      axis: `SIZE`, `REPLAY` or `OPTIMIZER`.
      place: position of the setting on its axis; 0 for optimisers, which have no order.
      setting: description of the setting.
      contender: with this setting. Variations of equal settings share one.
    """

    of: str
    axis: str
    place: float
    setting: str
    contender: Contender


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobustnessSection(Section):
    """The section of a task: the score by network size, by replay, by optimiser.

    Attributes:
      score_definition: one clause.
      num_seeds: runs of each setting.
      num_combinations: number of optimisers.
      rows: a table of all settings.
    """

    template: ClassVar[str] = "robustness.html"
    score_definition: str
    num_seeds: int
    num_combinations: int
    rows: list[dict[str, Any]]


def robustness(experiment: Experiment, contenders: Sequence[Contender]) -> list[pathlib.Path]:
    """Evaluate a rule and baselines with all settings; return the files of the report.

    The rule is the last contender. Finished runs in the folder are not repeated.

    Raises:
      JobsFailedError, OSError, ValueError: as `evaluation.evaluate.evaluate` does.
    """
    config = experiment.config
    tasks, folder = experiment.tasks, experiment.folder
    varied = variations(contenders)
    own = {x.contender.name: x.contender for x in varied}
    curves = make_runs(experiment, [*own.values(), random_policy(config)])
    rows = _rows(tasks, varied, curves)
    write_atomically(folder / "robustness.csv", to_csv(rows))
    title = f"Robustness of {varied[0].of}"
    sections = [
        _section(task.name, [row for row in rows if row["task"] == task.name], config)
        for task in tasks
    ]
    files = write_report(folder, [], title=title, first=sections)
    return [*files, folder / "robustness.csv"]


def variations(contenders: Sequence[Contender]) -> list[Variation]:
    """Return all variations of the contenders that learn by a rule, of the last one first.

    Raises:
      ValueError: if an agent's configuration is impossible.
    """
    found: list[Variation] = []
    for own in contenders[::-1]:
        of_own = getattr(own.configured.config, "agent", None)
        if not isinstance(of_own, RuleAgentConfig):
            continue
        made: dict[RuleAgentConfig, Contender] = {}
        for axis, place, setting, agent in _settings(of_own):
            if agent not in made:
                made[agent] = own.changed(f"{own.name}, {setting}", agent=agent)
            found.append(Variation(own.name, axis, place, setting, made[agent]))
    return found


def _settings(agent: RuleAgentConfig) -> Iterator[tuple[str, float, str, RuleAgentConfig]]:
    """Yield axis, place and description of each setting, and the agent with it."""
    for width in WIDTHS:
        network = _scaled(agent.network, width)
        yield SIZE, width, f"width x{width:g}", dataclasses.replace(agent, network=network)
    for replaying in dict.fromkeys(agent.with_replay(ratio) for ratio in REPLAY_RATIOS):
        share = replaying.num_replayed / replaying.batch_size  # The ratio after rounding.
        yield REPLAY, share, f"replay {share:.2g}", replaying
    choices = itertools.product(OPTIMIZER_KINDS, LEARNING_RATES, WEIGHT_DECAYS, GRADIENT_NORMS)
    for kind, rate, decay, norm in choices:
        learning_rate = rate * agent.learning_rate
        setting = f"{kind}, rate {learning_rate:.2g}, decay {decay:g}, norm {norm or 'any'}"
        changed = dataclasses.replace(
            agent,
            optimizer_kind=kind,
            learning_rate=learning_rate,
            weight_decay=decay,
            max_gradient_norm=norm,
        )
        yield OPTIMIZER, 0.0, setting, changed


def _scaled(network: NetworkConfig, factor: float) -> NetworkConfig:
    """Return the network with all widths scaled, to at least one unit."""

    def scaled(width: int) -> int:
        return max(1, round(factor * width)) if width else 0

    widths = {name: scaled(getattr(network, name)) for name in ("memory", "model")}
    layers = {name: tuple(map(scaled, getattr(network, name))) for name in _LAYERS}
    return dataclasses.replace(network, **widths, **layers)


def _rows(
    tasks: Sequence[environments.Environment],
    varied: Sequence[Variation],
    curves: Mapping[str, LearningCurves],
) -> list[dict[str, Any]]:
    """Return a row for each task and variation."""
    rows = []
    for (i, task), variation in itertools.product(enumerate(tasks), varied):
        own = curves[variation.contender.name]
        scores = own.window.mean_return[i]
        rows.append(
            {
                "task": task.name,
                "contender": variation.of,
                "axis": variation.axis,
                "place": variation.place,
                "setting": variation.setting,
                "score": float(statistics.mean(scores)),
                "standard error": float(statistics.standard_error(scores)),
                "runs": int(np.isfinite(scores).sum()),
                "not finite": int(np.sum(~own.is_finite[i])),
            }
        )
    return rows


def _section(
    task: str, rows: Sequence[Mapping[str, Any]], config: EvaluationConfig
) -> RobustnessSection:
    """Return the section of a task, given its name and its rows."""
    names = list(dict.fromkeys(row["contender"] for row in rows))

    def figure(axis: str, xlabel: str, log: str = "") -> Drawing:
        curves = {}
        for name in names:
            points = [
                (row["place"], row["score"], row["standard error"])
                for row in rows
                if (row["contender"], row["axis"]) == (name, axis)
            ]
            if axis == OPTIMIZER:  # By rank; without a score, they are the last.
                points.sort(key=lambda point: np.nan_to_num(-point[1], nan=np.inf))
                points = [(rank, *point[1:]) for rank, point in enumerate(points, 1)]
            x, y, error = np.array(points, float).T
            curves[name] = Curve(x, y, y - error, y + error)
        return draw_line_panels({"": curves}, xlabel=xlabel, ylabel="score", log={"": log})

    return RobustnessSection(
        name=task,
        plots={
            "sizes": figure(SIZE, "widths of the network, relative to the settings'", "x"),
            "replay": figure(REPLAY, "fraction of replayed trajectories"),
            "optimizers": figure(OPTIMIZER, "rank"),
        },
        score_definition=config.score_definition,
        num_seeds=config.seeds,
        num_combinations=sum(
            (row["contender"], row["axis"]) == (names[0], OPTIMIZER) for row in rows
        ),
        rows=[
            {
                name: format_number(x) if isinstance(x, float) else x
                for name, x in row.items()
                if name not in ("task", "place")
            }
            for row in rows
        ],
    )
