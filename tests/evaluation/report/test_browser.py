"""A report's page in a browser."""

import shutil

import pytest

from tests.evaluation.common import HOSTILE

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


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
        return (
            page.evaluate("typeof hacked"),
            page.title(),
            set(page.locator("table td, table th").all_text_contents()),
        )

    (hacked, title, cells), complaints = _in_browser(look, hostile)
    assert complaints == []
    assert hacked == "undefined"
    assert title == HOSTILE[0]
    assert set(HOSTILE[:5]) <= cells  # The rule, two baselines, and the tasks.


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_draws_everything_without_complaint(report, width, scheme):
    def look(page):
        boxes = "[...document.querySelectorAll('.plot svg')].map(x => x.getBoundingClientRect())"
        drawn = page.evaluate(f"{boxes}.map(x => [x.width, x.height])")
        page_width = page.evaluate("document.documentElement.scrollWidth")
        # What is cut scrolls in a box of its own.
        cut = page.evaluate(
            "[...document.querySelectorAll('body *')]"
            ".filter(x => !x.closest('.wide, .plot, .films'))"
            ".filter(x => x.getBoundingClientRect().right > innerWidth + 1).length"
        )
        page.evaluate("document.querySelectorAll('details').forEach(x => x.open = true)")
        return drawn, page_width, cut

    found, complaints = _in_browser(look, report / "index.html", width, scheme)
    drawn, page_width, cut = found
    assert complaints == []
    # Of each scale: aggregates, efficiency, profiles, improvement; of each evaluation, learning
    # curves; and the discovery's.
    assert len(drawn) == 4 * 4 + 3 + 1
    assert all(own >= 390 and height >= 100 for own, height in drawn)  # Pixels.
    assert page_width == width
    assert cut == 0
