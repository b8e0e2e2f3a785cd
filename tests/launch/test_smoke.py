"""The smoke command, as a user starts it."""

from tests.environments.suites.test_sokoban import FIRST
from tests.launch.common import outcomes


def test_names_of_files_are_printed_as_they_are(tmp_path):
    levels = tmp_path / "p[" / "bold].txt"
    levels.parent.mkdir()
    levels.write_text(FIRST)
    name = f"sokoban/file:{levels}"
    arguments = [f"--suite={name}", "--steps=8", "--agent=random"]
    ((status, output),) = outcomes("launch.smoke", {"levels": arguments}).values()
    assert status == 0, output
    assert f"│ {name} │" in output
