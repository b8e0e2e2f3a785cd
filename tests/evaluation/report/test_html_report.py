import csv
import dataclasses
import html.parser
import io
import json
import re
import shutil
import urllib.parse
import xml.etree.ElementTree

import numpy as np
import pytest
from PIL import Image

from environments.episodes import Episode
from evaluation import storage
from evaluation.report import csv_tables, pictures_of_runs
from evaluation.report.html_report import write_report
from evaluation.report.manifest import read_manifest
from evaluation.report.merging import merge
from tests.evaluation.common import CONFIG, DISCOVERY, TASKS, picture, write_evaluation
from training.records import EpisodeSums

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
MEGABYTE = 1 << 20


def _rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    missing = {("grid57", "catch/8x8", 1), ("actor_critic", "catch/5x5", 0)}
    evaluations = [
        write_evaluation(folder / "whole"),
        write_evaluation(folder / "less", tasks=TASKS[:1], skip=missing, strip=picture()),
        write_evaluation(folder / "atari", tasks=("atari/Pong", "atari/DoubleDunk")),
    ]
    output = folder / "report"
    files = write_report(output, merge(evaluations), [DISCOVERY], "Ours <&> theirs")
    assert all(path.is_file() for path in files)
    return output


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
    assert "bsuite/" not in text.partition("<body>")[2].partition("<script")[2]
    assert not (report / "reproduced.csv").exists()


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
    "confidence": float,
    "plus_minus": float,
    "runs": int,
    "budget": int,
}


def test_tables_have_the_described_columns_with_only_numbers_in_those_of_numbers(report):
    for file, (_, columns) in csv_tables.TABLES.items():
        rows = _rows(report / file)
        assert list(rows[0]) == ["evaluation", *columns], file
        for row in rows:
            for name in set(columns) & set(NUMBERS) - {"episodes"} | {"episodes"} & (
                set(columns) if file == "curves.csv" else set()
            ):
                assert row[name] == "" or NUMBERS[name](row[name]) is not None
        described = (report / "index.html").read_text()
        assert f"<code>{file}</code>" in described


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
        if r["evaluation"] == "whole"
    }
    assert improvement["grid57", "random"] == 1.0
    assert improvement["random", "grid57"] == 0.0


def test_sample_efficiency_is_by_steps_updates_and_seconds(report):
    text = (report / "index.html").read_text()
    for axis in ("environment steps", "gradient steps", "wall seconds of a run"):
        assert f'"label":"{axis}"' in text
    assert "IQM of the curve&#39;s area" in text


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
    assert "grid57, 4 steps of &lt;b&gt;" in text
    # Of the first seed's run, or the second one's where that is missing: image and caption.
    assert text.count("4 steps of") == 2 * 4


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
    one = write_evaluation(tmp_path / "one", strip=picture())
    path = storage.run_path(tmp_path / "one", "grid57", TASKS[0], 0) / "strip.png"
    path.write_bytes(damage(picture()))
    [merged] = merge([one])
    assert merged.pictures("grid57", TASKS[0], 0) == []
    assert str(path.parent) in caplog.text
    assert merged.pictures("grid57", TASKS[1], 0) == [("4 steps of <b>", picture())]
    assert merged.pictures("grid57", TASKS[1], 7) == []


def test_a_page_has_room_for_some_pictures_only(tmp_path, monkeypatch):
    one = write_evaluation(tmp_path / "one", strip=picture())
    monkeypatch.setattr(pictures_of_runs, "_MAX_PICTURE_BYTES", int(2.5 * len(picture())))
    write_report(tmp_path / "report", merge([one]))
    text = (tmp_path / "report" / "index.html").read_text()
    assert "6 more are in the runs' folders" in text


def test_the_page_is_one_file_of_moderate_size(report):
    path = report / "index.html"
    assert path.stat().st_size < 10 * MEGABYTE
    text = path.read_text()
    assert "Ours &lt;&amp;&gt; theirs" in text
    # Nothing that a browser would fetch.
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=[\"']?https?:", text)


