"""Progress of a command, on a terminal and elsewhere."""

import pytest

from launch.support.display import progress_bar


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
    with progress_bar(name, 3) as show:
        show(0, {}, "compiling")
        show(3, {"[/red]": 0.5}, "")
    output = capsys.readouterr().out
    assert shown in output
    assert "[/red] 0.5" in output
    assert "\x1b[31m " not in output


def test_numbers_that_are_unknown_are_not_shown(monkeypatch, capsys):
    """As the return before an episode has ended."""
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    with progress_bar("learn", 2) as show:
        show(2, {"steps/s": 3e3, "return": None}, "mine on catch")
    assert capsys.readouterr().out == "learn: 2/2, mine on catch: steps/s 3000\n"
