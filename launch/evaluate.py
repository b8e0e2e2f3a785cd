r"""Evaluate rules: train agents by them, by hand-designed rules, and compare their scores.

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=runs/heldout
    python -m launch.evaluate --rule=first.npz --suite=crafter --workdir=runs/crafter
    python -m launch.evaluate --agent=dreamer/paper,12m --suite=crafter --workdir=runs/large

The rules are frozen. By default the settings suit a laptop, and depend on the family of the first
suite. The paper's settings, for an accelerator, are in `launch/configs/evaluate_paper.py`.

Runs (a rule on a task with a seed) are independent. Started again with the same workdir, the
command makes only the runs that are not finished, and continues stopped ones from their newest
checkpoints. `--executor=ray` makes them on a Ray cluster, on this machine or on several, which must
then share the workdir's file system:

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=/shared/heldout \
        --executor=ray --ray_address=auto

A run that fails by chance is tried up to three times in all. If some runs fail, the others are
still made, the exit status is 3, and no report is written; `failure.txt` in a run's folder has its
traceback. SIGTERM and Ctrl-C write a checkpoint and end the command with status 143 or 130.
"""

from absl import flags

from launch.support import commands, tracking
from launch.support.command_flags import config_overrides, define_dry_run
from launch.support.evaluation_flags import define_flags, define_tuned


def main() -> None:
    """Run the command."""
    from launch.support import evaluations
    from launch.support.display import print_evaluation

    values = flags.FLAGS
    experiment = evaluations.prepare(values)
    if written := evaluations.run_evaluation(values, experiment, config_overrides()):
        print_evaluation(written)


def _define_flags() -> None:
    flags.DEFINE_multi_string(
        "rule",
        [],
        "Rule file, or name of a rule: of the zoo, disco_103, hf:owner/name, or of another package;"
        " several by commas or repetition. The baselines of --config, each --agent and a random"
        " policy are evaluated, with or without it.",
    )
    flags.DEFINE_multi_string(
        "agent",
        [],
        "Algorithm besides the baselines, by name: dreamer, dreamer/v1,NoDenomMax"
        " (docs/dreamer.md), or one of yours (docs/extending.md); several by repetition.",
    )
    define_tuned()
    flags.DEFINE_string(
        "references",
        "",
        "Table of reference scores (launch.references), between which and the random policy's"
        " scores are normalised; by default the one that comes with this package.",
    )
    tracking.define_flags()
    define_flags("grid_heldout", has_algorithms=True)
    define_dry_run()


if __name__ == "__main__":
    commands.run(main, _define_flags)
