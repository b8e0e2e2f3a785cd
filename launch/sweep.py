r"""Discover rules with several settings, and compare their learning curves.

    python -m launch.sweep --workdir=runs/sweep --config=launch/configs/grid57_laptop.py \
        --vary=config.meta.learning_rate=1e-3,3e-3 --vary=config.seed=0,1,2

Each point of the product of all `--vary` is a discovery. It is made by `launch.discover` in a
process of its own, in `workdir/<point>/` (for example `meta.learning_rate=0.001,seed=0/`), where
`log.txt` has its output. Discoveries are made one after the other, or with `--executor=ray` on a
Ray cluster of one or several machines, which must then share the workdir's file system.

Started again with the same workdir, the command skips finished discoveries, and continues the
others, also failed ones, from their checkpoints. If one fails, and again, the others are still
made, and the exit status is 3. SIGTERM and Ctrl-C stop the discoveries, which write a checkpoint
first, and end the command with status 143 or 130.

At the end the workdir has `sweep.csv`, a row per point with means over the last tenth of its
meta-steps, and `sweep.png`, their curves.
"""

import csv
import functools
import io
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags
from rich.table import Table

from disco_common.atomic import write_atomically
from disco_common.terminal import console, printable
from evaluation.executors import Executor, Job, JobsFailedError
from evaluation.report.discovery_metrics import read_metrics
from evaluation.report.static_plots import PROBE, sweep_curves
from launch.configs import grid57_laptop
from launch.support import child, commands, execution, tracking, workdirs
from launch.support.flag_parsing import (
    config_arguments,
    define_config,
    define_imports,
    define_output_folder,
    only_prints_config,
)
from launch.support.points import Point, discover, is_finished, make_points
from launch.support.progress import Progress
from launch.support.settings import CHANGEABLE
from launch.support.tracking import Tracking

_MEANS = (PROBE, "validation_reward", "meta_loss", "episode_return")


def sweep(
    points: Sequence[Point], workdir: pathlib.Path, executor: Executor, shown: Tracking
) -> None:
    """Make all discoveries of a sweep that are not finished, and write their comparison.

    Raises:
      JobsFailedError: if some failed at each attempt.
      ValueError: if a point in the workdir was started with other settings.
      OSError: if something cannot be written.
    """
    workdir = workdir.absolute()
    for point in points:
        workdirs.open_workdir(workdir / point.name, point.settings, changeable=CHANGEABLE)
    jobs = [
        Job(
            point.name,
            functools.partial(discover, point, workdir, pathlib.Path.cwd(), shown),
            units=point.settings.meta_steps,
            seconds_to_stop=child.SECONDS_TO_STOP,
        )
        for point in points
        if not is_finished(workdir / point.name, point.settings.meta_steps)
    ]
    print(f"{len(points) - len(jobs)} of {len(points)} discoveries are finished.", flush=True)
    failures = executor.run("sweep", jobs, Progress) if jobs else []
    failed = {failure.job.name: failure.error for failure in failures}
    _report(points, workdir, failed)
    if failures:
        raise JobsFailedError(
            failures,
            len(jobs),
            "The others are kept; started again, the command continues with the missing ones.",
        )


def _report(points: Sequence[Point], workdir: pathlib.Path, failed: Mapping[str, str]) -> None:
    """Write `sweep.csv` and the plot, and print the table."""
    reports, problems = {}, []
    for point in points:
        reports[point.name], damaged = read_metrics(workdir / point.name)
        problems += damaged
    headings = ["point", *points[0].varied, "meta_steps", *_MEANS, "status"]
    buffer, table = io.StringIO(), Table(title="Means over the last tenth of the meta-steps.")
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(headings)
    shown = ["point", "meta_steps", *_MEANS, "status"]
    for heading in shown:
        table.add_column(heading, no_wrap=heading == "point")
    for point in points:
        row: dict[str, Any] = {
            "point": point.name,
            **point.varied,
            **_last_means(reports[point.name]),
            "status": f"failed: {failed[point.name]}" if point.name in failed else "finished",
        }
        rows.writerow([row[heading] for heading in headings])
        table.add_row(*(printable(str(row[heading])) for heading in shown))
    write_atomically(workdir / "sweep.csv", buffer.getvalue())
    drawn = sweep_curves(reports).write(workdir, "sweep")
    console(log_width=200).print(table)
    for problem in problems:
        print(printable(f"Left out: {problem}"))
    print(f"Written: {', '.join(map(printable, (workdir / 'sweep.csv', *drawn)))}")


def _last_means(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over a discovery's last tenth; an empty text if no number is finite."""
    made = reports[-1]["meta_step"] if reports else 0
    last = [report for report in reports if report["meta_step"] > 0.9 * made]
    means: dict[str, Any] = {"meta_steps": made}
    for name in _MEANS:
        values = [x for x in (report.get(name) for report in last) if x is not None]
        values = [x for x in values if math.isfinite(x)]
        means[name] = f"{np.mean(values):.6g}" if values else ""
    return means


def main() -> None:
    """Run the command."""
    values = flags.FLAGS
    points, shown = make_points(config_arguments(), values.vary), tracking.of_flags(values)
    with execution.opened_executor(values) as executor, workdirs.locked(values.workdir):
        sweep(points, pathlib.Path(values.workdir), executor, shown)


if __name__ == "__main__":
    define_output_folder("workdir", "Folder of the sweep.")
    flags.DEFINE_multi_string(
        "vary",
        None,
        "config.FIELD=VALUE,VALUE,...: a field to vary, and its values. If the flag is repeated,"
        " the sweep has all combinations.",
        required=not only_prints_config(),
    )
    with commands.ended_by_user_errors():
        define_imports()
    define_config(grid57_laptop)
    tracking.define_flags()
    execution.define_flags()
    commands.leave_accelerators()
    commands.run(main)
