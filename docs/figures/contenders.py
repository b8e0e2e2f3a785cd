"""Draws `contenders.svg`, the README's figure, and writes the tables of the page of contenders.

    python docs/figures/contenders.py

Both are of the scores in docs/measurements/contenders/, a folder for each suite with files of
`launch.report` (`evaluation.report.evaluation_files`) and `compute.csv`: what `results.json` of the
evaluations says of each contender's steps and parameters. The results page draws the same panels.
"""

import pathlib
import re

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_HERE = pathlib.Path(__file__).parent
_PAGE = _HERE.parent / "measurements" / "contenders.md"
SCORES = _PAGE.with_suffix("")
OURS = "three_families"
TITLES = {"grid_heldout": "23 held-out grid-worlds", "gymnax": "7 gymnax tasks"}
_RULE, _OTHER = "#D55E00", "#0072B2"
_INK = "#767676"  # Legible on white and on black.
_SHOWN = "ppo ppo_cleanrl dpo impala actor_critic hand_set_tuned muesli muesli_tuned dice".split()


def main() -> None:
    """Write the figure and the tables."""
    matplotlib.rcParams["svg.hashsalt"] = "contenders"  # The same file from the same numbers.
    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    for panel, suite in zip(figure.subplots(1, len(TITLES)), TITLES, strict=True):
        draw(panel, suite)
    figure.savefig(_HERE / "contenders.svg", transparent=True, metadata={"Date": None})
    page = _PAGE.read_text(encoding="utf-8")
    for suite in TITLES:
        tables = f"{aggregates_table(suite)}\n\n{tasks_table(suite)}"
        start, end = f"<!-- {suite} -->", f"<!-- end of {suite} -->"
        pattern = re.compile(f"{start}.*{end}", re.DOTALL)
        page = pattern.sub(lambda _, x=f"{start}\n\n{tables}\n\n{end}": x, page)
    _PAGE.write_text(page, encoding="utf-8")


def read(suite: str, name: str) -> pd.DataFrame:
    """Return a table of a suite's scores."""
    return pd.read_csv(SCORES / suite / f"{name}.csv")


def interquartile_means(suite: str) -> pd.DataFrame:
    """Return a row with an IQM and the ends of its intervals for each contender, best first."""
    found = read(suite, "aggregates")
    found = found[(found["aggregate"] == "IQM") & (found["contender"] != "random")]
    return found.set_index("contender").sort_values("value", ascending=False)


def draw(panel: Axes, suite: str) -> None:
    """Draw a bar for each contender's IQM, the highest on top, with its intervals.

    The thick one is over seeds, the thin one over tasks and seeds. A rule that is not above the
    random policy has no colour of its own.
    """
    found = interquartile_means(suite).iloc[::-1]
    for row, (name, own) in enumerate(found.iterrows()):
        colour = _RULE if name == OURS and own["value"] > 0.0 else _OTHER
        panel.barh(row, own["value"], color=colour, alpha=0.35, height=0.7, linewidth=0)
        panel.plot([own["low"], own["high"]], [row, row], color=colour, linewidth=3.0)
        wide = [own["low_over_tasks"], own["high_over_tasks"]]
        panel.plot(wide, [row, row], color=colour, linewidth=1.0)
        panel.plot(own["value"], row, "o", color=colour, markersize=4.5)
    panel.set_yticks(range(len(found)), found.index, fontsize=8, color=_INK)
    panel.set_ylim(-0.6, len(found) - 0.4)
    panel.tick_params(axis="x", labelsize=8, colors=_INK)
    panel.set_xlim(0, 1.2)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(_INK)
    panel.set_title(TITLES[suite], fontsize=10, color=_INK)
    panel.set_xlabel("IQM; 0 random, 1 reference", fontsize=9, color=_INK)


def aggregates_table(suite: str) -> str:
    """Return the table of a suite's contenders, the one with the highest IQM first."""
    comparisons = read(suite, "comparisons")
    comparisons = comparisons[comparisons["contender"] == OURS].set_index(["other", "statistic"])
    compute = read(suite, "compute").set_index("contender")
    rows = []
    for name, own in interquartile_means(suite).iterrows():
        cells = [f"`{name}`", f"**{own['value']:.2f}**", *_intervals(own)]
        for statistic in ("difference of means", "probability of improvement"):
            if name == OURS:
                cells += ["", ""]
                continue
            found = comparisons.loc[(name, statistic)]
            cells += [f"{found['value']:.2f} {_intervals(found)[0]}", _intervals(found)[1]]
        steps, parameters = compute.loc[name, ["gradient_steps", "parameters"]]
        rows.append([*cells, f"{steps:,.0f}", str(parameters)])
    header = ["", "IQM", "over seeds", "over tasks", f"`{OURS}` minus it, mean", "over tasks"]
    header += [f"P(`{OURS}` is better)", "over tasks", "gradient steps", "parameters"]
    return _table(header, rows)


def tasks_table(suite: str) -> str:
    """Return the mean returns and standard errors of the main contenders on a suite's tasks."""
    found = read(suite, "scores")
    found = found[found["scale"] == "return"]
    names = [name for name in (OURS, *_SHOWN, "random") if name in set(found["contender"])]
    groups = found.groupby(["task", "contender"], sort=False)["score"]
    mean, error = groups.mean(), groups.sem()
    rows = []
    for task in dict.fromkeys(found["task"]):
        means = {name: mean[task, name] for name in names}
        best = max(means[name] for name in names[:-1])
        cells = [task.partition("/")[2]]
        for name in names:
            digits = 1 if abs(best) >= 10 else 2
            cell = f"{means[name]:.{digits}f} ± {error[task, name]:.{digits}f}"
            is_best = name != "random" and means[name] == best > means["random"]
            cells.append(f"**{cell}**" if is_best else cell)
        rows.append(cells)
    return _table(["task", *(f"`{name}`" for name in names)], rows)


def _intervals(row: pd.Series) -> tuple[str, str]:
    """Return the intervals over seeds, and over tasks and seeds."""
    seeds, tasks = (f"[{row[f'low{x}']:.2f}, {row[f'high{x}']:.2f}]" for x in ("", "_over_tasks"))
    return seeds, tasks


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
