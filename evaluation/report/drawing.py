"""Figures (Matplotlib): their style, their elements, and what becomes of them.

A figure is drawn once. A page shows its SVG, in the ink of the reader's scheme; PNG and SVG files
of it are for slides and papers. Names of rules, tasks and settings are drawn literally, never as
mathematical text.
"""

import functools
import hashlib
import io
import itertools
import math
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec

import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    StrMethodFormatter,
)

from disco_common.files import write_atomically
from disco_common.terminal import printable
from evaluation.contenders import DISCOVERED, RANDOM, Contender
from evaluation.scoring.statistics import Estimate

_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # Names may have dollar signs.
    "figure.constrained_layout.use": True,
    # Equal figures are equal files, and letters are shapes, which look alike everywhere.
    "svg.hashsalt": "disco",
    "svg.fonttype": "path",
}
_NO_METADATA: Any = {"Date": None, "Creator": None, "Format": None, "Type": None}
_ONLY_IN_FILES = re.compile("<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL)

# Okabe and Ito's colours, safe for colour-blind readers; some more so that all baselines differ,
# legible on white and on black. Discovered rules have the warm ones.
RULE_COLOURS = ("#D55E00", "#CC79A7", "#E69F00", "#F0E442")
COLOURS = (
    *("#0072B2", "#009E73", "#56B4E9", "#9467BD"),
    *("#999933", "#8C564B", "#8BC34A", "#4B5FE0", "#00A8A8"),
)
_RANDOM_COLOUR = "#888888"
_FEW_POINTS = 8  # Of a line, which are shown each.
_MOST_COLUMNS = 5  # Panels side by side that can be read on a screen.
_LONGEST_NAME = 40  # Characters of a row's name; a longer one would leave no room for the plot.
_P = ParamSpec("_P")

Numbers = Sequence[float] | Float[np.ndarray, "_"] | Int[np.ndarray, "_"]


class Drawing(NamedTuple):
    """A figure as a PNG file and as an SVG file."""

    png: bytes
    svg: bytes

    @classmethod
    def of(cls, figure: Figure) -> "Drawing":
        """Draw a figure that was made in `plot_style`."""
        FigureCanvasAgg(figure)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=130)
        figure.set_layout_engine("none")  # It has its layout now, which takes a fifth of the time.
        figure.savefig(svg, format="svg", metadata=_NO_METADATA)
        return cls(png.getvalue(), svg.getvalue())

    @property
    def html(self) -> Markup:
        """The SVG as an element of a page, in the page's ink and without a background."""
        found = self.svg.decode()
        found = _ONLY_IN_FILES.sub("", found[found.index("<svg") :])
        found = found.replace("#000000", "currentColor").replace("fill: #ffffff", "fill: none")
        own = hashlib.sha256(self.svg).hexdigest()[:12]  # No other figure has these names.
        return Markup(re.sub(' id="|href="#|url\\(#', lambda name: f"{name[0]}{own}-", found))

    def files(self, stem: str) -> dict[str, bytes]:
        """Return the contents by file name, whose stem is given."""
        return {f"{stem}.png": self.png, f"{stem}.svg": self.svg}

    def write(self, folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
        """Write the files to a folder; return their paths.

        Raises:
          OSError: if one cannot be written.
        """
        files = self.files(stem)
        for name, content in files.items():
            write_atomically(folder / name, content)
        return [folder / name for name in files]


def plot_style() -> AbstractContextManager[None]:
    """Return a context in which figures have the project's style.

    It begins at Matplotlib's defaults, since other packages change the style of the process when
    they are imported (bsuite's plots do).
    """
    return style.context(["default", _STYLE])


def drawn(make: Callable[_P, Figure]) -> Callable[_P, Drawing]:
    """Have a function that returns a figure draw it in the project's style."""

    @functools.wraps(make)
    def draw(*args: _P.args, **options: _P.kwargs) -> Drawing:
        with plot_style():
            return Drawing.of(make(*args, **options))

    return draw


class Curve(NamedTuple):
    """Points of a line, and the ends of its band at each, if it has one."""

    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


class LineStyle(NamedTuple):
    """How a line is drawn; of two lines the one with the higher `zorder` is above the other."""

    color: str
    linestyle: str = "-"
    linewidth: float = 1.3
    zorder: int = 2


def contender_styles(
    contenders: Sequence[Contender], found: Collection[str]
) -> dict[str, LineStyle]:
    """Return the style of each contender in `found`, by name, in the contenders' order.

    Discovered rules have warm colours and thicker lines, the random policy a dashed grey one, the
    others cold colours.
    """
    rules, baselines = itertools.cycle(RULE_COLOURS), itertools.cycle(COLOURS)
    by_kind: dict[str, Iterator[LineStyle]] = {
        DISCOVERED: (LineStyle(colour, linewidth=1.8, zorder=3) for colour in rules),
        RANDOM: itertools.repeat(LineStyle(_RANDOM_COLOUR, "--")),
    }
    others = map(LineStyle, baselines)
    return {x.name: next(by_kind.get(x.kind, others)) for x in contenders if x.name in found}


def _distinct_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """Return a style for each name: another colour; where there are no more, other dashes."""
    colours = (RULE_COLOURS[0], *COLOURS, *RULE_COLOURS[1:])
    every = ((colour, dashes) for dashes in ("-", "--", ":", "-.") for colour in colours)
    return {name: LineStyle(*one) for name, one in zip(names, itertools.cycle(every), strict=False)}


def line_panels(
    panels: Mapping[str, Mapping[str, Curve]],
    contenders: Sequence[Contender] = (),
    xlabel: str = "",
    ylabel: str = "",
    log: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    """Return a panel for each title, with a line for each name, and one legend.

    Args:
      panels: curves by title and name.
      contenders: of whom the names are, in the legend's order; by default they are other names.
      xlabel: of the lower axis, which all panels share. Without it a panel's title is its label,
        and they share the left axis.
      ylabel: of the left axis.
      log: by title, the axes that are logarithmic: "x", "y" or both.
    """
    number, names = len(panels), dict.fromkeys(itertools.chain(*panels.values()))
    columns = number if number <= 3 else min(_MOST_COLUMNS, math.ceil(math.sqrt(number)))
    rows, width = math.ceil(number / columns), 6.4 if number == 1 else 3.8 if columns <= 3 else 2.7
    figure = Figure(figsize=(width * columns, min(3.1, 0.75 * width) * rows + 1.1))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=bool(xlabel), sharey=not xlabel)
    axes = axes.ravel()
    styles = contender_styles(contenders, names) if contenders else _distinct_styles(names)
    lines: dict[str, Line2D] = {}
    for panel, curves in zip(axes, panels.values(), strict=False):
        lines |= {name: _draw_curve(panel, curve, styles[name]) for name, curve in curves.items()}
    for i, (panel, (title, curves)) in enumerate(zip(axes, panels.items(), strict=False)):
        format_axes(panel, ticks=7 if number == 1 else 4)
        use_logarithms(panel, log.get(title, ""))
        if "x" in log.get(title, ""):
            panel.set_xticks(sorted({x for curve in curves.values() for x in curve.x}))
        if xlabel:
            panel.set_title(printable(title))
        if not xlabel or i + columns >= number:
            panel.set_xlabel(xlabel or printable(title))
            panel.xaxis.set_tick_params(labelbottom=True)
    for panel in axes[number:]:
        panel.set_visible(False)
    figure.supylabel(ylabel, fontsize=9)
    add_legend(figure, [lines[name] for name in styles], [*styles])
    return figure


draw_line_panels = drawn(line_panels)


def _draw_curve(panel: Axes, curve: Curve, style: LineStyle) -> Line2D:
    """Draw a line, with a point at each of few values, and its band. Return the line."""
    marker = "." if len(curve.x) <= _FEW_POINTS else ""
    (line,) = panel.plot(curve.x, curve.y, marker=marker, **style._asdict())
    if curve.low is not None and curve.high is not None:
        ends = curve.low, curve.high
        if len(curve.x) == 1:
            panel.vlines(curve.x, *ends, color=style.color, linewidth=1.0)
        else:
            panel.fill_between(curve.x, *ends, color=style.color, alpha=0.18, linewidth=0)
    return line


def draw_interval(panel: Axes, row: int, estimate: Estimate, colour: str) -> None:
    """Draw a value with its intervals: the thick one is over seeds, the thin one over tasks."""
    ends = [([estimate.low, estimate.high], 3.0), (estimate[3:], 1.0), ([estimate.value], 0.0)]
    for x, width in ends:
        marker = "" if width else "o"
        rows = [row] * len(x)
        panel.plot(x, rows, color=colour, linewidth=width, marker=marker, markersize=4)


def name_rows(panel: Axes, names: Sequence[str]) -> None:
    """Write names at the rows 0, 1, …, from the bottom to the top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(-0.6, len(names) - 0.4)


def add_legend(figure: Figure, lines: Sequence[Artist], names: Sequence[str]) -> None:
    """Add a legend below all panels, with as many columns as fit the width.

    The names are not the lines' own labels: Matplotlib omits labels that start with an underscore.
    """
    labels = [printable(name) for name in names]
    room = max(1, int(figure.get_figwidth() / (0.4 + 0.055 * max(map(len, labels)))))
    rows = math.ceil(len(labels) / room)
    columns = math.ceil(len(labels) / rows)  # Rows of similar length.
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(lines, labels, loc="outside lower center", ncols=columns)


def with_thousands() -> FuncFormatter:
    """Return the labels of ticks, with 10000 as 10k."""
    formatter = EngFormatter(sep="")
    return FuncFormatter(lambda x, _: formatter.format_eng(x) if abs(x) >= 1e3 else f"{x:g}")


def format_axes(panel: Axes, ticks: int = 4) -> None:
    """Set few ticks, those below as 10k; a lower axis without negative numbers begins at 0."""
    panel.xaxis.set_major_formatter(with_thousands())
    panel.xaxis.set_major_locator(MaxNLocator(ticks))
    panel.yaxis.set_major_locator(MaxNLocator(ticks))
    if panel.dataLim.xmin >= 0.0:
        panel.set_xlim(left=0)


def use_logarithms(panel: Axes, axes: str) -> None:
    """Make some axes logarithmic: "x", "y" or both. Their labels are no mathematical text."""
    for name in axes:
        panel.set(**{f"{name}scale": "log"})
        panel.autoscale(axis="x" if name == "x" else "y")
        axis = panel.xaxis if name == "x" else panel.yaxis
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def short_name(name: str) -> str:
    """Return a name that can be printed, and whose middle is left out if it is long."""
    text, half = printable(name), _LONGEST_NAME // 2
    return text if len(text) <= _LONGEST_NAME else f"{text[: half - 1]}…{text[-half:]}"
