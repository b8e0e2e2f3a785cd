r"""Write a report of runs: one HTML file, and its tables and plots.

    python -m launch.report --runs=runs/grid57/grid_heldout --output=report
    python -m launch.report --runs=runs/mine,runs/others --runs=runs/discovery --output=report

`--runs` takes workdirs of `launch.evaluate`, finished or not, and of `launch.discover`, whose
curves are shown, too. Evaluations of the same tasks with the same budget and score are merged;
others have sections of their own. The report lists missing, damaged and duplicate runs.
"""

import pathlib
from collections.abc import Sequence

from absl import flags

from launch.support import commands
from launch.support.command_flags import define_output_folder, listed_paths


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable

    values = flags.FLAGS
    files = write(listed_paths(values.runs), values.output, values.title)
    print("Written: " + ", ".join(map(printable, files)))


def write(runs: Sequence[str], output: str, title: str) -> list[pathlib.Path]:
    """Write a report of workdirs; return its files.

    Raises:
      ValueError: if there is no workdir, or one cannot be read or has no run.
      OSError: if a file cannot be written.
    """
    from evaluation.report.discoveries import METRICS, read_discovery
    from evaluation.report.html_report import write_report
    from evaluation.report.stored import merge, read_manifest

    if not runs:
        raise ValueError(
            "--runs is empty; expected workdirs of launch.evaluate or launch.discover."
        )
    evaluations, discoveries = [], []
    for folder in dict.fromkeys(map(pathlib.Path, runs)):
        if not folder.is_dir():
            raise ValueError(f"--runs: {str(folder)!r} is not a folder; expected a workdir.")
        if (folder / METRICS).exists():
            discoveries.append(read_discovery(folder))
        else:
            evaluations.append(read_manifest(folder))
    merged = merge(evaluations)
    for one in merged:
        if not one.folders:
            names = ", ".join(str(x.folder) for x in one.sources)
            which = f" that can be read: {one.problems[0]}" if one.problems else ""
            raise ValueError(f"--runs: {names} has no finished run{which}; expected at least one.")
    return write_report(pathlib.Path(output), merged, discoveries, title)


def _define_flags() -> None:
    flags.DEFINE_multi_string(
        "runs",
        [],
        "Workdirs, by commas or repetition. One whose name has a comma is a value of its own.",
    )
    define_output_folder("output", "Folder for the report.")
    flags.DEFINE_string("title", "Report", "Title of the page.")


if __name__ == "__main__":
    commands.run(main, _define_flags)
