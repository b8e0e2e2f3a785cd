import numpy as np
import pytest

from evaluation.published import published_tables
from tests.evaluation.published.reproductions import reproductions

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
        and (row.agent, row.budget) == (agent, budget)
        and row.statistic == statistic
    ]
    assert row.printed == printed
    assert row.computed == printed


def test_every_disagreement_is_explained_and_nothing_else(rows):
    assert len(rows) == 116
    assert sum(row.computed == row.printed for row in rows) == 95
    for row in rows:
        assert (row.computed == row.printed) == (not row.explanation), row


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
    [row] = [x for x in rows if (x.agent, x.statistic) == (agent, statistic)]
    assert (row.printed, row.computed) == (printed, computed)
    assert row.explanation


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
