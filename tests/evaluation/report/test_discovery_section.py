"""Scores of a discovery's fresh agents."""

from evaluation.report.html_report import write_report
from tests.evaluation.common import DISCOVERY


def test_the_newest_and_the_best_probe_are_shown(tmp_path):
    scores = {10: 0.5, 20: 0.7, 30: 0.2}
    metrics = [{**x, "probe_score": scores[x["meta_step"]]} for x in DISCOVERY.metrics]
    write_report(tmp_path / "report", [], [DISCOVERY._replace(metrics=metrics)])
    text = (tmp_path / "report" / "index.html").read_text()
    assert "<td>0.20 at meta-step 30</td><td>0.70 at meta-step 20</td>" in text
    assert "The scores of fresh agents do," in text


def test_without_probes_the_page_says_so(tmp_path):
    write_report(tmp_path / "report", [], [DISCOVERY])
    text = (tmp_path / "report" / "index.html").read_text()
    assert "this discovery has none (config.probe.interval)" in text
    assert "<th>fresh agents" not in text
