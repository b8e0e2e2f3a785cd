"""Scores of a discovery's fresh agents."""

import pathlib

from evaluation.report.discoveries import Probe
from evaluation.report.html_report import write_report
from tests.evaluation.common import DISCOVERY, TASKS

PROBES = (
    Probe(30, 0.7, dict.fromkeys(TASKS, 0.7), pathlib.Path("rule.npz")),
    Probe(40, 0.2, dict.fromkeys(TASKS, 0.2), pathlib.Path("rule.npz")),
)


def test_the_newest_and_the_best_probe_have_rows(tmp_path):
    write_report(tmp_path / "report", [], [DISCOVERY._replace(probes=PROBES)])
    text = (tmp_path / "report" / "index.html").read_text()
    rows = text.partition("<h3>Scores of fresh agents</h3>")[2].partition("</table>")[0]
    assert "<td>fresh agents, meta-step 40 (newest)</td><td>0.20</td>" in rows
    assert "<td>fresh agents, meta-step 30 (best)</td><td>0.70</td>" in rows


def test_without_probes_the_page_says_so(tmp_path):
    write_report(tmp_path / "report", [], [DISCOVERY])
    text = (tmp_path / "report" / "index.html").read_text()
    assert "this discovery has none (config.probe.interval)" in text
    assert "<h3>Scores of fresh agents</h3>" not in text
