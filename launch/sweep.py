r"""Discover rules with several settings, and compare their learning curves.

    python -m launch.sweep --workdir=runs/sweep --config=launch/configs/grid57_laptop.py \
        --vary=config.meta.learning_rate=1e-3,3e-3 --vary=config.seed=0,1,2

Each point of the product of all `--vary` is a discovery as of `launch.discover`, in
`workdir/<point>/` (for example `meta.learning_rate=0.001,seed=0/`). Discoveries are made one after
the other, or with `--executor=ray` on a Ray cluster of one or several machines, which must then
share the workdir's file system.

Started again with the same workdir, the command skips finished discoveries, and continues the
others, also failed ones, from their checkpoints. If one fails, the others are still made, and the
exit status is 3. SIGTERM and Ctrl-C stop the discoveries, which write a checkpoint first, and end
the command with status 143 or 130.

At the end the workdir has `sweep.csv`, a row per point with means over the last tenth of its
meta-steps, and `sweep.png`, their curves.
"""

import dataclasses
import pathlib

from absl import flags

from launch.support import commands, tracking
from launch.support.command_flags import (
    config_arguments,
    define_config,
    define_imports,
    define_output_folder,
    only_prints_config,
)
from launch.support.evaluation_flags import (
    choose_devices,
    define_executor_flags,
    executor_of,
    opened_executor,
)


def main() -> None:
    """Run the command."""
    from launch.support import sweeps, workdirs

    values = flags.FLAGS
    executor = executor_of(values)
    choose_devices(executor)
    workdir = pathlib.Path(values.workdir)
    points = sweeps.make_points(config_arguments(), values.vary)
    shown = dataclasses.replace(tracking.of_flags(values), wandb_group=workdir.resolve().name)
    with opened_executor(executor), workdirs.locked(workdir):
        sweeps.sweep(points, workdir, executor, shown)


def _define_flags() -> None:
    define_output_folder("workdir", "Folder of the sweep.")
    flags.DEFINE_multi_string(
        "vary",
        None,
        "config.FIELD=VALUE,VALUE,...: a field to vary, and its values. If the flag is repeated,"
        " the sweep has all combinations.",
        required=not only_prints_config(),
    )
    define_imports()
    define_config("grid57_laptop")
    tracking.define_flags()
    define_executor_flags()


if __name__ == "__main__":
    commands.run(main, _define_flags)
