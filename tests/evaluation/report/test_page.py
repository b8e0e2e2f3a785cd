"""Every template shows texts literally, whatever they look like."""

import collections
import dataclasses
import html.parser
import pathlib

import numpy as np
import pytest

from evaluation.contenders import Contender
from evaluation.report import page
from evaluation.report.discovery_section import DiscoverySection, discovery_section
from evaluation.report.drawing import Drawing
from evaluation.report.html_report import EvaluationSection, FilesSection, without_plots
from evaluation.report.run_files import Picture
from evaluation.report.stored import merge
from evaluation.scoring.references import Reference
from evaluation.scoring.suite_scores import BsuiteScores, CrafterScores
from evaluation.studies.analysis import AnalysisSection
from evaluation.studies.policy_updates import PushSection
from evaluation.studies.robustness import RobustnessSection
from tests.evaluation.common import DISCOVERY, write_evaluation

NAMES = (
    "<script>hacked=1</script>",
    r"a$\foo$.npz",
    "mine[a].npz",
    "[/bold]",
    "\"'><img src=x onerror=hacked=1>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;",
)


FIGURE = Drawing(b"", b'<svg width="10pt" height="10pt"></svg>')


class _Page(html.parser.HTMLParser):
    """A page's texts outside of scripts, and its tags.

    Attributes:
      texts: of elements, and of attributes.
      tags: with the names of their attributes.
    """

    def __init__(self, text: str):
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.texts += [value or "" for name, value in attrs if name == "alt"]
        self._is_script = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._is_script = False

    def handle_data(self, data):
        if not self._is_script:
            self.texts.append(data)


def _rendered(section: page.Section) -> _Page:
    """The section's own template, without the page around it."""
    template = page.environment().get_template(section.template)
    return _Page(template.render(section=section))


def _require_literal(section, harmless, *texts: str) -> None:
    """The section shows the texts, and has the tags that one with harmless names has."""
    shown, expected = _rendered(section), _rendered(harmless)
    for text in texts:
        assert any(text in found for found in shown.texts), text
    assert shown.tags == expected.tags


def _evaluation(folder, name: str) -> EvaluationSection:
    """A section in which everything that others choose has this name."""
    [merged] = merge([write_evaluation(folder)])
    first = merged.contenders[-1]
    renamed = Contender(name=name, algorithm=name, settings={name: name})
    merged = dataclasses.replace(
        merged,
        tasks=(name, f"{name} 2"),
        references={name: Reference("", 0.0, 1.0, None, name)},
        contenders=(*merged.contenders[:-1], renamed),
        contender_curves={
            (name if key == first.name else key): dataclasses.replace(x, devices=(name,))
            for key, x in merged.contender_curves.items()
        },
        folders={},
        sources=tuple(dataclasses.replace(x, provenance={"machine": name}) for x in merged.sources),
        missing=((name, name, 7),),
        problems=(name,),
    )
    section = without_plots(name, merged)
    vars(merged)["left_out"] = {f"{name} 2": name}
    vars(merged)["comparisons"] = [
        dataclasses.replace(
            x,
            scale=dataclasses.replace(x.scale, name=name, definition=name),
            left_out={name: (name,)},
        )
        for x in merged.comparisons
    ]
    return dataclasses.replace(
        section,
        plots=collections.defaultdict(lambda: FIGURE),
        result=(name,),
        pictures={
            name: [
                Picture(name, pathlib.Path(f"film{x}"), f"{name}{x}")
                for x in (".gif", ".mp4", ".png")
            ]
        },
        bsuite={name: [BsuiteScores({name: 0.5}, {name: 0.5}, (name,))]},
        bsuite_errors={(name, 3): ValueError(name)},
        achievements={name: {name: CrafterScores({name: 1.0}, np.ones(2))}},
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation(name, tmp_path):
    """The templates evaluation.html, comparison.html and bsuite.html."""
    harmless = _evaluation(tmp_path / "harmless", "mine")
    _require_literal(
        _evaluation(tmp_path / "hostile", name),
        harmless,
        f"{name} on {name}, seed 7",
        f"{name} 2: {name}",
        f"{name} has no run on {name}, and no aggregate here.",
        f"{name} with seed 3 is left out. {name}",
        f"Achievements in {name}",
    )


def _discovery(name: str) -> DiscoverySection:
    config = {"suite": name, "seed": name}
    return discovery_section(DISCOVERY._replace(name=name, config=config, problems=(name,)))


@pytest.mark.parametrize("name", NAMES)
def test_a_discovery(name):
    _require_literal(_discovery(name), _discovery("mine"), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_files(name):
    def section(text: str):
        return FilesSection(name=text, files=["scores.csv"])

    _require_literal(section(name), section("mine"), "a row for each run and scale")


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis(name):
    def section(text: str):
        names = "quantities influences information"
        plots: dict[str, Drawing] = {name: FIGURE for name in names.split()}
        table, saliency = [{"updates": 0, text: text}], [[(text, b"")]]
        return AnalysisSection(
            name=text,
            plots=plots,
            horizon=10,
            by_age=table,
            correlations=table,
            saliency=saliency,
        )

    _require_literal(section(name), section("mine"), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_push_of_a_rule(name):
    def section(text: str):
        return PushSection(name=text, plots={"by_ratio": FIGURE, "by_advantage": FIGURE})

    _require_literal(section(name), section("mine"))


@pytest.mark.parametrize("name", NAMES)
def test_robustness(name):
    def section(text: str):
        return RobustnessSection(
            name=text,
            plots=dict.fromkeys("sizes replay optimizers".split(), FIGURE),
            score_definition=text,
            num_seeds=2,
            num_combinations=36,
            rows=[{"contender": text}],
        )

    _require_literal(section(name), section("mine"), f"Score: {name}; 2 seeds.")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_around_the_sections(name):
    def rendered(text: str) -> _Page:
        return _Page(page.render(text, [_discovery(text)], [text]))

    shown = rendered(name)
    assert shown.texts.count(name) >= 3  # The title in the head and above, and the remark.
    assert shown.texts.count(f"Discovery: {name}") == 2  # The link, and the heading.
    assert shown.tags == rendered("mine").tags


def test_every_template_is_tested():
    """A new one needs a test above: then it may be added here."""
    tested = "analysis bsuite comparison discovery evaluation files page push robustness"
    found = {path.stem for path in page.TEMPLATES.glob("*.html")}
    assert found == {*tested.split(), "macros"}
    assert page.environment().autoescape is True
