r"""Turns finished runs into a report: one HTML file, and its tables and pictures.

    python -m launch.report --runs=runs/grid57/grid_heldout --output=report
    python -m launch.report --runs=runs/mine,runs/others --runs=runs/discovery --output=report

`--runs` takes workdirs of `launch.evaluate`, finished or not, and of `launch.discover`, whose
curves are shown besides. Evaluations of the same tasks with the same budget and score are compared
as one; others stand side by side. What is missing, damaged or there twice is named in the report.
"""

import json
import pathlib
from collections.abc import Sequence

from absl import flags

from common.terminal import printable
from evaluation import archive, discovery_reports, reports
from launch import commands
from launch.configuration import from_json
from launch.flag_parsing import define_output_folder


def run(runs: Sequence[str], output: str, title: str) -> list[pathlib.Path]:
    """Writes a report of some workdirs; returns its files.

    Raises:
      ValueError: if there is no workdir, or one cannot be read or has no run.
      OSError: if a file cannot be written.
    """
    if not runs:
        raise ValueError(
            "--runs is empty; expected workdirs of launch.evaluate or launch.discover."
        )
    evaluations, discoveries = [], []
    for folder in dict.fromkeys(map(pathlib.Path, runs)):
        if not folder.is_dir():
            raise ValueError(f"--runs: {str(folder)!r} is not a folder; expected a workdir.")
        if (folder / discovery_reports.FILE).exists():
            discoveries.append(_discovery(folder))
        else:
            evaluations.append(archive.read_manifest(folder, from_json))
    gathered = archive.gather(evaluations)
    for one in gathered:
        if not one.folders:
            names = ", ".join(str(x.folder) for x in one.sources)
            raise ValueError(
                f"--runs: {names} has no finished run"
                f"{' that can be read: ' + one.problems[0] if one.problems else ''}; expected at"
                " least one."
            )
    return reports.write(pathlib.Path(output), gathered, discoveries, title)


def _discovery(folder: pathlib.Path) -> reports.Discovery:
    found, problems = discovery_reports.read(folder)
    if not found:
        raise ValueError(
            f"--runs: {folder / discovery_reports.FILE} has no report"
            f"{' that can be read: ' + problems[0].rstrip('.') if problems else ''}; expected at"
            " least one."
        )
    try:
        config = json.loads((folder / "config.json").read_text())
        if not isinstance(config, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise ValueError(f"--runs: {str(folder)!r} has no config.json: {error}.") from error
    return reports.Discovery(folder.name, config, found, problems)


def main() -> None:
    """The command."""
    values = flags.FLAGS
    runs = [name.strip() for value in values.runs for name in value.split(",") if name.strip()]
    files = run(runs, values.output, values.title)
    print("Written: " + ", ".join(map(printable, files)))


if __name__ == "__main__":
    flags.DEFINE_multi_string("runs", [], "Workdirs, by commas or repetition.")
    define_output_folder("output", "Folder for the report.")
    flags.DEFINE_string("title", "Report", "Of the page.")
    commands.run(main)
