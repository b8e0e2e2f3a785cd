"""The run of a discovery in its workdir: continued, probed, logged, and stopped by signals."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
from absl import logging

import disco
from disco_common import stopping
from disco_common.checkpoints import Checkpoints
from disco_common.files import write_atomically
from evaluation.executors import OpenProgress
from evaluation.report import probe_scores
from evaluation.report.discovery_metrics import read_metrics
from evaluation.report.discovery_plots import discovery_curves
from evaluation.rules import fingerprint
from launch.support import dry_run, probes, processes, workdirs
from launch.support.progress import Progress
from launch.support.provenance import code_version
from launch.support.rule_provenance import rule_provenance
from launch.support.settings import CHANGEABLE, DiscoverSettings
from launch.support.setup import TASKS, keep_start, kept_rule, make_discovery, make_rule, make_tasks
from launch.support.tracking import PROBE, MetricsLog, Tracking
from meta.discovery import Discovery
from meta.run import run
from meta.state import DiscoveryState

_PROBE = "score of fresh agents (0 random policy, 1 reference)"
_SHOWN = {
    "validation_reward": "validation reward",
    "meta_loss": "meta-loss",
    "environment_steps_per_second": "env steps/s",
}


def discover(
    settings: DiscoverSettings,
    workdir: str,
    shown: Tracking = Tracking(),
    is_dry: bool = False,
    open_progress: OpenProgress = Progress,
) -> None:
    """Run or continue a discovery.

    Args:
      settings: of the run.
      workdir: for all results.
      shown: where its metrics are shown.
      is_dry: only say what would be run (`launch.support.dry_run`).
      open_progress: opens the display of its progress in meta-steps.

    Raises:
      ValueError: if the settings or the workdir do not fit.
      WorkdirHeldError: if another command has the workdir open.
      CheckpointError: if a checkpoint cannot be written or read.
      SystemExit: if a signal stopped it (`stopping_by_signals`), with its status.
    """
    stop = _Stop()
    processes.require_equal("config", json.dumps(dataclasses.asdict(settings)))
    processes.require_equal("version of the code", code_version())
    rule, tasks = make_rule(settings, pathlib.Path(workdir)), make_tasks(settings)
    sources = {task.name: task.sha256 for task in tasks if task.sha256}
    processes.require_equal("files of tasks", json.dumps(sources))
    if settings.rule.start:
        processes.require_equal("rule to start from", fingerprint(rule))
    discovery = make_discovery(settings, tasks, rule)
    discovery.check()
    if is_dry:
        workdirs.require_same_settings(workdir, settings, CHANGEABLE)
        workdirs.require_same_sources(workdir, sources)
        dry_run.show_discovery(settings, discovery, workdir, stop.is_asked)
        stop.raise_if_stopped()
        return
    own = probes.Probes(settings, tasks)
    if own.interval and processes.are_several():
        own.interval = 0
        logging.warning("A run of several processes has no probes.")
    with workdirs.opened(workdir, settings, changeable=CHANGEABLE) as folder:
        processes.require_shared(folder)
        workdirs.keep_sources(folder, sources)
        if processes.is_first():
            keep_start(settings, folder, rule)
        _run_in(folder, discovery, settings, own, stop, shown, open_progress)
    stopping.set_unsaved(False)
    stop.raise_if_stopped()


def _run_in(
    folder: pathlib.Path,
    discovery: Discovery,
    settings: DiscoverSettings,
    own: probes.Probes,
    stop: "_Stop",
    shown: Tracking,
    open_progress: OpenProgress,
) -> None:
    """Make the remaining meta-steps; of several processes, the first one logs and reports."""
    checkpoints = Checkpoints(folder / workdirs.CHECKPOINTS, keep=settings.checkpoints_kept)
    with contextlib.closing(checkpoints):
        run_discovery = partial(
            run,
            discovery,
            meta_steps=settings.meta_steps,
            checkpoints=checkpoints,
            checkpoint_interval=settings.checkpoint_interval,
            log_interval=settings.log_interval,
            should_stop=stop.is_asked,
            probe_interval=own.interval,
            on_checkpoint=partial(_keep_rule, folder, discovery, settings),
        )
        if not processes.is_first():
            run_discovery()
            return
        with (
            MetricsLog(folder, shown, dataclasses.asdict(settings)) as log,
            open_progress("discover", settings.meta_steps) as bar,
        ):
            assert bar is not None
            newest: dict[str, float | None] = {}  # Score of a probe.

            def on_start(step):
                # After the checkpoints are read: if they are unusable, the file stays as it is.
                write_atomically(folder / TASKS, json.dumps(_names_of_tasks(discovery)) + "\n")
                log.continue_from(step)
                bar.start(step)
                newest.update((_PROBE, one.score) for one in probe_scores.read(folder))
                logging.info("%s at meta-step %d.", "Continuing" if step else "Starting", step)
                if step and discovery.has_hosts:
                    logging.warning(
                        "Environments outside JAX start new episodes, and their agents' replays"
                        " start empty: neither is saved."
                    )

            def on_report(report):
                log.write(report["meta_step"], report)
                numbers = {shown: report[name] for name, shown in _SHOWN.items()}
                bar.update(report["meta_step"], newest | numbers)

            def probe(step, state):
                bar.update(step, newest, doing="fresh agents learn by the average rule")
                rule, made = _average(discovery, settings, step, state)
                try:
                    found = own.make(folder, step, rule, made)
                except stopping.StoppedBySignal:
                    return False
                newest[_PROBE] = found.score
                by_task = {f"probe/{task}": x for task, x in found.tasks.items()}
                log.show(step, {PROBE: found.score} | by_task)
                bar.update(step, newest)
                return True

            run_discovery(on_start=on_start, on_report=on_report, probe=probe)
            if reports := read_metrics(folder)[0]:
                discovery_curves(reports).write(folder, "curves")


def _keep_rule(
    folder: pathlib.Path,
    discovery: Discovery,
    settings: DiscoverSettings,
    step: int,
    state: DiscoveryState,
) -> None:
    """Write the average rule of a checkpoint, which is small and stays when the checkpoint goes."""
    if processes.is_first():
        file = kept_rule(folder, step)
        file.parent.mkdir(exist_ok=True)
        rule, made = _average(discovery, settings, step, state)
        disco.save(rule, file, made)


def _average(
    discovery: Discovery, settings: DiscoverSettings, step: int, state: DiscoveryState
) -> tuple[disco.DiscoveredRule, dict[str, Any]]:
    """Return the average rule after a number of meta-steps, and its provenance."""
    average, meta_steps = jax.device_get((state.average, state.task_meta_steps))
    return average, rule_provenance(settings, step, _names_of_tasks(discovery), meta_steps)


def _names_of_tasks(discovery: Discovery) -> list[Sequence[str]]:
    """Return the tasks' names of each group."""
    return [group.names for group in discovery.groups]


@contextlib.contextmanager
def stopping_by_signals() -> Iterator[None]:
    """Have SIGTERM and Ctrl-C stop a discovery within, after a checkpoint.

    It must be around all of a discovery: JAX's callbacks swallow a KeyboardInterrupt. With several
    processes JAX handles SIGTERM, and tells the other processes of it.
    """
    if not processes.are_several():
        with stopping.ending_in_time(), stopping.noting():
            stopping.set_unsaved(False)  # Until the first meta-step.
            yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Stop:
    """Whether a run is asked to stop, by a signal to it or to another of its processes.

    Attributes:
      is_agreed: whether a signal reached one of several processes.
    """

    def __init__(self):
        self.is_agreed = False

    def is_asked(self, step: int) -> bool:
        """Return whether to stop after a step; the same for all processes."""
        if processes.are_several():
            self.is_agreed = self.is_agreed or processes.stop_agreed(step)
            return self.is_agreed
        return stopping.is_requested()

    def raise_if_stopped(self) -> None:
        """End the program, with the status of the signal, if it was asked to stop."""
        if self.is_agreed:
            raise SystemExit(128 + int(signal.SIGTERM))
        stopping.raise_if_requested()
