"""Sweeps: discoveries with several settings, which an executor makes, and their comparison."""

import contextlib
import dataclasses
import functools
import itertools
import math
import operator
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from disco_common.configuration import from_config
from disco_common.files import write_atomically
from disco_common.terminal import printable
from evaluation.evaluate import tasks_of
from evaluation.executors import Executor, Job, JobsFailedError, Numbers, ReportProgress
from evaluation.report.discoveries import PROBE, read_metrics
from evaluation.report.discovery_section import sweep_curves
from launch.support import workdirs
from launch.support.command_flags import parse_config, split_values
from launch.support.discoveries import discover
from launch.support.discovery_config import CHANGEABLE, DiscoveryRunConfig, make_rule
from launch.support.display import print_rows, progress_bar
from launch.support.tracking import Tracking
from meta.estimators import make_discovery

_MEANS = (PROBE, "validation_reward", "meta_loss", "episode_return")
_PREFIX = "config."
_SECONDS_TO_STOP = 120.0  # For a discovery to write a checkpoint when it is stopped.


@dataclasses.dataclass(frozen=True)
class Point:
    """One discovery of a sweep, its folder's name, and the values of the fields that vary."""

    name: str
    varied: dict[str, Any]
    settings: DiscoveryRunConfig


def make_points(arguments: Sequence[str], variations: Sequence[str]) -> list[Point]:
    """Return the points of the product of all variations, `config.FIELD=VALUE,VALUE,...`.

    Values in brackets or quotes may have commas. The points share the other arguments,
    `--config=FILE` and `--config.FIELD=VALUE`.

    Raises:
      ValueError: naming the flag, if a field is unknown, a value is not of the field's type, or a
        value is given twice.
    """
    fields: dict[str, list[str]] = {}
    for variation in variations:
        field, _, values = variation.lstrip("-").partition("=")
        split = split_values(values)
        if not field.startswith(_PREFIX) or not all(split):
            raise ValueError(
                f"--vary={variation} is malformed; expected config.FIELD=VALUE,VALUE,..."
            )
        if field in fields:
            raise ValueError(f"--vary names {field} twice; expected all of its values in one.")
        fields[field] = split
    points = []
    for values in itertools.product(*fields.values()):
        own = [f"--{field}={value}" for field, value in zip(fields, values, strict=True)]
        point = _make_point([*arguments, *own], list(fields))
        if any(point.name == other.name for other in points):
            raise ValueError(f"--vary gives {point.name} twice; expected different values.")
        points.append(point)
    return points


def _make_point(arguments: Sequence[str], fields: Sequence[str]) -> Point:
    try:
        settings = from_config(DiscoveryRunConfig, parse_config(arguments))
        # The driver of a sweep has one CPU device, and an agent may need several devices.
        alone = dataclasses.replace(settings, devices_per_agent=1)
        make_discovery(alone, tasks_of(split_values(settings.suite)), make_rule(settings))
    except (ValueError, OSError) as error:
        raise ValueError(f"{' '.join(arguments)}: {error}") from error
    names = [field.removeprefix(_PREFIX) for field in fields]
    varied = {name: operator.attrgetter(name)(settings) for name in names}
    values = [re.sub(r"[^\w.+-]+", "_", str(value)).strip("_") for value in varied.values()]
    return Point(",".join(map("=".join, zip(names, values, strict=True))), varied, settings)


def sweep(
    points: Sequence[Point], workdir: pathlib.Path, executor: Executor, tracking: Tracking
) -> None:
    """Make all discoveries of a sweep that are not finished, and write their comparison.

    Raises:
      JobsFailedError: if some failed.
      ValueError: if a point in the workdir was started with other settings.
      OSError: if something cannot be written.
    """
    workdir = workdir.absolute()
    for point in points:
        workdirs.require_same_settings(workdir / point.name, point.settings, CHANGEABLE)
    jobs = [
        Job(
            point.name,
            functools.partial(_discover, point, workdir, tracking),
            units=point.settings.meta_steps,
            seconds_to_stop=_SECONDS_TO_STOP,
        )
        for point in points
        if not is_finished(workdir / point.name, point.settings.meta_steps)
    ]
    print(f"{len(points) - len(jobs)} of {len(points)} discoveries are finished.", flush=True)
    errors = executor.run_jobs("sweep", jobs, progress_bar) if jobs else []
    failed = {job.name: error for job, error in zip(jobs, errors, strict=True) if error}
    _report(points, workdir, failed)
    if failed:
        raise JobsFailedError(
            [f"{name}: {error}" for name, error in failed.items()],
            len(jobs),
            "The others are kept; started again, the command continues with the missing ones.",
        )


def _discover(
    point: Point, folder: pathlib.Path, tracking: Tracking, report: ReportProgress
) -> None:
    """Make or continue a point's discovery in the sweep's folder; the work of a job."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {folder}; expected a workdir on a file system that all machines"
            " share."
        )

    def show(completed: float, numbers: Numbers, doing: str) -> None:  # A part of the sweep's.
        del doing
        report(int(completed), numbers)

    discover(
        point.settings,
        str(folder / point.name),
        tracking,
        open_progress=lambda title, total: contextlib.nullcontext(show),
    )


def is_finished(run: pathlib.Path, meta_steps: int) -> bool:
    """Return whether a discovery is finished: it has its last checkpoint and its curves."""
    steps = [int(p.name) for p in run.glob("checkpoints/*") if p.name.isdigit()]
    return max(steps, default=0) >= meta_steps and (run / "curves.png").exists()


def _report(points: Sequence[Point], workdir: pathlib.Path, failed: Mapping[str, str]) -> None:
    """Write `sweep.csv` and the plot, and print the table."""
    found = {point.name: read_metrics(workdir / point.name) for point in points}
    rows = [
        {
            "point": point.name,
            **point.varied,
            **_last_means(found[point.name][0]),
            "status": f"failed: {failed[point.name]}" if point.name in failed else "finished",
        }
        for point in points
    ]
    table = pd.DataFrame(rows)
    write_atomically(workdir / "sweep.csv", table.to_csv(index=False))
    drawn = sweep_curves({name: reports for name, (reports, _) in found.items()})
    files = (workdir / "sweep.csv", *drawn.write(workdir, "sweep"))
    shown = table.drop(columns=list(points[0].varied)).astype(str).to_dict("records")
    print_rows("Means over the last tenth of the meta-steps.", cast(Any, shown))
    for _, problems in found.values():
        for problem in problems:
            print(printable(f"Left out: {problem}"))
    print(f"Written: {', '.join(map(printable, files))}")


def _last_means(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over a discovery's last tenth; an empty text if no number is finite."""
    table = pd.DataFrame(reports, columns=pd.Index(["meta_step", *_MEANS]))
    made = int(table["meta_step"].iloc[-1]) if len(table) else 0
    last = table.loc[table["meta_step"] > 0.9 * made, list(_MEANS)].astype(float)
    means = last.where(np.isfinite(last)).mean()
    return {"meta_steps": made} | {
        str(name): f"{x:.6g}" if math.isfinite(x) else "" for name, x in means.items()
    }
