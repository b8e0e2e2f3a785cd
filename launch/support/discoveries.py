"""The run of a discovery in its workdir: continued, probed, logged, and stopped by signals."""

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging
from rich.filesize import decimal

import disco
from disco_common import stopping
from disco_common.checkpoints import Checkpoints, steps
from disco_common.json_lines import JsonLines
from evaluation.evaluate import tasks_of
from evaluation.executors import OpenProgress, Show
from evaluation.report.discoveries import METRICS, read_metrics, read_probes
from evaluation.report.discovery_section import discovery_curves
from evaluation.rules import fingerprint
from launch.support import processes, workdirs
from launch.support.command_flags import split_values
from launch.support.discovery_config import CHANGEABLE, DiscoveryRunConfig, make_rule
from launch.support.discovery_rules import Probes, keep_start, kept_rule, rule_provenance
from launch.support.display import print_needs, progress_bar
from launch.support.tracking import META_STEP, PROBE, Tracking, by_tag, trackers
from launch.support.workdirs import code_version
from meta.estimators import make_discovery
from meta.estimators.protocol import Discovery, Metrics
from meta.run import Observer, is_stop_requested, run
from training.replay import num_bytes

_MEASURED = 4  # Meta-steps by which `--dry_run` knows the speed.
_PROBE = "score of fresh agents (0 random policy, 1 reference)"
_SHOWN = {
    "validation_reward": "validation reward",
    "meta_loss": "meta-loss",
    "environment_steps_per_second": "env steps/s",
}


def discover(
    config: DiscoveryRunConfig,
    workdir: str,
    shown: Tracking = Tracking(),
    is_dry: bool = False,
    open_progress: OpenProgress = progress_bar,
) -> None:
    """Run or continue a discovery, or only say what would be run.

    Raises:
      ValueError: if the config or the workdir does not fit.
      WorkdirHeldError: if another command has the workdir open.
      CheckpointError: if a checkpoint cannot be written or read.
      StoppedBySignal: if a signal stopped it (`stopping_by_signals`).
    """
    folder = pathlib.Path(workdir)
    rule, tasks = make_rule(config, folder), tasks_of(split_values(config.suite))
    sources = {task.name: task.sha256 for task in tasks if task.sha256}
    processes.require_equal(
        {
            "config": json.dumps(dataclasses.asdict(config)),
            "version of the code": code_version(),
            "files of tasks": json.dumps(sources),
            "rule to start from": fingerprint(rule) if config.rule.start else "",
        }
    )
    discovery = make_discovery(config, tasks, rule)
    discovery.check()
    if is_dry:
        workdirs.require_same_settings(folder, config, CHANGEABLE, sources)
        _show_speed(config, discovery, folder)
        return
    probes = Probes(config, tasks)
    if probes.interval and processes.are_several():
        probes.interval = 0
        logging.warning("A run of several processes has no probes.")
    with workdirs.opened(folder, config, CHANGEABLE, sources):
        processes.require_shared(folder)
        if processes.is_first():
            keep_start(config, folder, rule)
        with contextlib.ExitStack() as closing:
            checkpoints = Checkpoints(folder / workdirs.CHECKPOINTS, keep=config.checkpoints_kept)
            closing.callback(checkpoints.close)
            observer = Observer()
            if processes.is_first():
                show = closing.enter_context(open_progress("discover", config.meta_steps))
                observer = _Log(folder, discovery, config, probes, shown, show, closing)
            run(
                discovery,
                meta_steps=config.meta_steps,
                checkpoints=checkpoints,
                checkpoint_interval=config.checkpoint_interval,
                log_interval=config.log_interval,
                observer=observer,
            )
        if processes.is_first() and (reports := read_metrics(folder)[0]):
            discovery_curves(reports).write(folder, "curves")
    stopping.set_unsaved(False)
    stopping.raise_if_requested()


