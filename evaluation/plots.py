"""Learning curves, of agents and of rules, as PNG.

Names of rules, tasks and points are drawn literally, whatever they look like.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from common.terminal import printable
from evaluation import statistics
from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, Contender
from evaluation.results import History
from evaluation.scores import Summary, coarsen, normalized_curves

# Okabe and Ito's colours, which the colour-blind can tell apart. Rules take the warm ones.
_RULE_COLOURS = ("#D55E00", "#CC79A7", "#E69F00", "#F0E442")
_BASELINE_COLOURS = ("#0072B2", "#009E73", "#56B4E9")
_RANDOM_COLOUR = "#888888"
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # Names may have dollar signs.
}


def learning_curves(
    summary: Summary,
    contenders: Sequence[Contender],
    histories: Mapping[str, History],
    config: EvaluationConfig,
) -> bytes:
    """One panel per task: mean return of each contender, with a band of a standard error.

    Intervals of a curve are joined until episodes ended in each.
    """
    num_tasks = len(summary.tasks)
    columns = min(num_tasks, max(2, math.ceil(math.sqrt(num_tasks))))
    rows = math.ceil(num_tasks / columns)
    with mpl.rc_context(_STYLE):
        size = (max(5.5, 2.5 * columns), 1.8 * rows + 1.1)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        for panel in panels[num_tasks:]:
            panel.set_visible(False)
        prefix, colours = _common_prefix(summary.tasks), colours_of(contenders)
        for i, (task, panel) in enumerate(zip(summary.tasks, panels, strict=False)):
            panel.set_title(printable(task.removeprefix(prefix)))
            updates, joined = coarsen(
                [histories[contender.name] for contender in contenders],
                np.arange(num_tasks) == i,
            )
            steps, lines = updates * config.agent.steps_per_update, []
            for contender, colour, episodes in zip(contenders, colours, joined, strict=True):
                returns = episodes.mean_return[0].T
                middle, error = statistics.mean(returns), statistics.standard_error(returns)
                low, high = middle - error, middle + error
                lines.append(_line(panel, contender, steps, middle, low, high, colour))
            _format(panel)
            if i + columns >= num_tasks:
                panel.xaxis.set_tick_params(labelbottom=True)
                panel.set_xlabel("environment steps")
        figure.supylabel("mean episode return")
        title = printable(prefix.rstrip("/")) or "Learning curves"
        figure.suptitle(f"{title}: mean ± standard error over {config.seeds} seeds")
        _legend(figure, lines, [contender.name for contender in contenders])
        return _png(figure)


def aggregate(
    summary: Summary,
    contenders: Sequence[Contender],
    histories: Mapping[str, History],
    config: EvaluationConfig,
) -> bytes:
    """The mean over tasks of the normalised return, with the bootstrap's interval."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        panel = figure.subplots()
        shown = {contender.name: histories[contender.name] for contender in contenders}
        updates, curves = normalized_curves(summary, shown, config)
        steps = updates * config.agent.steps_per_update
        lines = []
        for contender, colour in zip(contenders, colours_of(contenders), strict=True):
            middle, low, high = curves[contender.name]
            lines.append(_line(panel, contender, steps, middle, low, high, colour))
        panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        panel.axhline(0.0, color="black", linewidth=0.8, linestyle=":")
        _format(panel)
        panel.set_xlabel("environment steps")
        panel.set_ylabel("normalised return (0 random, 1 best baseline)")
        panel.set_title(
            f"Mean over {summary.counted.sum()} tasks, {config.seeds} seeds,"
            f" {config.confidence:.0%} bootstrap interval"
        )
        _legend(figure, lines, [contender.name for contender in contenders])
        return _png(figure)


# Of a discovery's reports, with the panel's title; see `meta.run.summarize`.
DISCOVERY_PANELS = {
    "meta_return": "reward per validation step",
    "policy_entropy": "entropy of the agents' policies (nats)",
    "target_kl": "KL(target network || policy target)",
    "meta_gradient_norm": "norm of the agents' meta-gradients",
}


