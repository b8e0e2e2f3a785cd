r"""Write a report of runs: one HTML file, and its tables and plots.

    python -m launch.report --runs=runs/grid57/grid_heldout --output=report
    python -m launch.report --runs=runs/mine,runs/others --runs=runs/discovery --output=report

`--runs` takes workdirs of `launch.evaluate`, finished or not, and of `launch.discover`, whose
curves are shown, too. Evaluations of the same tasks with the same budget and score are merged;
others have sections of their own. The report lists missing, damaged and duplicate runs.
"""

from absl import flags

from launch.support import commands
from launch.support.flag_parsing import define_output_folder, listed_paths


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable
    from launch.support.reports import run

    values = flags.FLAGS
    files = run(listed_paths(values.runs), values.output, values.title)
    print("Written: " + ", ".join(map(printable, files)))


def _define_flags() -> None:
    flags.DEFINE_multi_string(
        "runs",
        [],
        "Workdirs, by commas or repetition. One whose name has a comma is a value of its own, or in"
        " quotes: --runs=runs/lr=1,2 --runs=\"'runs/lr=1,3',runs/other\".",
    )
    define_output_folder("output", "Folder for the report.")
    flags.DEFINE_string("title", "Report", "Title of the page.")


if __name__ == "__main__":
    commands.run(main, _define_flags)
