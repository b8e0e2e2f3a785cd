"""Progress of a command, on a terminal and elsewhere."""

import time

import pytest

from launch.support.progress import Progress


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("learn p[/bold]", "learn p[/bold]"),
        ("mine[a] :smile:", "mine[a] :smile:"),
        ("red \x1b[31m \udcff", r"red \x1b[31m \udcff"),
    ],
)
def test_names_are_shown_as_they_are(name, shown, is_terminal, monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    monkeypatch.setenv("COLUMNS", "150")
    with Progress(name, 3) as progress:
        progress.start(0)
        progress.update(3, {"[/red]": 0.5})
    output = capsys.readouterr().out
    assert shown in output
    assert "[/red] 0.5" in output
    assert "\x1b[31m " not in output


def test_the_time_left_is_that_after_compilation(monkeypatch, capsys):
    """A minute to the first of 11 units, and 2 seconds for each of the others."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    monkeypatch.setattr("launch.support.progress._SECONDS_BETWEEN_LINES", 0.0)
    with Progress("learn", 12) as progress:
        progress.start(1)
        for completed, now[0] in ((2, 60.0), (3, 62.0), (12, 80.0)):
            progress.update(completed, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "learn: 1/12, compiling",
        "learn: 2/12",
        "learn: 3/12, 18 s left",
        "learn: 12/12, 0 s left",
    ]


def test_numbers_that_are_unknown_are_not_shown(monkeypatch, capsys):
    """As the return before an episode has ended."""
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    with Progress("learn", 2) as progress:
        progress.update(2, {"steps/s": 3e3, "return": None}, "mine on catch", left="")
    assert capsys.readouterr().out == "learn: 2/2, mine on catch: steps/s 3000\n"
