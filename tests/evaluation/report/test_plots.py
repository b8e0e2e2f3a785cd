"""Names in static_plots."""

import numpy as np
import pytest
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.text import Text

from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.report import static_plots
from evaluation.results import Episodes, LearningCurves, intervals
from evaluation.scoring.curves import normalized_curves
from evaluation.scoring.references import Reference
from evaluation.scoring.summary import summarize
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
    points = len(intervals(CONFIG)[0])
    returns = level + np.array([[0.0, 0.1], [0.0, 0.1]])
    window = Episodes(np.full((2, 2), 2.0), 2.0 * returns)
    curve = Episodes(*(np.repeat(x[..., None], points, axis=-1) for x in window))
    is_finite = np.ones((2, 2), bool)
    return LearningCurves(intervals(CONFIG)[0], curve, window, {}, is_finite, 0.0, 1.0, ("cpu",))


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
    summary = summarize(tasks, contenders, contender_curves, CONFIG, references)
    shown = name.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\udcff", "\\udcff")
    static_plots.learning_curves(summary, contenders, contender_curves, CONFIG)
    mean_curves = normalized_curves(summary, contender_curves, CONFIG)
    static_plots.mean_curves(summary, contenders, mean_curves, CONFIG)
    curves, aggregate = figures
    expected = [*(c.name for c in made), shown]
    assert f"{shown}: mean ± standard error over 2 seeds" in _texts(curves)
    assert {"a", shown} <= set(_texts(curves))
    for figure in figures:
        [legend] = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == expected
    assert len(_texts(aggregate)) > len(expected)


def test_names_of_points_are_drawn_as_they_are(figures):
    static_plots.sweep_curves(dict.fromkeys(NAMES[:4], DISCOVERY.metrics))
    [figure] = figures
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(NAMES[:4])
    assert set(NAMES[:4]) <= set(_texts(figure))


def test_each_variant_has_its_interval_and_its_discoveries(figures):
    def scores(value):
        return {"value": value, "low": value - 0.1, "high": value + 0.2}, [value, value + 0.1]

    static_plots.score_matrix(
        {name: {"one": scores(i), "two": scores(2.0 * i)} for i, name in enumerate(NAMES[:3])}
    )
    [figure] = figures
    first, second = figure.axes
    assert [label.get_text() for label in first.get_yticklabels()] == list(NAMES[:3])
    assert [panel.get_title() for panel in figure.axes] == ["one", "two"]
    interval, middle, points = second.lines[3:6]  # Of the second variant.
    assert interval.get_xdata() == pytest.approx([1.9, 2.2])
    assert middle.get_xdata() == pytest.approx([2.0])
    assert points.get_xdata() == pytest.approx([2.0, 2.1])
    assert set(interval.get_ydata()) == {1.0}


def test_the_style_of_the_process_changes_no_plot():
    curves = {"one": [{"meta_step": 1, "validation_reward": 0.5}]}
    plain = static_plots.sweep_curves(curves)
    with style.context(["seaborn-v0_8-poster", "ggplot"]):  # What importing bsuite's plots sets.
        assert static_plots.sweep_curves(curves) == plain
