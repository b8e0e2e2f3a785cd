"""What a report shows of agents that have a world model."""

import csv
import dataclasses
import json
import re

import pytest

from evaluation.contenders import Contender
from evaluation.report.html_report import write_report
from evaluation.report.stored import merge
from tests.evaluation.common import CONFIG, picture, write_evaluation


@pytest.fixture(scope="module")
def world_model(tmp_path_factory):
    """A report on runs of an agent with a world model, with pictures and metrics of the first."""
    folder = tmp_path_factory.mktemp("world_model")
    config = dataclasses.replace(CONFIG, baselines=(), seeds=1)
    [merged] = merge([write_evaluation(folder / "one", config, tasks=("atari100k/Breakout",))])
    [run] = {path for (name, _, _), path in merged.folders.items() if name == "grid57"}
    for name in ("other", "prediction"):
        (run / f"{name}.png").write_bytes(picture(f"{name} of <b>"))
    metrics = {"<i>/loss/reconstruction": 1.0, "<i>/codes_used": 7.0, "held_out/<b>": 2.0}
    (run / "metrics.jsonl").write_text(json.dumps({**metrics, "environment_steps": 9}) + "\n")
    agents = [
        Contender(name=x.name, algorithm="iris", settings={}) if x.name == "grid57" else x
        for x in merged.contenders
    ]
    merged = dataclasses.replace(merged, contenders=tuple(agents))
    write_report(folder / "report", [merged])
    return folder / "report" / "index.html"


def test_all_pictures_of_a_world_model_are_shown_with_their_captions(world_model):
    captions = re.findall(
        r"<figcaption>grid57, seed \d, (\w+) of &lt;b&gt;", world_model.read_text()
    )
    assert captions == ["other", "prediction"]


def test_losses_and_the_use_of_tokens_are_drawn(world_model):
    text = world_model.read_text()
    assert "as diverse (codes_perplexity)" in text
    assert "on each task of the first run that logged any" in text
    assert (world_model.parent / "one_metrics_1_grid57.svg").is_file()
    assert "<td>2</td>" in text
    assert "<i>" not in text


def test_scores_of_papers_stand_beside_ours_task_by_task(world_model):
    text = world_model.read_text()
    assert "<th>DIAMOND (Alonso et al. 2024)</th>" in text
    assert "<li>Of 20 evaluation episodes: STORM (Zhang et al. 2023).</li>" in text
    with (world_model.parent / "published.csv").open() as file:
        storm = {x["scale"]: x for x in csv.DictReader(file) if x["agent"] == "STORM"}
    assert storm["return"]["scored_on"] == "20 evaluation episodes"
    normalized = float(storm["Human-normalised"]["score"])
    assert normalized == pytest.approx((15.9 - 1.7) / (30.5 - 1.7), rel=1e-3)


def test_tasks_of_no_paper_have_no_table_of_papers_scores(tmp_path):
    write_report(tmp_path / "report", merge([write_evaluation(tmp_path / "one")]))
    assert "task by task" not in (tmp_path / "report" / "index.html").read_text()
