r"""Make reference scores, between which and the random policy's an evaluation normalises.

    python -m launch.references --suite=grid_heldout --workdir=runs/references \
        --baselines=ppo,actor_critic --tuned=runs/tuning/tuned.json
    python -m launch.evaluate --rule=grid57 --suite=grid_heldout --workdir=runs/judged \
        --references=runs/references/references.json

A task whose Markov decision process is small is solved by dynamic programming; on others, the
baselines are trained for ten times the budget with five seeds, and the best one is the reference
(`evaluation.studies.reference_scores`). Evaluations use the table that comes with this package
unless they are given another one. Started again, the command makes only what is missing. Executors
and workdirs are as in `launch.evaluate`.
"""

from absl import flags

from launch.support import commands
from launch.support.evaluation_flags import define_flags, define_tuned


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable
    from evaluation.scoring import references
    from evaluation.storage import REFERENCES
    from evaluation.studies.reference_scores import reference_scores
    from launch.support import evaluations
    from launch.support.display import print_rows

    values = flags.FLAGS
    experiment = evaluations.prepare(values)
    contenders, tuned = evaluations.contenders_of(values.tuned, experiment, [])
    used = evaluations.tuned_of(contenders)
    with evaluations.opened("references", experiment, tuned=used) as started:
        found, reasons = reference_scores(started, tuned, trains=values.train)
        file = experiment.folder / REFERENCES
        references.write(file, found)
    rows = [
        {
            "task": name,
            "random": f"{one.random:.4g} ± {one.random_error:.2g}",
            "reference": f"{one.reference:.4g} ± {one.reference_error:.2g}",
            "origin": one.origin,
        }
        for name, one in found.items()
    ]
    if rows:
        print_rows("Reference scores", rows)
    for name, reason in reasons.items():
        print(printable(f"{name} has none: {reason}."))
    print(f"Written: {printable(file)}")


def _define_flags() -> None:
    define_tuned()
    flags.DEFINE_boolean("train", True, "Make long runs on the tasks that cannot be solved.")
    define_flags("grid_heldout")


if __name__ == "__main__":
    commands.run(main, _define_flags)
