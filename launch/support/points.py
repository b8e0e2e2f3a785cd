"""The points of a sweep over settings of a discovery, and the discovery of each point."""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from disco_common import files, plugins
from disco_common.configuration import from_config
from disco_common.terminal import printable
from evaluation.executors import Report
from evaluation.report import discovery_metrics
from launch.support import child
from launch.support.flag_parsing import parse_config, split_values
from launch.support.settings import DiscoverSettings
from launch.support.setup import make_discovery
from launch.support.tracking import Tracking

LOG = "log.txt"
_PREFIX = "config."
_LONGEST = 2_000  # Characters of an error; those of XLA are longer.


@dataclasses.dataclass(frozen=True)
class Point:
    """One discovery of a sweep.

    Attributes:
      name: of the point and its folder.
      varied: values of the varied fields, by name.
      arguments: flags of `launch.discover` that give its config.
      settings: the config as a dataclass.
    """

    name: str
    varied: dict[str, Any]
    arguments: tuple[str, ...]
    settings: DiscoverSettings


def make_points(arguments: Sequence[str], variations: Sequence[str]) -> list[Point]:
    """Return the points of the product of all variations.

    Args:
      arguments: flags that all points share: `--config=FILE`, `--config.FIELD=VALUE`.
      variations: each `config.FIELD=VALUE,VALUE,...`; values in brackets or quotes may have commas.

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
        settings = from_config(DiscoverSettings, parse_config(arguments))
        # The driver of a sweep has one CPU device, and an agent may need several devices.
        make_discovery(dataclasses.replace(settings, devices_per_agent=1))
    except (ValueError, OSError) as error:
        raise ValueError(f"{' '.join(arguments)}: {error}") from error
    varied = {field.removeprefix(_PREFIX): _get(settings, field) for field in fields}
    name = ",".join(f"{field}={_in_file_name(value)}" for field, value in varied.items())
    return Point(name, varied, tuple(arguments), settings)


def discover(
    point: Point,
    folder: pathlib.Path,
    directory: pathlib.Path,
    tracking: Tracking,
    report: Report,
) -> None:
    """Make or continue a point's discovery in a child process; the work of a job.

    Args:
      point: of the sweep.
      folder: of the sweep.
      directory: to run the command in.
      tracking: of the discovery; a sweep is a group of runs in Weights & Biases.
      report: called with the number of meta-steps so far, about once a second.

    Raises:
      ChildProcessError: with the last line of its log, if the discovery failed.
    """
    run, meta_steps = folder / point.name, point.settings.meta_steps
    if is_finished(run, meta_steps):
        return
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {folder}; expected a workdir on a file system that all machines"
            " share."
        )
    modified = None

    def report_progress() -> None:
        nonlocal modified
        metrics = run / discovery_metrics.FILE
        now = metrics.stat().st_mtime_ns if metrics.exists() else None
        if now != modified and (reports := discovery_metrics.read_metrics(run)[0]):
            last = reports[-1]
            report(last["meta_step"], {"validation reward": last["validation_reward"]})
        modified = now

    log, modules = run / LOG, ",".join(plugins.imported())
    imports = [f"--imports={modules}"] if modules else []
    status = child.run_command(
        "launch.discover",
        [f"--workdir={run}", *point.arguments, *tracking.arguments(), *imports],
        directory,
        log,
        report_progress,
        {"WANDB_RUN_GROUP": folder.name},
    )
    if status or not is_finished(run, meta_steps):
        said = files.read_text(log, files.MOST_DATA, "replace").strip().splitlines() or ["nothing"]
        raise ChildProcessError(
            f"launch.discover ended with status {status}; {log} ends with:"
            f" {printable(said[-1][:_LONGEST])}"
        )


def is_finished(run: pathlib.Path, meta_steps: int) -> bool:
    """Return whether a discovery is finished: it has its last checkpoint and its curves."""
    steps = [int(p.name) for p in run.glob("checkpoints/*") if p.name.isdigit()]
    return max(steps, default=0) >= meta_steps and (run / "curves.png").exists()


def _get(settings: Any, field: str) -> Any:
    for name in field.removeprefix(_PREFIX).split("."):
        settings = getattr(settings, name)
    return settings


def _in_file_name(value: Any) -> str:
    return re.sub(r"[^\w.+-]+", "_", str(value)).strip("_")
