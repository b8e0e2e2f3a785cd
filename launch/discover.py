"""Discover an update rule.

    python -m launch.discover --workdir=runs/first --config=launch/configs/grid57_laptop.py

Started again with the same workdir, the command continues from the newest good checkpoint. SIGTERM
and Ctrl-C write a checkpoint and end the run; the exit status is then 143 or 130. The workdir has
metrics (`metrics.jsonl`, `tensorboard/`), probes of the rule (`launch.support.probes`) and, when
the run ends or is stopped, `curves.png`.

A run may consist of several processes, each with its own devices and simulators: see
`launch.support.processes`. If one of them is stopped, all end with status 143.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from absl import flags, logging

import disco
from disco_common import stopping
from disco_common.atomic import write_atomically
from disco_common.checkpoints import Checkpoints
from disco_common.configuration import from_config
from disco_common.terminal import printable
from evaluation.contenders import fingerprint
from evaluation.report import probe_scores
from evaluation.report.discovery_metrics import read_metrics
from evaluation.report.static_plots import discovery_curves
from launch.configs import grid57_laptop
from launch.support import commands, dry_run, probes, processes, tracking, workdirs
from launch.support.flag_parsing import define_config, define_imports, define_output_folder
from launch.support.progress import Progress
from launch.support.provenance import code_version
from launch.support.rule_provenance import rule_provenance
from launch.support.settings import CHANGEABLE, DiscoverSettings
from launch.support.setup import TASKS, keep_start, kept_rule, make_discovery, make_rule, make_tasks
from launch.support.tracking import PROBE, MetricsLog, Tracking
from meta.discovery import Discovery
from meta.run import run
from meta.state import DiscoveryState

# Settings that a meta-step's memory grows with. The first one changes only speed. The others are
# ordered by how much memory halving each one saves (docs/measurements/speed.md).
_SHRINK = (
    "config.meta.agents_at_once",
    "config.agent.batch_size",
    "config.agent.unroll_length",
    "config.agent.network.model",
    "config.agent.network.torso",
    "config.agent.network.head",
    "config.meta.num_updates",
    "config.meta.validation_trajectories",
    "config.meta.validation_length",
)

_PROBE = "score of fresh agents (0 random policy, 1 reference)"
_SHOWN = {
    "validation_reward": "validation reward",
    "meta_loss": "meta-loss",
    "environment_steps_per_second": "env steps/s",
}


def discover(
    settings: DiscoverSettings, workdir: str, shown: Tracking = Tracking(), is_dry: bool = False
) -> int:
    """Run or continue a discovery.

    Args:
      settings: of the run.
      workdir: for all results.
      shown: where its metrics are shown.
      is_dry: only say what would be run (`launch.support.dry_run`).

    Returns:
      The exit status: 0 if all meta-steps are made, 128 + the signal's number if it was stopped.

    Raises:
      ValueError: if the settings or the workdir do not fit.
      WorkdirHeldError: if another command has the workdir open.
      CheckpointError: if a checkpoint cannot be written or read.
    """
    with _Stop() as stop:  # Around all of it: JAX's callbacks swallow a KeyboardInterrupt.
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
            return stop.status
        own = probes.Probes(settings, tasks)
        if own.interval and processes.are_several():
            own.interval = 0
            logging.warning("A run of several processes has no probes.")
        with workdirs.opened(workdir, settings, changeable=CHANGEABLE) as folder:
            processes.require_shared(folder)
            workdirs.keep_sources(folder, sources)
            if processes.is_first():
                keep_start(settings, folder, rule)
            _run_in(folder, discovery, settings, own, stop, shown)
    if processes.is_first():
        if stop.signal:
            logging.warning("Stopped by signal %d; a checkpoint is written.", stop.signal)
        else:
            place = printable(folder)
            print(f"Discovered: {settings.meta_steps} meta-steps. The run is in {place}.")
    return stop.status


def _run_in(
    folder: pathlib.Path,
    discovery: Discovery,
    settings: DiscoverSettings,
    own: probes.Probes,
    stop: "_Stop",
    shown: Tracking,
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
            Progress("discover", settings.meta_steps) as bar,
        ):
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
                except stopping.StoppedBySignal as stopped:
                    stop.signal = int(str(stopped.code)) - 128
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


class _Stop:
    """A context in which signals stop the run gracefully, also if another process gets them.

    Attributes:
      signal: number of the signal; 0 if there was none.
    """

    def __init__(self):
        self.signal = 0
        self._previous: dict[int, Any] = {}
        self._in_time = contextlib.ExitStack()

    @property
    def status(self) -> int:
        """The exit status."""
        return 128 + self.signal if self.signal else 0

    def is_asked(self, step: int) -> bool:
        """Return whether to stop after a step; the same for all processes."""
        if processes.are_several() and processes.stop_agreed(step):
            self.signal = int(signal.SIGTERM)
        return bool(self.signal)

    def __enter__(self) -> "_Stop":
        def note(number, _):
            self.signal = number

        # With several processes, JAX handles SIGTERM, and informs the other processes.
        handlers = {signal.SIGTERM: note, signal.SIGINT: note}
        if not processes.are_several():
            self._in_time.enter_context(stopping.ending_in_time())
            stopping.set_unsaved(False)  # Until the first meta-step.
        else:
            handlers = {signal.SIGINT: lambda *_: os.kill(os.getpid(), signal.SIGTERM)}
        self._previous = {number: signal.signal(number, h) for number, h in handlers.items()}
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._in_time.close()


def main() -> int:
    """Run the command; return its exit status."""
    processes.join()
    values = flags.FLAGS
    settings = from_config(DiscoverSettings, values.config)
    return discover(settings, values.workdir, tracking.of_flags(values), values.dry_run)


if __name__ == "__main__":
    define_output_folder("workdir", "Folder of the run.")
    processes.define_flags()
    tracking.define_flags()
    with commands.ended_by_user_errors():
        define_imports()
    define_config(grid57_laptop)
    dry_run.define_flag()
    commands.use_all_cores()
    commands.run(main, shrink=_SHRINK)