PLOTS = (
    "whole_learning_curves",
    "whole_aggregate",
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


GIF, MP4 = b"GIF89a" + bytes(20), bytes(4) + b"ftypisom" + bytes(20)


def test_films_of_runs_are_played(tmp_path, caplog):
    one = write_evaluation(tmp_path / "a & b")
    runs = [storage.run_path(tmp_path / "a & b", "grid57", TASKS[0], index) for index in range(2)]
    (runs[0] / "film.gif").write_bytes(GIF)
    (runs[0] / "<b>.mp4").write_bytes(MP4)
    (runs[1] / "film.mp4").write_bytes(MP4)
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
    assert "No run has a film" not in text


def test_tasks_without_pictures_say_why(report, tmp_path):
    text = (report / "index.html").read_text()
    reason = "their observations are neither images nor boards, or drawing failed"
    assert f"No pictures of catch/5x5, catch/8x8: {reason}" in text
    config = dataclasses.replace(CONFIG, strip_frames=0)
    one = write_evaluation(tmp_path / "one", config)
    write_report(tmp_path / "report", merge([one]))
    text = (tmp_path / "report" / "index.html").read_text()
    assert "No pictures of catch/5x5, catch/8x8: the evaluation drew none" in text
    assert text.count("<i style=") == 0  # No legend without pictures.


HOSTILE = (
    "</script><script>hacked=1</script>",
    '<a href="javascript:hacked=1">a</a>',
    "<b>bold</b> &lt;i&gt; $x$ %{y}",
    "<img src=x onerror=hacked=1>",
    "\"'><svg onload=hacked=1>",
    "<!--<script>",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report in which all that others choose is a piece of HTML."""
    folder = tmp_path_factory.mktemp("hostile")
    names = iter(HOSTILE)
    [merged] = merge([write_evaluation(folder / "one", strip=picture())])
    renamed = {x.name: next(names) for x in merged.contenders if x.kind != "random"}
    renamed["random"] = "random"
    tasks: dict[str, str] = dict(zip(TASKS, HOSTILE[3:5], strict=True))
    merged = dataclasses.replace(
        merged,
        tasks=tuple(tasks.values()),
        contenders=tuple(dataclasses.replace(x, name=renamed[x.name]) for x in merged.contenders),
        contender_curves={
            renamed[name]: dataclasses.replace(x, devices=HOSTILE)
            for name, x in merged.contender_curves.items()
        },
        folders={(renamed[c], tasks[t], s): path for (c, t, s), path in merged.folders.items()},
        sources=tuple(
            dataclasses.replace(
                x, folder=folder / HOSTILE[3].replace("/", "_"), provenance={"machine": HOSTILE[0]}
            )
            for x in merged.sources
        ),
        references={tasks[t]: x for t, x in merged.references.items()},
        missing=((HOSTILE[0], HOSTILE[5], 7),),
        problems=HOSTILE,
    )
    discovery = DISCOVERY._replace(
        name=HOSTILE[0], config={"suite": HOSTILE[0], "seed": HOSTILE[5]}, problems=HOSTILE
    )
    output = folder / "report"
    write_report(output, [merged], [discovery], title=HOSTILE[0])
    return output / "index.html"


class _Tags(html.parser.HTMLParser):
    """The tags of a page, with their attributes' names."""

    def __init__(self, text):
        super().__init__()
        self.found = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found |= {(tag, name) for name, _ in (*attrs, ("", ""))}


def test_hostile_names_add_nothing_to_the_page(hostile, tmp_path):
    one = write_evaluation(tmp_path / "one", strip=picture(), skip={("random", TASKS[0], 0)})
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


def _in_browser(look, path, width=1280, scheme="light"):
    """What `look` returns of the page, and the browser's complaints about it."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"None of {', '.join(BROWSERS)} is installed.")
    playwright = pytest.importorskip("playwright.sync_api")
    complaints = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
        )
        page.set_default_timeout(200_000)  # Milliseconds; drawing takes long on a busy machine.
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(path.as_uri())
        found = look(page)
        browser.close()
    return found, complaints


def test_a_browser_shows_hostile_names_as_they_are(hostile):
    def look(page):
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length")
        return (
            page.evaluate("typeof hacked"),
            page.title(),
            set(page.locator("table td, table th").all_text_contents()),
            set(page.locator(".js-plotly-plot text").all_text_contents()),
        )

    (hacked, title, cells, drawn), complaints = _in_browser(look, hostile)
    assert complaints == []
    assert hacked == "undefined"
    assert title == HOSTILE[0]
    contenders = set(HOSTILE[:3])  # The rule and two baselines.
    assert contenders | set(HOSTILE[3:5]) <= cells  # And the tasks.
    assert contenders <= drawn


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_draws_everything_without_complaint(report, width, scheme):
    def look(page):
        page.wait_for_function("document.querySelectorAll('table.dataTable').length >= 1")
        plots = page.locator(".js-plotly-plot")
        drawn = [plots.nth(i).locator(".main-svg").count() for i in range(plots.count())]
        narrowest = page.evaluate(
            "Math.min(...[...document.querySelectorAll('.js-plotly-plot .plot')]"
            ".map(x => x.getBoundingClientRect().width))"
        )
        page_width = page.evaluate("document.documentElement.scrollWidth")
        # What is cut scrolls in a box of its own.
        cut = page.evaluate(
            "[...document.querySelectorAll('body *')]"
            ".filter(x => !x.closest('.wide, .plot, .strips'))"
            ".filter(x => x.getBoundingClientRect().right > innerWidth + 1).length"
        )
        page.evaluate("document.querySelectorAll('details').forEach(x => x.open = true)")
        # A column's box filters.
        box = page.locator("tfoot input[placeholder='agent']").first
        box.press_sequentially("Disco103")
        rows = page.locator("table.dataTable").first.locator("tbody tr")
        rows.nth(2).wait_for(state="detached")
        return drawn, page_width, rows.count(), narrowest, cut

    found, complaints = _in_browser(look, report / "index.html", width, scheme)
    drawn, page_width, shown, narrowest, cut = found
    assert complaints == []
    # Of each scale: aggregates, curves, profiles, improvement; of each evaluation, learning curves.
    assert len(drawn) == 4 * (5 + 3) + 3 + 1
    assert all(drawn)
    assert page_width == width
    assert shown == 2  # A row of each game.
    assert narrowest > 100  # Pixels, of the plot without its labels.
    assert cut == 0


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
