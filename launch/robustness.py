"""How much a rule's agents depend on their settings: DiscoRL's Extended Data Figure 1.

    python -m launch.robustness --rule=grid57 --suite=catch/8x8 --workdir=runs/robustness

The rule's agents and actor-critic's learn each task with five sizes of their networks, five amounts
of replay, and 36 optimisers (`evaluation.robustness`). Settings that are not varied are those of
`launch.evaluate`, and so are workdirs, which may be continued, and executors.
"""

import pathlib
import sys
from typing import Any

from absl import flags

from evaluation.evaluate import resolve
from evaluation.robustness import robustness, variations
from launch import commands, execution, workdirs
from launch.evaluate import CHANGEABLE, SHRINK, Identity, define_flags, read_flags
from launch.progress import Progress
from launch.provenance import code_version


def main() -> None:
    """The command."""
    values = flags.FLAGS
    suites, config, runs_per_job = read_flags(values)
    tasks = resolve(suites)
    rule = variations(values.rule, config)[0]
    identity = Identity(
        tasks=tuple(task.name for task in tasks),
        rules={rule.of: rule.contender.source["parameters_sha256"]},
        config=config,
        command="robustness",
    )
    folder = pathlib.Path(workdirs.open_workdir(values.workdir, identity, CHANGEABLE))
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    with execution.opened_executor(values) as executor:
        files = robustness(
            values.rule, tasks, config, folder, provenance, executor, runs_per_job, Progress
        )
    print("Written: " + ", ".join(map(str, files)))


if __name__ == "__main__":
    flags.DEFINE_string("rule", None, "Rule file, or name of a rule in the zoo.", required=True)
    define_flags("catch/8x8")
    commands.run(main, shrink=SHRINK)
