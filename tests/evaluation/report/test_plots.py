"""What figures show, and how they stand in a page."""

import dataclasses
import re

import numpy as np
import pytest
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.text import Text

from evaluation.config import EvaluationConfig
from evaluation.contenders import GRADIENT_STEPS, make_contenders
from evaluation.report import plots
from evaluation.report.discovery_section import sweep_curves
from evaluation.report.drawing import Curve, draw_line_panels
from evaluation.results import Episodes, LearningCurves
from evaluation.scoring.references import Reference
from tests.evaluation import common
from tests.evaluation.common import DISCOVERY

CONFIG = EvaluationConfig(seeds=2, resamples=20, num_points=4)
NAMES = (r"a$\foo$", "_hidden", "$x$", r"\$5", "mine[a]", "two\nlines \x1b[31m \udcff")


@pytest.fixture
def figures(monkeypatch):
    """Figures that are drawn."""
    found, savefig = [], Figure.savefig

    def save(figure, *arguments, **options):
        found.extend([figure] * (options["format"] == "png"))
        return savefig(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", save)
    return found


def _curves(level) -> LearningCurves:
    """Of two tasks and two seeds."""
    points = len(CONFIG.intervals[0])
    returns = level + np.array([[0.0, 0.1], [0.0, 0.1]])
    window = Episodes(np.full((2, 2), 2.0), 2.0 * returns)
    curve = Episodes(*(np.repeat(x[..., None], points, axis=-1) for x in window))
    is_finite = np.ones((2, 2), bool)
    return LearningCurves(CONFIG.intervals[0], curve, window, {}, is_finite, 0.0, 1.0, ("cpu",))


def _texts(figure) -> list[str]:
    """All that is drawn; none of it is mathematics."""
    texts = figure.findobj(Text)
    assert not any(text.get_parse_math() for text in texts)
    return [text.get_text() for text in texts]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_rules_and_tasks_are_drawn_as_they_are(name, figures):
    made = make_contenders([], CONFIG)
    contenders = [*made, common.rule_contender(name)]
    contender_curves = {c.name: _curves(float(i)) for i, c in enumerate(contenders)}
    tasks = (f"{name}/a", f"{name}/{name}")
    references = {task: Reference("", 0.0, 1.0, None, name) for task in tasks}
    evaluation = common.evaluation(tasks, contenders, contender_curves, CONFIG, references)
    shown = name.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\udcff", "\\udcff")
    plots.learning_curves(evaluation, contenders)
    [compared] = evaluation.comparisons
    plots.efficiency(compared, contenders)
    curves, aggregate = figures
    expected = [*(c.name for c in made), shown]
    assert f"{shown}: mean ± standard error over 2 seeds" in _texts(curves)
    assert {"a", shown} <= set(_texts(curves))
    for figure in figures:
        [legend] = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == expected
    assert len(_texts(aggregate)) > len(expected)


def test_names_of_points_are_drawn_as_they_are(figures):
    sweep_curves(dict.fromkeys(NAMES[:4], DISCOVERY.metrics))
    [figure] = figures
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(NAMES[:4])
    assert set(NAMES[:4]) <= set(_texts(figure))


def test_the_style_of_the_process_changes_no_plot():
    curves = {"one": [{"meta_step": 1, "validation_reward": 0.5}]}
    plain = sweep_curves(curves)
    with style.context(["seaborn-v0_8-poster", "ggplot"]):  # What importing bsuite's plots sets.
        assert sweep_curves(curves) == plain


def test_a_page_shows_the_figure_in_its_own_ink():
    drawn = sweep_curves({"<b>": [{"meta_step": 1, "validation_reward": 0.5}]})
    svg, html = drawn.svg.decode(), str(drawn.html)
    assert "#ffffff" in svg
    for only_in_files in ("#ffffff", "#000000", "<style", "<metadata", "<!--", "<?xml", "<b>"):
        assert only_in_files not in html
    names = re.findall(r' id="([^"]*)"', html)
    assert len(names) == len(set(names))
    assert {*re.findall(r'(?:href="#|url\(#)([^")]*)', html)} <= set(names)
    assert not {*names} & {*re.findall(r' id="([^"]*)"', svg)}


def test_sample_efficiency_is_by_steps_updates_and_seconds(figures):
    """Gradient steps of those whose number is known."""
    made = make_contenders([], CONFIG)[:3]
    made = [dataclasses.replace(made[0], source={GRADIENT_STEPS: 0.5}), *made[1:]]
    own = {x.name: _curves(float(i)) for i, x in enumerate(made)}
    tasks = ("one/a", "one/b")
    references = {task: Reference("", 0.0, 1.0, None, "") for task in tasks}
    evaluation = common.evaluation(tasks, made, own, CONFIG, references)
    plots.compared(evaluation.comparisons[0], made)
    steps, updates, seconds = figures[-1].axes
    labels = ["environment steps", "gradient steps", "wall seconds of a run"]
    assert [panel.get_xlabel() for panel in figures[-1].axes] == labels
    assert [len(panel.lines) for panel in (steps, updates, seconds)] == [3, 1, 3]
    np.testing.assert_allclose(updates.lines[0].get_xdata(), 0.5 * steps.lines[0].get_xdata())


def test_a_name_has_one_line_style_in_all_panels_and_few_points_are_shown(figures):
    many = Curve(np.arange(9.0), np.ones(9), np.zeros(9), np.ones(9))
    one = Curve([2], [3.0], [2.5], [3.5])
    panels = {"a": {"mine": many}, "b": {"other": one, "mine": many}, "c": {}, "d": {"mine": one}}
    draw_line_panels(panels, xlabel="steps", ylabel="score", log={"d": "y"})
    [figure] = figures
    first, second, empty, last = figure.axes
    assert [panel.get_title() for panel in figure.axes] == ["a", "b", "c", "d"]
    assert [panel.get_xlabel() for panel in figure.axes] == ["", "", "steps", "steps"]
    assert [len(panel.lines) for panel in figure.axes] == [1, 2, 0, 1]
    [line], [other, mine], [single] = first.lines, second.lines, last.lines
    assert line.get_color() == mine.get_color() == single.get_color() != other.get_color()
    assert [x.get_marker() for x in (line, other, single)] == ["", ".", "."]
    assert [len(panel.collections) for panel in figure.axes] == [1, 2, 0, 1]  # Bands.
    assert (last.get_yscale(), empty.get_yscale()) == ("log", "linear")
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["mine", "other"]


def test_panels_without_a_common_lower_axis_are_called_by_theirs(figures):
    curve = Curve(np.arange(-1.0, 9.0), np.ones(10))
    draw_line_panels({x: {"mine": curve} for x in "abcde"}, ylabel="score")
    [figure] = figures
    assert [panel.get_xlabel() for panel in figure.axes if panel.get_visible()] == [*"abcde"]
    assert figure.axes[0].get_xlim()[0] < 0.0