def _show_speed(config: DiscoveryRunConfig, discovery: Discovery, workdir: pathlib.Path) -> None:
    """Print what a discovery would do, by some meta-steps whose results are dropped."""
    seconds = []
    with contextlib.closing(discovery):
        state = discovery.init()
        discovery.compile()
        while len(seconds) < _MEASURED and not is_stop_requested(len(seconds)):
            started = time.monotonic()
            state, _ = discovery.step(state)
            seconds.append(time.monotonic() - started)
            if discovery.can_stop_within and len(seconds) > 1:  # They take long.
                break
    stopping.raise_if_requested()
    made = max(steps(workdir / workdirs.CHECKPOINTS), default=0)
    missing = max(0, config.meta_steps - made)
    planned, there = map(discovery.environment_steps, (made + missing, made))
    counts = map(discovery.environment_steps, range(len(seconds) + 1))  # Meta-steps may differ.
    measured = zip(seconds, itertools.pairwise(counts), strict=True)
    speed = max([(after - before) / each for each, (before, after) in measured][1:])
    takes = datetime.timedelta(seconds=round((planned - there) / speed))
    print(
        f"{missing:,} of {config.meta_steps:,} meta-steps of {config.population.size} agents"
        f" on {config.suite}, {planned - there:,} environment steps: about"
        f" {takes} on {jax.device_count()} x {jax.devices()[0].device_kind}"
        f" ({speed:,.0f} steps/s), and the compilation and the probes."
    )
    state = num_bytes(discovery.abstract_state)
    print_needs(
        f"rule, agents and the replays of JAX environments of {decimal(state)}, other full replays"
        f" of {decimal(discovery.host_replay_bytes)}",
        f"{decimal(state)} at most for a checkpoint, of which the newest"
        f" {config.checkpoints_kept} are kept",
    )


class _Log(Observer):
    """What the first process of a run writes and shows beside the checkpoints."""

    def __init__(
        self,
        folder: pathlib.Path,
        discovery: Discovery,
        config: DiscoveryRunConfig,
        probes: Probes,
        tracking: Tracking,
        show: Show,
        closing: contextlib.ExitStack,
    ):
        self.probe_interval = probes.interval
        self._folder, self._config, self._probes, self._show = folder, config, probes, show
        self._discovery, self._tracking, self._closing = discovery, tracking, closing

    def on_start(self, step: int) -> None:
        # After the checkpoints are read: if they are unusable, the files stay as they are.
        self._lines = JsonLines(self._folder / METRICS)
        self._lines.keep(META_STEP, step)
        values = dataclasses.asdict(self._config)
        self._log = self._closing.enter_context(
            trackers(self._tracking, self._folder, values, META_STEP, step)
        )
        self._show(step, {}, "compiling")
        probed = read_probes(self._folder)[-1:]
        self._newest = {} if not probed else {_PROBE: probed[0].score}
        logging.info("%s at meta-step %d.", "Continuing" if step else "Starting", step)
        if step and self._discovery.has_hosts:
            logging.warning(
                "Environments outside JAX start new episodes, and their agents' replays start"
                " empty: neither is saved."
            )

    def on_progress(self, step: int, part: float) -> None:
        self._show(step + round(part, 2), self._newest, "")

    def on_report(self, metrics: Metrics) -> None:
        step = metrics[META_STEP]
        self._lines.append([metrics])
        self._log(step, by_tag(metrics))
        shown = {name: metrics[x] for x, name in _SHOWN.items() if x in metrics}
        self._show(step, self._newest | shown, "")

    def on_checkpoint(self, step: int, state: Any) -> None:
        """Write the average rule, which is small and stays when the checkpoint goes."""
        file = kept_rule(self._folder, step)
        file.parent.mkdir(exist_ok=True)
        rule, provenance = self._average(step, state)
        disco.save(rule, file, provenance)

    def probe(self, step: int, state: Any) -> bool:
        self._show(step, self._newest, "fresh agents learn by the average rule")
        try:
            found = self._probes.make(self._folder, step, *self._average(step, state))
        except stopping.StoppedBySignal:
            return False
        self._newest = {_PROBE: found.score}
        by_task = {f"probe/{task}": x for task, x in found.tasks.items()}
        self._log(step, {PROBE: found.score} | by_task)
        self._show(step, self._newest, "")
        return True

    def _average(self, step: int, state: Any) -> tuple[disco.DiscoveredRule, dict[str, Any]]:
        """Return the average rule after a number of meta-steps, and its provenance."""
        average, by_task = self._discovery.average_rule(state)
        return average, rule_provenance(self._config, step, by_task)


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
