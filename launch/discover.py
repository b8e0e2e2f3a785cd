"""Discovers an update rule.

    python -m launch.discover --workdir=runs/first --config=launch/configs/grid57_laptop.py

Started again with the same workdir, it continues from the newest good checkpoint. SIGTERM and
Ctrl-C write a checkpoint and end the run; the exit status is then 143 or 130. The workdir has
metrics (`metrics.jsonl`, `tensorboard/`) and, when the run ends or is stopped, `curves.png`.
"""

import contextlib
import signal
from collections.abc import Iterator

from absl import flags, logging

from agents.checkpoints import Checkpoints
from disco.atomic import write_atomically
from evaluation.plots import discovery_curves
from launch import commands, workdirs
from launch.configs import grid57_laptop
from launch.configuration import from_config
from launch.flag_parsing import define_config
from launch.progress import Progress
from launch.settings import CHANGEABLE, DiscoverSettings
from launch.setup import make_discovery
from meta.run import run

# What a meta-step's memory grows with. The first costs nothing but time; the others are in the
# order of what half of each saves (docs/measurements.md).
_SHRINK = (
    "meta.agents_at_once",
    "agent.batch_size",
    "agent.unroll_length",
    "agent.network.model",
    "agent.network.torso",
    "agent.network.head",
    "meta.num_updates",
    "meta.validation_trajectories",
    "meta.validation_length",
)


def discover(settings: DiscoverSettings, workdir: str) -> int:
    """Runs or continues a discovery.

    Returns:
      The exit status: 0 when all meta-steps are made, 128 + the signal's number when stopped.

    Raises:
      ValueError: if the settings or the workdir do not fit.
      CheckpointError: if a checkpoint cannot be written or read.
    """
    with _stop_signals() as caught:  # From the first: JAX's callbacks swallow a KeyboardInterrupt.
        discovery = make_discovery(settings)
        folder = workdirs.open_workdir(workdir, settings, changeable=CHANGEABLE)
        with (
            contextlib.closing(
                Checkpoints(folder / "checkpoints", keep=settings.checkpoints_kept)
            ) as checkpoints,
            workdirs.MetricsLog(folder) as log,
            Progress("discover", settings.meta_steps) as bar,
        ):

            def on_start(step):
                log.continue_from(step)
                bar.start(step)
                logging.info("%s at meta-step %d.", "Continuing" if step else "Starting", step)
                if step and discovery.has_hosts:
                    logging.warning(
                        "Environments outside JAX start new episodes, and their agents' replays"
                        " fill anew: neither is saved."
                    )

            def on_report(report):
                log.write(report["meta_step"], report)
                bar.update(
                    report["meta_step"],
                    {
                        "meta-return": report["meta_return"],
                        "meta-loss": report["meta_loss"],
                        "env steps/s": report["environment_steps_per_second"],
                    },
                )

            run(
                discovery,
                meta_steps=settings.meta_steps,
                checkpoints=checkpoints,
                checkpoint_interval=settings.checkpoint_interval,
                log_interval=settings.log_interval,
                on_start=on_start,
                on_report=on_report,
                should_stop=lambda: bool(caught),
            )
            if reports := log.read():
                write_atomically(folder / "curves.png", discovery_curves(reports))
    if caught:
        logging.warning("Stopped by signal %d; a checkpoint is written.", caught[0])
        return 128 + caught[0]
    print(f"Discovered: {settings.meta_steps} meta-steps. The run is in {folder}.")
    return 0


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals that ask to stop, as they come; they do nothing else meanwhile."""
    caught: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main() -> int:
    """The command."""
    return discover(from_config(DiscoverSettings, flags.FLAGS.config), flags.FLAGS.workdir)


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
    define_config(grid57_laptop)
    commands.use_all_cores()
    commands.run(main, shrink=_SHRINK)
