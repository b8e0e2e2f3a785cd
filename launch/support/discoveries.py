"""The run of a discovery in its workdir: continued, probed, logged, and stopped by signals."""

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import signal
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import psutil
from absl import logging
from rich.filesize import decimal

import disco
from disco_common import stopping
from disco_common.checkpoints import CheckpointReader, Checkpoints
from disco_common.files import write_atomically
from disco_common.json_lines import JsonLines
from evaluation.executors import OpenProgress, Progress
from evaluation.report.discoveries import METRICS, read_metrics, read_probes
from evaluation.report.discovery_section import discovery_curves
from evaluation.rules import fingerprint
from launch.support import processes, workdirs
from launch.support.display import ProgressBar
from launch.support.rules import TASKS, Probes, keep_start, kept_rule, rule_provenance
from launch.support.settings import (
    CHANGEABLE,
    DiscoverSettings,
    make_discovery,
    make_rule,
    make_tasks,
)
from launch.support.tracking import META_STEP, PROBE, Trackers, Tracking, by_tag
from launch.support.workdirs import code_version
from meta.discovery import Discovery
from meta.population import DiscoveryState
from meta.run import Observer, RunMetrics, run
from training.memory_budget import replay_bytes
from training.replay import num_bytes

_MEASURED = 4  # Meta-steps by which `--dry_run` knows the speed.
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
    open_progress: OpenProgress = ProgressBar,
) -> None:
    """Run or continue a discovery, or only say what would be run.

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
        _show_speed(settings, discovery, workdir, stop)
        return
    own = Probes(settings, tasks)
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


def _show_speed(
    settings: DiscoverSettings, discovery: Discovery, workdir: str, stop: "_Stop"
) -> None:
    """Print what a discovery would do, by its first meta-steps in a folder that is deleted."""
    measured = _Measured(stop=stop)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Checkpoints(pathlib.Path(folder), keep=1)) as checkpoints,
    ):
        run(
            discovery,
            meta_steps=_MEASURED,
            checkpoints=checkpoints,
            checkpoint_interval=_MEASURED,
            log_interval=1,
            observer=measured,
        )
    stop.raise_if_stopped()
    with contextlib.closing(CheckpointReader(pathlib.Path(workdir, workdirs.CHECKPOINTS))) as there:
        missing = max(0, settings.meta_steps - max(there.steps(), default=0))
    steps = discovery.steps_per_meta_step * discovery.population_size
    each = min(measured.seconds[1:])
    takes = datetime.timedelta(seconds=round(each * missing))
    print(
        f"{missing:,} of {settings.meta_steps:,} meta-steps of {discovery.population_size} agents"
        f" on {settings.suite}, {steps * missing:,} environment steps: about"
        f" {takes} on {jax.device_count()} x {jax.devices()[0].device_kind}"
        f" ({each:.2g} s per meta-step), and the compilation and the probes."
    )
    state, taken = num_bytes(discovery.abstract_state), psutil.Process().memory_info().rss
    of_hosts = sum(
        len(group.indices) * replay_bytes(group.agent, group.dynamics)
        for group in discovery.groups
        if group.is_host
    )
    print(
        f"Memory: rule, agents and the replays of JAX environments of {decimal(state)}, other full"
        f" replays of {decimal(of_hosts)}; updates need more. This process has"
        f" {decimal(taken)} on the host.\n"
        f"Disk: {decimal(state)} at most for a checkpoint, of which the newest"
        f" {settings.checkpoints_kept} are kept. Nothing was written."
    )


def _run_in(
    folder: pathlib.Path,
    discovery: Discovery,
    settings: DiscoverSettings,
    own: Probes,
    stop: "_Stop",
    shown: Tracking,
    open_progress: OpenProgress,
) -> None:
    """Make the remaining meta-steps; of several processes, the first one logs and reports."""
    with contextlib.ExitStack() as closing:
        checkpoints = Checkpoints(folder / workdirs.CHECKPOINTS, keep=settings.checkpoints_kept)
        closing.callback(checkpoints.close)
        observer = _Stopping(stop=stop, probe_interval=own.interval)
        if processes.is_first():
            bar = closing.enter_context(open_progress("discover", settings.meta_steps))
            assert bar is not None
            observer = _Log(
                stop=stop,
                probe_interval=own.interval,
                folder=folder,
                discovery=discovery,
                settings=settings,
                probes=own,
                tracking=shown,
                bar=bar,
                closing=closing,
            )
        run(
            discovery,
            meta_steps=settings.meta_steps,
            checkpoints=checkpoints,
            checkpoint_interval=settings.checkpoint_interval,
            log_interval=settings.log_interval,
            observer=observer,
        )
        if processes.is_first() and (reports := read_metrics(folder)[0]):
            discovery_curves(reports).write(folder, "curves")


@dataclasses.dataclass(kw_only=True)
class _Stopping(Observer):
    """What each process of a run does: it ends when one of them is asked to stop."""

    stop: "_Stop"
    probe_interval: int = 0

    def should_stop(self, step: int) -> bool:
        return self.stop.is_asked(step)


@dataclasses.dataclass(kw_only=True)
class _Measured(_Stopping):
    """The seconds of each meta-step, for `--dry_run`."""

    seconds: list[float] = dataclasses.field(default_factory=list)

    def on_report(self, metrics: RunMetrics) -> None:
        self.seconds.append(metrics["seconds"])


@dataclasses.dataclass(kw_only=True)
class _Log(_Stopping):
    """What the first process of a run writes and shows beside the checkpoints."""

    folder: pathlib.Path
    discovery: Discovery
    settings: DiscoverSettings
    probes: Probes
    tracking: Tracking
    bar: Progress
    closing: contextlib.ExitStack

    def on_start(self, step: int) -> None:
        # After the checkpoints are read: if they are unusable, the files stay as they are.
        names = _names_of_tasks(self.discovery)
        write_atomically(self.folder / TASKS, json.dumps(names) + "\n")
        self._lines = JsonLines(self.folder / METRICS)
        self._lines.keep(META_STEP, step)
        settings = dataclasses.asdict(self.settings)
        trackers = Trackers(self.tracking, self.folder, settings, META_STEP, step)
        self._trackers = self.closing.enter_context(trackers)
        self.bar.start(step)
        probed = read_probes(self.folder)[-1:]
        self._newest = {} if not probed else {_PROBE: probed[0].score}
        logging.info("%s at meta-step %d.", "Continuing" if step else "Starting", step)
        if step and self.discovery.has_hosts:
            logging.warning(
                "Environments outside JAX start new episodes, and their agents' replays start"
                " empty: neither is saved."
            )

    def on_report(self, metrics: RunMetrics) -> None:
        step = metrics[META_STEP]
        self._lines.append([metrics])
        self._trackers.log(step, by_tag(metrics))
        self.bar.update(step, self._newest | {shown: metrics[x] for x, shown in _SHOWN.items()})

    def on_checkpoint(self, step: int, state: DiscoveryState) -> None:
        """Write the average rule, which is small and stays when the checkpoint goes."""
        file = kept_rule(self.folder, step)
        file.parent.mkdir(exist_ok=True)
        rule, made = _average(self.discovery, self.settings, step, state)
        disco.save(rule, file, made)

    def probe(self, step: int, state: DiscoveryState) -> bool:
        self.bar.update(step, self._newest, doing="fresh agents learn by the average rule")
        rule, made = _average(self.discovery, self.settings, step, state)
        try:
            found = self.probes.make(self.folder, step, rule, made)
        except stopping.StoppedBySignal:
            return False
        self._newest = {_PROBE: found.score}
        by_task = {f"probe/{task}": x for task, x in found.tasks.items()}
        self._trackers.log(step, {PROBE: found.score} | by_task)
        self.bar.update(step, self._newest)
        return True


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