def discovery_curves(reports: Sequence[Mapping[str, Any]]) -> bytes:
    """How a discovery went: means over the population by meta-step.

    Args:
      reports: as a run's `metrics.jsonl` has them. The first panel has a band besides, from the
        lower to the upper quartile of the agents.
    """
    steps = [report["meta_step"] for report in reports]
    by_agent = [report["agents"]["meta_return"] for report in reports]
    finite = [[x for x in returns if x is not None] or [np.nan] for returns in by_agent]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 5.0), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True).ravel()
        for panel, (name, title) in zip(panels, DISCOVERY_PANELS.items(), strict=True):
            values = [np.nan if report[name] is None else report[name] for report in reports]
            marker = "." if len(steps) == 1 else None
            panel.plot(steps, values, color=_RULE_COLOURS[0], linewidth=1.3, marker=marker)
            panel.set_title(title)
            _format(panel)
        low, high = (np.array([np.quantile(x, q) for x in finite]) for q in (0.25, 0.75))
        panels[0].fill_between(steps, low, high, color=_RULE_COLOURS[0], alpha=0.18, linewidth=0)
        for panel in panels[2:]:
            panel.set_xlabel("meta-steps")
        figure.suptitle("Discovery: mean over the agents; band: their middle half")
        return _png(figure)


def sweep_curves(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """How the discoveries of a sweep went: the population's mean reward by meta-step.

    Args:
      points: each one's reports (see `discovery_curves`) by its name. A point of more than 20
        reports is drawn as means over neighbouring ones.
    """
    colours = (*_BASELINE_COLOURS, *_RULE_COLOURS)
    styles = ("-", "--", ":", "-.")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        panel, drawn = figure.subplots(), []
        for i, reports in enumerate(points.values()):
            known = [x for x in reports if x["meta_return"] is not None]
            parts = np.array_split(np.arange(len(known)), max(1, min(len(known), 20)))
            drawn += panel.plot(
                [known[part[-1]]["meta_step"] for part in parts if part.size],
                [np.mean([known[k]["meta_return"] for k in part]) for part in parts if part.size],
                color=colours[i % len(colours)],
                linestyle=styles[i // len(colours) % len(styles)],
                linewidth=1.3,
                marker="." if len(parts) == 1 else None,
            )
        _format(panel)
        panel.set_xlabel("meta-steps")
        panel.set_ylabel(DISCOVERY_PANELS["meta_return"])
        panel.set_title("Discoveries: mean over the agents")
        _legend(figure, drawn, list(points))
        return _png(figure)


def _line(panel, contender: Contender, steps, middle, low, high, colour) -> Line2D:
    is_discovered = contender.kind == "discovered"
    (line,) = panel.plot(
        steps,
        middle,
        color=colour,
        linewidth=1.8 if is_discovered else 1.3,
        linestyle="--" if contender.kind == RANDOM else "-",
        marker="." if len(steps) == 1 else None,
        zorder=3 if is_discovered else 2,
    )
    panel.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
    return line


def _legend(figure: Figure, lines: Sequence[Line2D], names: Sequence[str]) -> None:
    """Once, below all panels, in as many columns as the width has room for.

    Args:
      figure: to put it in.
      lines: to explain.
      names: of each. They are not the lines' own labels, of which Matplotlib leaves out those that
        start with an underscore.
    """
    labels = [printable(name) for name in names]
    room = max(1, int(figure.get_figwidth() / (0.4 + 0.055 * max(map(len, labels)))))
    rows = math.ceil(len(labels) / room)
    columns = math.ceil(len(labels) / rows)  # Rows of like length.
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(lines, labels, loc="outside lower center", ncols=columns)


def _format(panel) -> None:
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.xaxis.set_major_locator(MaxNLocator(4))
    panel.yaxis.set_major_locator(MaxNLocator(4))
    panel.set_xlim(left=0)


def colours_of(contenders: Sequence[Contender]) -> list[str]:
    """A colour for each: warm for rules, cold for baselines, grey for the random policy."""
    rules, baselines = iter(_cycle(_RULE_COLOURS)), iter(_cycle(_BASELINE_COLOURS))
    by_kind = {"discovered": rules, "random": iter(_cycle((_RANDOM_COLOUR,)))}
    return [next(by_kind.get(contender.kind, baselines)) for contender in contenders]


def _cycle(colours: Sequence[str]):
    while True:
        yield from colours


def _common_prefix(names: Sequence[str]) -> str:
    """The suite's name and slash, if all tasks are of one."""
    prefixes = {name.partition("/")[0] + "/" for name in names if "/" in name}
    is_common = len(prefixes) == 1 and all("/" in name for name in names) and len(names) > 1
    return prefixes.pop() if is_common else ""


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
