"""Measure a rule's robustness to its agents' settings: DiscoRL's Extended Data Figure 1.

    python -m launch.robustness --rule=grid57 --suite=catch/8x8 --workdir=runs/robustness

Agents of the rule and of the baselines that learn by a rule (by default actor-critic) learn each
task with five network sizes, five replay ratios, and 36 optimisers, around their tuned settings
(`evaluation.studies.robustness`). All other settings, the executors, and the
workdirs, in which runs are continued, are as in `launch.evaluate`.
"""

import dataclasses

from absl import flags

from launch.support import commands
from launch.support.command_flags import only_prints_config
from launch.support.evaluation_flags import define_flags, define_tuned


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable
    from evaluation.evaluate import resolve
    from evaluation.studies.robustness import robustness, variations
    from evaluation.tuned_settings import find_tuned, settings_by_contender
    from launch.support import evaluations, workdirs

    values = flags.FLAGS
    suites, config, runs_per_job = evaluations.read_flags(values)
    tasks = resolve(suites)
    name = _rule_or_copy(values.rule, values.workdir)
    tuned = settings_by_contender(find_tuned(values.tuned, values.workdir, config, tasks, [name]))
    first = variations(name, config, tuned)[0]
    identity = evaluations.Identity.of(
        "robustness",
        tasks,
        config,
        rules={first.of: first.contender.source["parameters_sha256"]},
        tuned=tuned,
    )
    with (
        evaluations.opened(values, runs_per_job) as how,
        workdirs.opened(values.workdir, identity, evaluations.CHANGEABLE) as folder,
    ):
        of_rule = dataclasses.replace(first.contender, name=first.of)
        evaluations.keep_rules(folder, [of_rule], config)
        files = robustness(name, tasks, config, tuned, folder, evaluations.provenance(), how)
    print("Written: " + ", ".join(map(printable, files)))


def _rule_or_copy(name: str, workdir: str) -> str:
    """Return the rule's name, or the path of its copy in the workdir if its file is gone."""
    from disco import rule_sources
    from evaluation.rules import copies_in, copy_of_rule, find_plugin

    copy = copy_of_rule(copies_in(workdir), rule_sources.short_names(name)[0])
    if not copy.is_file() or find_plugin(name) is not None:
        return name
    try:
        rule_sources.find(name)
    except FileNotFoundError:
        return str(copy)
    return name


def _define_flags() -> None:
    flags.DEFINE_string(
        "rule", None, "Rule file, or name of a rule in the zoo.", required=not only_prints_config()
    )
    define_tuned()
    define_flags("catch/8x8")


if __name__ == "__main__":
    commands.run(main, _define_flags)
