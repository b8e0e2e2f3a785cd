"""Measure a rule's robustness to its agents' settings: DiscoRL's Extended Data Figure 1.

    python -m launch.robustness --rule=grid57 --suite=catch/8x8 --workdir=runs/robustness

Agents of the rule and of the baselines that learn by a rule (by default actor-critic) learn each
task with five network sizes, five replay ratios, and 36 optimisers, around their tuned settings
(`evaluation.studies.robustness`). All other settings, the executors, and the
workdirs, in which runs are continued, are as in `launch.evaluate`.
"""

from absl import flags

from launch.support import commands
from launch.support.command_flags import only_prints_config
from launch.support.evaluation_flags import define_flags, define_tuned


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable
    from evaluation.studies.robustness import robustness
    from launch.support import evaluations

    values = flags.FLAGS
    experiment = evaluations.prepare(values)
    contenders, _ = evaluations.contenders_of(values.tuned, experiment, [values.rule])
    own = [x for x in contenders if x.is_rule]
    used = evaluations.tuned_of(contenders)
    with evaluations.opened("robustness", experiment, own, tuned=used) as started:
        files = robustness(started, contenders)
    print("Written: " + ", ".join(map(printable, files)))


def _define_flags() -> None:
    flags.DEFINE_string(
        "rule", None, "Rule file, or name of a rule in the zoo.", required=not only_prints_config()
    )
    define_tuned()
    define_flags("catch/8x8")


if __name__ == "__main__":
    commands.run(main, _define_flags)
