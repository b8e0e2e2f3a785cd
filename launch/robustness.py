"""Measure a rule's robustness to its agents' settings: DiscoRL's Extended Data Figure 1.

    python -m launch.robustness --rule=grid57 --suite=catch/8x8 --workdir=runs/robustness

Agents of the rule and of the baselines that learn by a rule (by default actor-critic) learn each
task with five network sizes, five replay ratios, and 36 optimisers, around their tuned settings
(`evaluation.studies.robustness`). All other settings, the executors, and the
workdirs, in which runs are continued, are as in `launch.evaluate`.
"""

import dataclasses
import sys
from typing import Any

from absl import flags

from disco import rule_sources
from disco_common.terminal import printable
from evaluation.contenders import check_names, copies_in, copy_of_rule, find_plugin
from evaluation.evaluate import resolve
from evaluation.studies.robustness import robustness, variations
from evaluation.tuned_settings import find_tuned, settings_by_contender
from launch.evaluate import (
    CHANGEABLE,
    SHRINK,
    Identity,
    define_flags,
    define_tuned,
    keep_rules,
    read_flags,
)
from launch.support import commands, execution, workdirs
from launch.support.flag_parsing import only_prints_config
from launch.support.provenance import code_version


def main() -> None:
    """Run the command."""
    values = flags.FLAGS
    suites, config, runs_per_job = read_flags(values)
    check_names([values.rule], copies=copies_in(values.workdir))
    tasks = resolve(suites)
    name = _rule_or_copy(values.rule, values.workdir)
    tuned = settings_by_contender(find_tuned(values.tuned, values.workdir, config, tasks, [name]))
    first = variations(name, config, tuned)[0]
    identity = Identity(
        tasks=tuple(task.name for task in tasks),
        rules={first.of: first.contender.source["parameters_sha256"]},
        config=config,
        command="robustness",
        tuned={name: dict(x) for name, x in tuned.items()},
        task_files={task.name: task.sha256 for task in tasks if task.sha256},
    )
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    with (
        execution.opened(values, runs_per_job) as how,
        workdirs.opened(values.workdir, identity, CHANGEABLE) as folder,
    ):
        keep_rules(folder, [dataclasses.replace(first.contender, name=first.of)], config)
        files = robustness(
            name,
            tasks,
            config,
            tuned,
            folder,
            provenance,
            how,
        )
    print("Written: " + ", ".join(map(printable, files)))


def _rule_or_copy(name: str, workdir: str) -> str:
    """Return the rule's name, or the path of its copy in the workdir if its file is gone."""
    copy = copy_of_rule(copies_in(workdir), rule_sources.short_names(name)[0])
    if not copy.is_file() or find_plugin(name) is not None:
        return name
    try:
        rule_sources.find(name)
    except FileNotFoundError:
        return str(copy)
    return name


if __name__ == "__main__":
    flags.DEFINE_string(
        "rule", None, "Rule file, or name of a rule in the zoo.", required=not only_prints_config()
    )
    define_tuned()
    define_flags("catch/8x8")
    commands.run(main, shrink=SHRINK)
