"""Published aggregates, compared with our aggregates of the published scores.

    python -m benchmarks.published_aggregates [--output=FILE.csv]

Prints the aggregates that differ, with explanations, and the number that agree.
"""

import pathlib

from absl import app

from disco_common.atomic import write_atomically
from evaluation.published import aggregates
from evaluation.report.csv_tables import to_csv
from launch.flag_parsing import define_output_file, parse_flags

_OUTPUT = define_output_file("output", "A CSV file for all of them.", required=False)


def main(argv: list[str]) -> None:
    """Print a line for each difference."""
    del argv
    rows = aggregates.reproductions()
    if _OUTPUT.value:
        write_atomically(pathlib.Path(_OUTPUT.value), to_csv(aggregates.rows(rows)))
    for row in rows:
        if not row.agrees:
            printed = row.aggregate
            print(
                f"{row.source}: {printed.statistic} of {printed.agent} is printed as"
                f" {printed.printed}, ours is {row.computed}. {printed.explanation}"
            )
    print(f"{sum(row.agrees for row in rows)} of {len(rows)} agree.")


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
