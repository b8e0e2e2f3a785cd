"""Scores of contenders beside those of a discovery's fresh agents."""

import pathlib

import pytest

from evaluation.report.discoveries import Probe
from evaluation.report.discovery_section import probe_baselines
from evaluation.report.html_report import write_report
from evaluation.report.stored import merge
from tests.evaluation.common import DISCOVERY, TASKS, write_evaluation

PROBES = (
    Probe(10, 0.2, dict.fromkeys(TASKS, 0.2), pathlib.Path("rule.npz")),
    Probe(30, 0.7, dict.fromkeys(TASKS, 0.7), pathlib.Path("rule.npz")),
)


def discovery(budget=100_000, probes=PROBES):
    return DISCOVERY._replace(
        config={**DISCOVERY.config, "probe": {"budget": budget}}, probes=probes
    )


def test_an_evaluation_of_the_same_tasks_and_budget_has_the_baselines(tmp_path):
    evaluations = merge([write_evaluation(tmp_path / "one", tasks=(*TASKS, "catch/9x9"))])
    found = probe_baselines(discovery(), evaluations)
    assert set(found) == {"actor_critic", "policy_gradient", "grid57"}
    # Returns of 1 and 2; random policies have -0.6 and -0.75, the optimum is 1.
    assert found["actor_critic"] == pytest.approx(1.0, abs=0.1)
    assert found["policy_gradient"] == pytest.approx((2.6 / 1.6 + 2.75 / 1.75) / 2, abs=0.1)
    beside = write_report(tmp_path / "report", evaluations, [discovery()])
    text = (tmp_path / "report" / "index.html").read_text()
    rows = text.partition("<h3>Scores of fresh agents</h3>")[2].partition("</table>")[0]
    names = ("grid57", "actor_critic", "fresh agents, meta-step 30 (newest)")
    places = [rows.index(f"<td>{name}</td>") for name in names]
    assert places == sorted(places)
    assert "There are no baselines beside them." not in text
    assert tmp_path / "report" / "mine_discovery.svg" in beside


@pytest.mark.parametrize("budget", [50_000, None])
def test_another_budget_is_not_beside_them(tmp_path, budget):
    evaluations = merge([write_evaluation(tmp_path / "one")])
    assert probe_baselines(discovery(budget), evaluations) == {}


def test_other_tasks_are_not_beside_them(tmp_path):
    evaluations = merge([write_evaluation(tmp_path / "one", tasks=TASKS[:1])])
    assert probe_baselines(discovery(), evaluations) == {}
    assert probe_baselines(discovery(probes=()), evaluations) == {}


def test_without_baselines_the_page_says_how_to_get_them(tmp_path):
    write_report(tmp_path / "report", [], [discovery()])
    text = (tmp_path / "report" / "index.html").read_text()
    command = "python -m launch.evaluate --suite=catch/5x5,catch/8x8 --config.budget=100000"
    assert command in text
    first, second = text.index("Scores of fresh agents"), text.index("The meta-return is the")
    assert first < second


def test_without_probes_the_page_says_so(tmp_path):
    write_report(tmp_path / "report", [], [DISCOVERY])
    text = (tmp_path / "report" / "index.html").read_text()
    assert "this discovery has none (config.probe.interval)" in text
    assert "<h3>Scores of fresh agents</h3>" not in text
