"""Discover an update rule.

    python -m launch.discover --workdir=runs/first --config=launch/configs/grid57_laptop.py

Started again with the same workdir, the command continues from the newest good checkpoint. SIGTERM
and Ctrl-C write a checkpoint and end the run; the exit status is then 143 or 130. The workdir has
metrics (`metrics.jsonl`, `tensorboard/`), probes of the rule (`launch.support.discovery_rules`)
and, when the run ends or is stopped, `curves.png`.

A run may consist of several processes, each with its own devices and simulators: see
`launch.support.processes`. If one of them is stopped, all end with status 143.
"""

from absl import flags

from launch.support import commands, tracking
from launch.support.command_flags import (
    define_config,
    define_dry_run,
    define_imports,
    define_output_folder,
)


def main() -> int:
    """Run the command; return its exit status."""
    from disco_common.configuration import from_config
    from disco_common.terminal import printable
    from launch.support import processes
    from launch.support.discoveries import discover, stopping_by_signals
    from launch.support.discovery_config import DiscoveryRunConfig

    commands.use_all_cores()
    processes.join()
    values = flags.FLAGS
    settings = from_config(DiscoveryRunConfig, values.config)
    with stopping_by_signals():
        discover(settings, values.workdir, tracking.of_flags(values), values.dry_run)
    if processes.is_first() and not values.dry_run:
        place = printable(values.workdir)
        print(f"Discovered: {settings.meta_steps} meta-steps. The run is in {place}.")
    return 0


def _define_flags() -> None:
    define_output_folder("workdir", "Folder of the run.")
    flags.DEFINE_string(
        "coordinator",
        "",
        "HOST:PORT where process 0 listens; 'auto' to ask Slurm, Open MPI or the TPU pod. By"
        " default 'auto' under srun and mpirun, and a single process otherwise.",
    )
    flags.DEFINE_integer(
        "num_processes",
        None,
        "Number of processes of the run; with --coordinator=HOST:PORT.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "process_id",
        None,
        "Number of this process, from 0; with --coordinator=HOST:PORT.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "coordinator_timeout", 300, "Seconds to wait for all processes to connect.", lower_bound=1
    )
    tracking.define_flags()
    define_imports()
    define_config("grid57_laptop")
    define_dry_run()


if __name__ == "__main__":
    commands.run(main, _define_flags)
