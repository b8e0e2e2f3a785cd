"""The tables and plots beside a report's page."""

import csv
import dataclasses
import re
import xml.etree.ElementTree

import pytest

from evaluation.report.html_report import write_report
from evaluation.report.stored import merge
from tests.evaluation.common import CONFIG, TASKS, write_evaluation


def _rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_run_has_its_score_on_each_scale(report):
    rows = [r for r in _rows(report / "scores.csv") if r["evaluation"] == "whole"]
    returns = [r for r in rows if r["scale"] == "return"]
    assert len(returns) == 4 * len(TASKS) * CONFIG.seeds
    assert {r["environment_steps"] for r in rows} == {"99968"}
    normalized = [r for r in rows if r["scale"] == "Normalised by the reference"]
    assert len(rows) == 2 * len(returns) == 2 * len(normalized)
    own = {(r["task"], r["contender"], r["seed"]): float(r["score"]) for r in returns}
    assert own["catch/8x8", "grid57", "1"] == pytest.approx(3.0, abs=0.5)
    for row in normalized:
        if row["task"] == "catch/8x8":  # Random policies have -0.75, the optimum is 1.
            score = own[row["task"], row["contender"], row["seed"]]
            assert float(row["score"]) == pytest.approx((score + 0.75) / 1.75, abs=0.02)


def test_scores_of_papers_are_a_table_of_the_tasks_in_the_report(report):
    rows = _rows(report / "published.csv")
    assert {r["task"] for r in rows} == {"atari/Pong", "atari/DoubleDunk"}
    pong = [r for r in rows if r["task"] == "atari/Pong"]
    text = (report / "index.html").read_text()
    assert "Each algorithm was evaluated at 200 M environment" in text
    disco = {r["scale"]: r for r in pong if r["agent"] == "Disco103"}
    assert set(disco) == {"return", "Human-normalised", "SABER"}
    assert (disco["return"]["budget"], disco["return"]["budget_unit"]) == ("200000000", "frames")
    record = {
        r["scale"]: float(r["score"])
        for r in pong
        if r["agent"] == "Human world record" and "Xiao" in r["source"]
    }
    assert record["Human-normalised"] == pytest.approx(41.7 / 35.3, rel=1e-3)
    assert record["SABER"] == 1.0
    # Of no task in the report, and so nowhere in it.
    assert "bsuite/" not in text.partition("<body>")[2]


NUMBERS = {
    "seed": int,
    "environment_steps": int,
    "score": float,
    "mean": float,
    "episodes": int,
    "mean_return": float,
    "tasks": int,
    "value": float,
    "low": float,
    "high": float,
    "low_over_tasks": float,
    "high_over_tasks": float,
    "confidence": float,
    "plus_minus": float,
    "runs": int,
    "budget": int,
}


def test_tables_have_the_described_columns_with_only_numbers_in_those_of_numbers(report):
    page = (report / "index.html").read_text()
    described = {
        file: re.findall(r"<li><code>(\w+)</code>", columns)
        for file, columns in re.findall(r"<code>(\w+\.csv)</code>(.*?)</details>", page, re.S)
    }
    assert set(described) == {path.name for path in report.glob("*.csv")}
    for file, columns in described.items():
        rows = _rows(report / file)
        assert list(rows[0]) == ["evaluation", *columns], file
        for name in set(columns) & set(NUMBERS):
            for row in rows:
                assert row[name] == "" or NUMBERS[name](row[name]) is not None


def test_aggregates_by_scale(report):
    rows = _rows(report / "aggregates.csv")
    found = {(r["evaluation"], r["scale"]) for r in rows}
    baseline = "Normalised by the reference"
    assert found == {
        ("whole", baseline),
        ("less", baseline),
        ("atari", "Human-normalised"),
        ("atari", "SABER"),
    }
    [row] = [
        r
        for r in rows
        if (r["evaluation"], r["contender"], r["aggregate"]) == ("whole", "grid57", "IQM")
    ]
    # The rule scores 3, the optimum is 1, and random policies have -0.6 and -0.75.
    assert float(row["value"]) == pytest.approx(2.2, abs=0.2)
    assert float(row["low"]) <= float(row["value"]) <= float(row["high"])
    improvement = {
        (r["contender"], r["other"]): float(r["value"])
        for r in _rows(report / "comparisons.csv")
        if r["evaluation"] == "whole" and r["statistic"] == "probability of improvement"
    }
    assert improvement["grid57", "random"] == 1.0
    assert improvement["random", "grid57"] == 0.0


def test_learning_curves_as_numbers(report):
    rows = [r for r in _rows(report / "curves.csv") if r["evaluation"] == "whole"]
    assert len(rows) == 4 * len(TASKS) * CONFIG.num_points * CONFIG.seeds
    own = [
        r for r in rows if (r["contender"], r["task"], r["seed"]) == ("grid57", "catch/5x5", "1")
    ]
    assert [int(r["environment_steps"]) for r in own] == [24960, 49920, 75008, 99968]
    returns = [float(r["mean_return"]) for r in own]
    assert returns == sorted(returns)
    assert {r["episodes"] for r in own} == {"2"}


PLOTS = (
    "whole_learning_curves",
    "whole_normalised_by_the_reference_aggregates",
    "whole_normalised_by_the_reference_improvement",
    "whole_normalised_by_the_reference_profiles",
    "whole_normalised_by_the_reference_efficiency",
    "atari_human-normalised_aggregates",
    "mine_discovery",
)


@pytest.mark.parametrize("name", PLOTS)
def test_each_plot_is_a_png_and_an_svg(report, name):
    assert (report / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    root = xml.etree.ElementTree.parse(report / f"{name}.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    paths = root.findall(".//{http://www.w3.org/2000/svg}path")
    assert len(paths) > 20  # Letters and lines.


def test_equal_reports_have_equal_plots(report, tmp_path):
    evaluations = [write_evaluation(tmp_path / "whole")]
    write_report(tmp_path / "report", merge(evaluations))
    for name in PLOTS[:4]:
        for suffix in (".png", ".svg"):
            file = f"{name}{suffix}"
            assert (tmp_path / "report" / file).read_bytes() == (report / file).read_bytes()


def test_one_seed_has_no_interval(tmp_path):
    one = write_evaluation(tmp_path / "one", dataclasses.replace(CONFIG, seeds=1))
    write_report(tmp_path / "report", merge([one]))
    rows = _rows(tmp_path / "report" / "aggregates.csv")
    assert rows
    assert all(row["value"] and not row["low"] and not row["high"] for row in rows)
    text = (tmp_path / "report" / "index.html").read_text()
    assert "On 2 tasks with one seed, no interval is known" in text
    assert "With one seed there are no intervals, and so no means over tasks" in text
    assert "IQM" not in text.partition("<section")[2].partition("<h2>Files</h2>")[0]
    assert not list((tmp_path / "report").glob("*aggregate*.png"))
