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

import sys
from typing import Any

from absl import flags

from disco_common.terminal import printable
from evaluation.evaluate import resolve
from evaluation.scoring import references
from evaluation.studies.reference_scores import reference_scores
from evaluation.tuned_settings import find_tuned, settings_by_contender
from launch.evaluate import (
    CHANGEABLE,
    SHRINK,
    Identity,
    define_flags,
    define_tuned,
    read_flags,
)
from launch.support import commands, execution, workdirs
from launch.support.provenance import code_version
from launch.support.score_tables import print_rows


def main() -> None:
    """Run the command."""
    values = flags.FLAGS
    suites, config, runs_per_job = read_flags(values)
    tasks = resolve(suites)
    tuned = settings_by_contender(find_tuned(values.tuned, values.workdir, config, tasks, []))
    identity = Identity(
        tasks=tuple(task.name for task in tasks),
        rules={},
        config=config,
        command="references",
        task_files={task.name: task.sha256 for task in tasks if task.sha256},
        tuned={name: dict(x) for name, x in tuned.items()},
    )
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    with (
        execution.opened(values, runs_per_job) as how,
        workdirs.opened(values.workdir, identity, CHANGEABLE) as folder,
    ):
        found, reasons = reference_scores(
            tasks,
            config,
            tuned,
            values.train,
            folder,
            provenance,
            how,
        )
        references.write(folder / "references.json", found)
    rows = [
        {
            "task": name,
            "random": f"{one.random:.4g} ± {one.random_error:.2g}",
            "reference": f"{one.reference:.4g} ± {one.reference_error:.2g}",
            "origin": one.origin,
        }
        for name, one in found.items()
    ]
    print_rows("Reference scores", rows)
    for name, reason in reasons.items():
        print(printable(f"{name} has none: {reason}."))
    print(f"Written: {printable(folder / 'references.json')}")


if __name__ == "__main__":
    define_tuned()
    flags.DEFINE_boolean("train", True, "Make long runs on the tasks that cannot be solved.")
    define_flags("grid_heldout")
    commands.run(main, shrink=SHRINK)
