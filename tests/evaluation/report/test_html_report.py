"""A report's page."""

import dataclasses
import html.parser
import io
import json
import re
import shutil
import urllib.parse

import numpy as np
import pytest
from PIL import Image

from environments.simulators import Episode
from evaluation import storage
from evaluation.contenders import make_contenders, rule_contenders
from evaluation.evaluate import Experiment, evaluate, tasks_of
from evaluation.report import run_files
from evaluation.report.html_report import write_report
from evaluation.report.stored import merge, read_manifest
from tests.evaluation.common import CONFIG, DISCOVERY, TASKS, picture, write_evaluation
from training.records import EpisodeSums

MEGABYTE = 1 << 20


def test_the_area_under_curves_is_a_column(report):
    assert "IQM of the curve&#39;s area" in (report / "index.html").read_text()


def test_an_evaluation_begins_with_its_result(report):
    text = (report / "index.html").read_text()
    for name, said in (
        ("whole", "On 2 tasks with 2 seeds, grid57 "),
        ("less", "On catch/5x5 with 2 seeds, grid57 "),
        ("atari", "On 2 tasks with 2 seeds, grid57 "),
    ):
        own = text.partition(f"<h2>{name}</h2>")[2]
        assert own.index(f'<p class="result">{said}') < own.index("<h3>")


def test_the_best_mean_of_those_who_learn_is_bold(tmp_path):
    one = write_evaluation(tmp_path / "one", shift=-10.0)
    [merged] = merge([one])
    write_report(tmp_path / "report", [merged])
    text = (tmp_path / "report" / "index.html").read_text()
    for task in TASKS:
        [row] = re.findall(rf"<tr><td>{task}</td>(.*?)</tr>", text)
        assert re.findall(r"<strong>(-[67])\.", row) == ["-6"] or "<strong>-7" in row
        assert row.startswith("<td><strong>")  # The rule's column, the first one.


def test_what_is_missing_is_named(report):
    text = (report / "index.html").read_text()
    assert "1 of 8 runs are missing; nothing stands in for them." in text
    assert "actor_critic on catch/5x5, seed 0" in text
    assert "whole, less, atari are of different tasks, budgets or score definitions" in text


def test_what_agents_do_is_shown(report):
    text = (report / "index.html").read_text()
    assert text.count("<i style=") == 10  # The legend of planes, once.
    assert "grid57, seed 0, 4 steps of &lt;b&gt;" in text
    assert text.count("4 steps of") == 2 * 7  # Of each run, as the image's text and below it.
    assert len([*(report / "pictures").iterdir()]) == 7


