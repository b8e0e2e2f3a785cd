import csv

import numpy as np
import pytest

from evaluation.published import aggregates
from evaluation.published.aggregates import reproductions
from evaluation.published.scores import published_tables
from evaluation.report.csv_tables import to_csv

MILLION = 1_000_000


@pytest.fixture(scope="module")
def rows():
    return reproductions()


@pytest.mark.parametrize(
    ("paper", "agent", "budget", "statistic", "printed"),
    [
        ("Hafner", "IRIS", 400_000, "mean_human_normalized", "105%"),
        ("Hafner", "IRIS", 400_000, "median_human_normalized", "29%"),
        ("Hafner", "SimPLe", 400_000, "mean_human_normalized", "33%"),
        ("Hafner", "SimPLe", 400_000, "median_human_normalized", "13%"),
        ("Hafner", "DreamerV3", 400_000, "mean_human_normalized", "112%"),
        ("Hafner", "DreamerV3", 400_000, "median_human_normalized", "49%"),
        ("Micheli", "IRIS", 400_000, "mean_human_normalized", "1.046"),
        ("Micheli", "IRIS", 400_000, "iqm_human_normalized", "0.501"),
        ("Micheli", "IRIS", 400_000, "optimality_gap_human_normalized", "0.512"),
        ("Alonso", "DIAMOND", 400_000, "mean_human_normalized", "1.46"),
        ("Hafner", "DreamerV3", 50 * MILLION, "mean_human_normalized", "54.2%"),
        ("Hafner", "IMPALA", 10_000 * MILLION, "mean_human_normalized", "51.3%"),
        ("Hafner", "DreamerV3", None, "category_mean", "0.627"),
        ("Hafner", "Muesli", None, "category_mean", "0.537"),
        ("Hafner", "DreamerV3", 500_000, "median_score", "845.5"),
        ("Hafner", "DreamerV3", 500_000, "mean_score", "743.1"),
        ("Hafner", "DreamerV3", MILLION, "median_score", "808.5"),
        ("Hafner", "DreamerV3", 200 * MILLION, "median_human_normalized", "302%"),
        ("Hafner", "DreamerV3", 200 * MILLION, "mean_record_normalized", "41%"),
        ("Hafner", "DreamerV3", 200 * MILLION, "mean_clipped_record_normalized", "29%"),
        ("Xiao", "DiCE", 200 * MILLION, "mean_human_normalized", "6456.63%"),
        ("Xiao", "DiCE", 200 * MILLION, "median_human_normalized", "477.17%"),
        ("Xiao", "DiCE", 200 * MILLION, "mean_saber", "50.11%"),
        ("Xiao", "DiCE", 200 * MILLION, "median_saber", "13.90%"),
        ("Xiao", "Agent57", 100_000 * MILLION, "mean_saber", "76.26%"),
    ],
)
def test_what_papers_print_comes_out_of_their_scores(
    rows, paper, agent, budget, statistic, printed
):
    [row] = [
        row
        for row in rows
        if row.source.startswith(paper)
        and (row.aggregate.agent, row.aggregate.budget) == (agent, budget)
        and row.aggregate.statistic == statistic
    ]
    assert row.aggregate.printed == printed
    assert row.computed == printed


def test_every_disagreement_is_explained_and_nothing_else(rows):
    assert len(rows) == 116
    assert sum(row.agrees for row in rows) == 95
    for row in rows:
        assert row.agrees == (not row.aggregate.explanation), row


@pytest.mark.parametrize(
    ("agent", "statistic", "printed", "computed"),
    [
        ("TWM", "mean_human_normalized", "95%", "96%"),
        ("TWM", "median_human_normalized", "50%", "51%"),
        ("STORM", "mean_human_normalized", "126.7%", "122.2%"),
        ("STORM", "median_human_normalized", "58.4%", "42.5%"),
    ],
)
def test_what_authors_files_do_not_reproduce_is_explained(
    rows, agent, statistic, printed, computed
):
    [row] = [x for x in rows if (x.aggregate.agent, x.aggregate.statistic) == (agent, statistic)]
    assert (row.aggregate.printed, row.computed) == (printed, computed)
    assert row.aggregate.explanation


def test_storms_aggregates_come_out_with_34_in_freeway_and_integers():
    """What their explanation says."""
    by_agent = {"Random": {}, "Human": {}, "STORM": {}}
    for table in published_tables():
        if table.source.startswith(("Micheli et al. 2023", "Zhang")):
            for x in table.scores:
                by_agent.get(x.agent, {})[x.task] = round(x.score)
    by_agent["STORM"]["atari100k/Freeway"] = 34
    low, high, own = (np.array([x[task] for task in by_agent["STORM"]]) for x in by_agent.values())
    found = (own - low) / (high - low)
    assert f"{np.mean(found):.1%}, {np.median(found):.1%}" == "126.7%, 58.4%"


def test_table_of_both(rows):
    lines = list(csv.DictReader(to_csv(aggregates.rows(rows)).splitlines()))
    assert len(lines) == len(rows)
    [line] = [x for x in lines if x["agent"] == "DiCE" and x["statistic"] == "median_saber"]
    assert (line["printed"], line["computed"], line["explanation"]) == ("13.90%", "13.90%", "")
    assert any("Pong" in x["explanation"] for x in lines)
