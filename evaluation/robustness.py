"""How much a rule's agents depend on their settings (DiscoRL, Extended Data Figure 1).

Each of these is varied alone, for the rule and for actor-critic:

- the size of the agent's network: all of its widths;
- the fraction of replayed trajectories in a batch, beside as many fresh ones;
- the optimiser, in 36 combinations: Adam or RMSProp, three learning rates, three weight decays, a
  bound on the gradient's norm or none.

The paper does so on Ms Pacman, and has Muesli where this has actor-critic. Which values it takes it
says in its figure only; these are ours. An agent with other settings is a contender of its own, and
its runs are those of any evaluation.

    index.html       three plots for each task
    robustness.csv   mean score and standard error of each setting
    manifest.json, runs/    as in an evaluation
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import environments
from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from common.atomic import write_atomically
from evaluation import page, reports, statistics
from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, Contender, make_contenders, with_replay
from evaluation.evaluate import circumstances, make_runs
from evaluation.executors import Executor, OpenProgress
from evaluation.results import History

BASELINE = "actor_critic"
WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
REPLAY_RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9)
OPTIMIZER_KINDS = ("adam", "rmsprop")
LEARNING_RATES = (1 / 3, 1.0, 3.0)  # Times the contender's own.
WEIGHT_DECAYS = (0.0, 0.01, 0.1)
GRADIENT_NORMS = (0.0, 0.1)  # 0 for no bound.

SIZE, REPLAY, OPTIMIZER = "network size", "replay", "optimiser"


@dataclasses.dataclass(frozen=True)
class Variation:
    """One contender with other settings than its own.

    Attributes:
      of: the contender's name.
      axis: `SIZE`, `REPLAY` or `OPTIMIZER`.
      place: of the setting along its axis; 0 for optimisers, which have no order.
      setting: for a reader.
      contender: with it. Variations of equal settings share one.
    """

    of: str
    axis: str
    place: float
    setting: str
    contender: Contender


def robustness(
    rule: str,
    tasks: Sequence[environments.Environment],
    config: EvaluationConfig,
    folder: pathlib.Path,
    provenance: Mapping[str, Any],
    executor: Executor | None,
    runs_per_job: int | None,
    open_progress: OpenProgress,
) -> list[pathlib.Path]:
    """Evaluates a rule and actor-critic with all settings; returns the files of the report.

    Args:
      rule: a rule file, or name of a rule.
      tasks: to learn.
      config: of the evaluation; actor-critic has the middle one of its learning rates.
      folder: for all results. Runs that are there are not repeated.
      provenance: to note; JSON values.
      executor: see `evaluation.evaluate.evaluate`.
      runs_per_job: likewise.
      open_progress: likewise.

    Raises:
      JobsFailedError, OSError, ValueError: as `evaluation.evaluate.evaluate` does.
    """
    config = dataclasses.replace(config, strip_frames=0)
    random, *_ = make_contenders([], dataclasses.replace(config, baselines=()))
    varied = variations(rule, config)
    histories = make_runs(
        tasks,
        [*{x.contender.name: x.contender for x in varied}.values(), random],
        config,
        folder,
        {**provenance, **circumstances()},
        executor,
        runs_per_job,
        open_progress,
    )
    rows = _rows(tasks, varied, histories)
    write_atomically(
        folder / "robustness.csv", pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    )
    title = f"Robustness of {varied[0].of}"
    sections = [
        (task.name, _section([r for r in rows if r["task"] == task.name], config)) for task in tasks
    ]
    files = reports.write(folder, [], title=title, first=sections, reproduced=False)
    return [*files, folder / "robustness.csv"]


def variations(rule: str, config: EvaluationConfig) -> list[Variation]:
    """All settings, of the rule and of actor-critic.

    Raises:
      FileNotFoundError, disco.RuleFileError: if the rule cannot be read.
      ValueError: if an agent's configuration is impossible.
    """
    rates = sorted(config.baseline_learning_rates) or [config.agent.learning_rate]
    config = dataclasses.replace(
        config, baselines=(BASELINE,), baseline_learning_rates=(rates[len(rates) // 2],)
    )
    contenders = [x for x in make_contenders([rule], config) if x.name != RANDOM]
    found: list[Variation] = []
    for own in contenders[::-1]:
        made: dict[AgentConfig, Contender] = {}
        for axis, place, setting, agent in _settings(own.agent):
            if agent not in made:
                name = f"{own.name}, {setting}"
                made[agent] = dataclasses.replace(own, name=name, agent=agent)
            found.append(Variation(own.name, axis, place, setting, made[agent]))
    return found


def _settings(agent: AgentConfig) -> Iterator[tuple[str, float, str, AgentConfig]]:
    """Axis, place, setting, and the agent with it."""
    for width in WIDTHS:
        network = _scaled(agent.network, width)
        yield SIZE, width, f"width x{width:g}", dataclasses.replace(agent, network=network)
    for replaying in dict.fromkeys(with_replay(agent, ratio) for ratio in REPLAY_RATIOS):
        share = replaying.num_replayed / replaying.batch_size  # As near as whole numbers come.
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
    """With other widths, of one unit at least."""

    def scaled(width: int) -> int:
        return max(1, round(factor * width)) if width else 0

    return dataclasses.replace(
        network,
        torso=tuple(map(scaled, network.torso)),
        channels=tuple(map(scaled, network.channels)),
        memory=scaled(network.memory),
        model=scaled(network.model),
        head=tuple(map(scaled, network.head)),
    )


def _rows(
    tasks: Sequence[environments.Environment],
    varied: Sequence[Variation],
    histories: Mapping[str, History],
) -> list[dict[str, Any]]:
    rows = []
    for (i, task), variation in itertools.product(enumerate(tasks), varied):
        history = histories[variation.contender.name]
        scores = history.window.mean_return[i]
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
                "not finite": int(np.sum(~history.is_finite[i])),
            }
        )
    return rows


def _section(rows: Sequence[Mapping[str, Any]], config: EvaluationConfig) -> str:
    parts = [page.paragraph(f"Score: {config.score_definition}; {config.seeds} seeds.")]
    titles = {
        SIZE: "widths of the network, times those of the settings",
        REPLAY: "fraction of replayed trajectories",
    }
    for axis, title in titles.items():
        drawn = page.points(_along(rows, axis), title, "score", log_x=axis == SIZE)
        parts += [f"<h3>{axis.capitalize()}</h3>", drawn]
    ranked, first = _along(rows, OPTIMIZER), rows[0]["contender"]
    combinations = [r for r in rows if (r["contender"], r["axis"]) == (first, OPTIMIZER)]
    for points in ranked.values():
        points.sort(key=lambda point: -point[1])
        points[:] = [(i, *point[1:]) for i, point in enumerate(points, 1)]
    parts += [
        "<h3>Optimisers</h3>",
        page.paragraph(
            f"{len(combinations)} combinations of optimiser, learning rate, weight"
            " decay and bound on the gradient's norm, of each the best first.",
            "quiet",
        ),
        page.points(ranked, "rank", "score"),
        page.data_table(pd.DataFrame(rows).drop(columns=["task", "place"])),
    ]
    return "".join(parts)


def _along(rows: Sequence[Mapping[str, Any]], axis: str) -> dict[str, list[page.Point]]:
    """Of each contender (place, score, standard error, setting); without those without score."""
    found: dict[str, list[page.Point]] = {row["contender"]: [] for row in rows}
    for row in rows:
        if row["axis"] == axis and row["score"] == row["score"]:
            point = (row["place"], row["score"], row["standard error"], row["setting"])
            found[row["contender"]].append(point)
    return found