def _bomb(_):
    buffer = io.BytesIO()
    Image.new("L", (20_000, 20_000)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "damage",
    [lambda x: x[: len(x) // 2], lambda x: x[:20], lambda x: b"no picture", _bomb],
    ids=["half", "start", "other", "bomb"],
)
def test_a_damaged_picture_is_left_out(tmp_path, damage, caplog):
    one = write_evaluation(tmp_path / "one", prediction=picture())
    path = storage.run_path(tmp_path / "one", "grid57", TASKS[0], 0) / "prediction.png"
    path.write_bytes(damage(picture()))
    [merged] = merge([one])
    found = run_files.find_pictures("one", merged)
    assert path not in [x.source for x in found[TASKS[0]]]
    assert f"{path} is left out" in caplog.text
    other = merged.folders["grid57", TASKS[1], 0] / path.name
    [caption] = [x.caption for x in found[TASKS[1]] if x.source == other]
    assert caption == "grid57, seed 0, 4 steps of <b>"


def test_the_page_is_one_file_of_moderate_size(report):
    path = report / "index.html"
    assert path.stat().st_size < 5 * MEGABYTE
    text = path.read_text()
    assert "Ours &lt;&amp;&gt; theirs" in text
    # Nothing that a browser would fetch.
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=[\"']?https?:", text)


GIF, MP4 = b"GIF89a" + bytes(20), bytes(4) + b"ftypisom" + bytes(20)


def test_films_of_runs_are_played(tmp_path, caplog):
    one = write_evaluation(tmp_path / "a & b")
    runs = [storage.run_path(tmp_path / "a & b", "grid57", TASKS[0], index) for index in range(2)]
    (runs[0] / "film.gif").write_bytes(GIF)
    (runs[0] / "<b>.mp4").write_bytes(MP4)
    (runs[1] / "film.MP4").write_bytes(MP4)
    (runs[1] / "other.gif").write_bytes(b"no film")
    output = tmp_path / "report"
    files = write_report(output, merge([one]))
    text = (output / "index.html").read_text()
    films = text.partition('<div class="films">')[2].partition("</div>")[0]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", films)
    assert captions == ["grid57, seed 0, &lt;b&gt;", "grid57, seed 0", "grid57, seed 1"]
    shown = re.findall(r"<(video|img) [^>]*src=\"([^\"]*)\"", films)
    assert [tag for tag, _ in shown] == ["video", "img", "video"]
    contents = [(output / urllib.parse.unquote(source)).read_bytes() for _, source in shown]
    assert contents == [MP4, GIF, MP4]
    assert {output / urllib.parse.unquote(source) for _, source in shown} <= set(files)
    assert f"{runs[1] / 'other.gif'} is left out" in caplog.text
    assert "No run has a picture" not in text


class _Tags(html.parser.HTMLParser):
    """The tags of a page, with their attributes' names."""

    def __init__(self, text):
        super().__init__()
        self.found = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found |= {(tag, name) for name, _ in (*attrs, ("", ""))}


def test_hostile_names_add_nothing_to_the_page(hostile, tmp_path):
    one = write_evaluation(tmp_path / "one", prediction=picture(), skip={("random", TASKS[0], 0)})
    discovery = DISCOVERY._replace(problems=("one",))
    write_report(tmp_path / "report", merge([one]), [discovery])
    harmless, text = (tmp_path / "report" / "index.html").read_text(), hostile.read_text()
    assert _Tags(text).found <= _Tags(harmless).found
    assert text.count("<script") == harmless.count("<script")
    assert text.count("</script") == harmless.count("</script")
    assert "<title>&lt;/script&gt;" in text


def test_names_that_are_not_utf_8_are_in_the_page_with_escapes(tmp_path):
    [merged] = merge([write_evaluation(tmp_path / "one")])
    merged = dataclasses.replace(merged, problems=("left out: \udcff",))
    write_report(tmp_path / "report", [merged], title="of \udcff")
    text = (tmp_path / "report" / "index.html").read_text()
    assert "<title>of \\udcff</title>" in text
    assert "left out: \\udcff" in text


def test_nothing_to_compare_without_reference_scores(tmp_path):
    """One seed, whose intervals are unknown, and no episode of one contender."""
    config = CONFIG.__class__(seeds=1, baselines=(), resamples=20, num_points=2)
    one = write_evaluation(tmp_path / "one", config, tasks=("catch/4x5",))
    [merged] = merge([one])
    assert np.isfinite(merged.contender_curves["grid57"].window.mean_return).all()
    write_report(tmp_path / "report", [merged])
    assert not (tmp_path / "report" / "aggregates.csv").exists()
    text = (tmp_path / "report" / "index.html").read_text()
    assert "There is no scale on which these tasks could be put together." in text


def test_an_older_evaluation_without_reference_scores_says_so(tmp_path):
    one = write_evaluation(tmp_path / "one")
    (tmp_path / "one" / "references.json").unlink()
    write_report(tmp_path / "report", merge([one]))
    assert not (tmp_path / "report" / "aggregates.csv").exists()
    text = (tmp_path / "report" / "index.html").read_text()
    assert "references.json is missing, so that no score is normalised by it" in text


def test_learning_rates_are_of_those_who_learn(report):
    text = (report / "index.html").read_text()
    [row] = re.findall(r"<tr><td>random</td>(.*?)</tr>", text.partition("<h2>less</h2>")[0])[:1]
    assert f"<td>{CONFIG.agent.learning_rate:g}</td>" not in row


@pytest.fixture(scope="module")
def bsuite_runs(tmp_path_factory):
    """Two seeds of an evaluation in one simulator, with the episodes of its runs."""
    folder = tmp_path_factory.mktemp("bsuite")
    alone = dataclasses.replace(CONFIG.agent, num_environments=1, batch_size=1)
    config = dataclasses.replace(CONFIG, agent=alone)
    write_evaluation(folder, config, tasks=("bsuite/catch/0",))
    episode = Episode(1.0, 9, {"total_regret": 0.0})
    for result in (folder / "runs").rglob("result.json"):
        lines = 20 * (json.dumps(dataclasses.asdict(EpisodeSums.of_one(1, episode))) + "\n")
        result.with_name("episodes.jsonl").write_text(lines)
    return folder


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ("", "Capabilities (bsuite)"),
        ('{"return": 1.0, "len', "Line 21 of {file} is damaged: expected a JSON object, found"),
        (
            '{"length": 9}\n',
            "The episodes in {file.parent} are damaged (KeyError(&#39;environment_steps",
        ),
        ('{"return": 1.0, "length": "9", "results": {}}', "are damaged"),
    ],
)
def test_a_run_whose_episodes_are_damaged_is_named_and_left_out(
    bsuite_runs, tmp_path, damaged, said
):
    shutil.copytree(bsuite_runs, tmp_path / "one")
    file = storage.run_path(tmp_path / "one", "grid57", "bsuite/catch/0", 1) / "episodes.jsonl"
    with file.open("a") as episodes:
        episodes.write(damaged)
    one = read_manifest(tmp_path / "one")
    write_report(tmp_path / "report", merge([one]))
    text = (tmp_path / "report" / "index.html").read_text()
    assert said.format(file=file) in text
    assert ("grid57 with seed 1 is left out. " in text) == bool(damaged)
    assert "Capabilities (bsuite)" in text


def test_a_finished_evaluation_has_the_scores_of_bsuite(bsuite_runs, tmp_path):
    folder = tmp_path / "one"
    shutil.copytree(bsuite_runs, folder)
    one = read_manifest(folder)
    contenders = make_contenders(rule_contenders(["grid57"], one.config), one.config)
    written = evaluate(Experiment(tasks_of(one.tasks), one.config, folder), contenders)
    assert folder / "bsuite.csv" in written.files
    assert "bsuite's own scores, by experiment and tag, are in bsuite.csv." in written.remarks
