"""Draws `contenders.svg`, the README's figure, from the tables of docs/measurements/contenders.md.

The results page draws the same panels.

python docs/figures/contenders.py
"""

import itertools
import pathlib
import re

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_HERE = pathlib.Path(__file__).parent
_TABLES = _HERE.parent / "measurements" / "contenders.md"
_ENDS = r"\[(-?[\d.]+), (-?[\d.]+)\]"
_INTERVAL = re.compile(rf"(-?[\d.]+) {_ENDS}(?:, tasks {_ENDS})?")
_OURS = "three_families"
_RULE, _OTHER = "#D55E00", "#0072B2"
_FEWEST_ROWS = 6  # That a panel has room for, so that bars are not thicker than elsewhere.
_INK = "#767676"  # Legible on white and on black.


def main() -> None:
    """Write the figure."""
    matplotlib.rcParams["svg.hashsalt"] = "contenders"  # The same file from the same numbers.
    figure = Figure(figsize=(8.6, 2.9), layout="constrained")
    panels = figure.subplots(1, 3)
    page = _TABLES.read_text(encoding="utf-8")
    titles = ("23 held-out grid-worlds", "7 gymnax tasks")
    for panel, title, table in zip(panels, titles, iqm_tables(page), strict=False):
        draw(panel, table)
        panel.set_title(title, fontsize=10, color=_INK)
        panel.set_xlabel("IQM; 0 random, 1 optimum", fontsize=9, color=_INK)
    draw(panels[2], relative_to_ppo(page))
    panels[2].set_title("4 games of MinAtar", fontsize=10, color=_INK)
    panels[2].set_xlabel("return; 0 random, 1 PPO", fontsize=9, color=_INK)
    figure.savefig(_HERE / "contenders.svg", transparent=True, metadata={"Date": None})


def iqm_tables(page: str) -> list[dict[str, tuple[float, ...]]]:
    """Return, of the page's first two tables, each contender's IQM and the intervals' ends.

    The second interval is that over tasks, where a table has one.
    """
    found = []
    tables = re.finditer(r"^\| +\| (.*) \|\n\|[- |]*\n\| IQM \| (.*) \|$", page, re.M)
    for match in itertools.islice(tables, 2):
        names = [name.strip("` ") for name in match[1].split("|")]
        cells = [_INTERVAL.search(cell) for cell in match[2].split("|")]
        values = {n: c.groups() for n, c in zip(names, cells, strict=True) if c and n != "random"}
        found.append({n: tuple(float(x) for x in v if x) for n, v in values.items()})
    if not all(_OURS in table for table in found):
        raise ValueError(f"{_TABLES} begins with tables without {_OURS}.")
    return found


def relative_to_ppo(page: str) -> dict[str, tuple[float, ...]]:
    """Return the mean over MinAtar's games of returns between random's (0) and PPO's (1).

    They are in the section's first table; contenders without a return on each game are left out.
    """
    section = page[page.index("\n## MinAtar\n") :]
    table = section[section.index("\n| ") :].strip().split("\n\n")[0]
    rows = [[cell.strip(" *`") for cell in x.split("|")[1:-1]] for x in table.splitlines()[2:]]
    returns = {
        row[0]: [float(cell.split("±")[0].strip(" *")) for cell in row[1:]]
        for row in rows
        if all(row[1:])
    }
    random, ppo = returns.pop("random"), returns["PPO"]
    means = {
        name: sum((x - r) / (p - r) for x, r, p in zip(own, random, ppo, strict=True)) / len(ppo)
        for name, own in returns.items()
    }
    return {name: (mean, mean, mean) for name, mean in means.items()}


def draw(panel: Axes, table: dict[str, tuple[float, ...]]) -> None:
    """Draw a bar for each contender, the highest on top, with its intervals.

    The thick one is over seeds, the thin one over tasks and seeds. A rule that is not above the
    random policy has no colour of its own.
    """
    ordered = sorted(table, key=lambda name: table[name][0])
    for row, name in enumerate(ordered):
        value, low, high, *wide = table[name]
        colour = _RULE if name == _OURS and value > 0.0 else _OTHER
        panel.barh(row, value, color=colour, height=0.65)
        if low < high:
            panel.plot([low, high], [row, row], color=_INK, linewidth=1.5)
        if wide:
            panel.plot(wide, [row, row], color=_INK, linewidth=0.7)
    panel.set_ylim(min(0, len(ordered) - _FEWEST_ROWS) - 0.6, len(ordered) - 0.4)
    panel.set_yticks(range(len(ordered)), ordered, fontsize=9, color=_INK)
    panel.tick_params(axis="x", labelsize=8, colors=_INK)
    panel.set_xlim(0, 1.05)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(_INK)


if __name__ == "__main__":
    main()
