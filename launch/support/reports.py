"""A report of workdirs: evaluations, merged where they are of the same tasks, and discoveries."""

import pathlib
from collections.abc import Sequence

from disco_common.json_lines import read_object
from evaluation.report import discovery_metrics, probe_scores
from evaluation.report.discovery_metrics import Discovery
from evaluation.report.html_report import write_report
from evaluation.report.manifest import read_manifest
from evaluation.report.merging import merge
from launch.support import workdirs


def run(runs: Sequence[str], output: str, title: str) -> list[pathlib.Path]:
    """Write a report of workdirs; return its files.

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
        if (folder / discovery_metrics.FILE).exists():
            discoveries.append(_discovery(folder))
        else:
            evaluations.append(read_manifest(folder))
    merged = merge(evaluations)
    for one in merged:
        if not one.folders:
            names = ", ".join(str(x.folder) for x in one.sources)
            raise ValueError(
                f"--runs: {names} has no finished run"
                f"{' that can be read: ' + one.problems[0] if one.problems else ''}; expected at"
                " least one."
            )
    return write_report(pathlib.Path(output), merged, discoveries, title)


def _discovery(folder: pathlib.Path) -> Discovery:
    found, problems = discovery_metrics.read_metrics(folder)
    if not found:
        raise ValueError(
            f"--runs: {folder / discovery_metrics.FILE} has no report"
            f"{' that can be read: ' + problems[0].rstrip('.') if problems else ''}; expected at"
            " least one."
        )
    try:
        config = read_object(folder / workdirs.CONFIG)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--runs: {str(folder)!r} has no config that can be read: {str(error).rstrip('.')}."
        ) from error
    try:
        probes = probe_scores.read(folder)
    except ValueError:  # Which `read_metrics` has named.
        probes = []
    return Discovery(folder.name, config, found, problems, probes)
