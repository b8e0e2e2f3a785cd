r"""Analyse a discovered rule: its policy updates, and the analyses of the paper's figure 4.

    python -m launch.analyse --rule=grid57 --suite=catch/8x8 --workdir=runs/analysis
    python -m launch.analyse --rule=disco_103.npz --suite=atari/Pong,atari/Breakout \
        --workdir=runs/analysis
    python -m launch.analyse --rule=three_families --formula=grid57,grid_generated \
        --suite=grid_heldout --workdir=runs/formula

The report shows how the rule changes a policy, beside PPO and DPO. An agent learns each task by the
rule, and then plays it. The report shows what the weights of the policy target's prior depend on,
if they are outputs of the meta-network, and, if agents have predictions y and z, their confidence
along an episode, their saliency on the observations, how well probes decode future events from
them, and the influence of later predictions on earlier targets; ablations, in which the rule does
not read the agent's predictions, show their effect on learning. With --formula, suites to fit it
on, what the rule computes is written as a formula, and as a loss in plain JAX
(`evaluation.studies.formulas`), and agents learn the tasks by it, too. Settings, and workdirs, in
which runs are continued, are as in `launch.evaluate`; there are no baselines.
"""

from absl import flags

from launch.support import commands
from launch.support.command_flags import config_overrides, only_prints_config
from launch.support.evaluation_flags import define_task_flags, listed


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable
    from evaluation.contenders import rule_contenders
    from evaluation.evaluate import check, tasks_of
    from evaluation.studies.analysis import AnalysisConfig, analyse
    from evaluation.studies.formulas import chosen
    from launch.support import evaluations

    values, unread = flags.FLAGS, "baselines"
    if unread in config_overrides():
        raise ValueError(
            f"--config.{unread} is given, and an analysis reads none; expected --rule alone."
        )
    experiment = evaluations.prepare_tasks(values)
    settings = AnalysisConfig(values.steps, values.environments, values.horizon)
    (contender,) = rule_contenders([values.rule], experiment.config, experiment.folder)
    check(experiment, [contender])
    fitted_on = chosen(tasks_of(listed(values.formula))) if values.formula else ()
    own = {"formula": values.formula} if values.formula else {}
    unread = f"config.{unread}"
    with evaluations.opened("analyse", experiment, [contender], [unread], **own) as started:
        files = analyse(started, contender, settings, fitted_on)
    print("Written: " + ", ".join(map(printable, files)))
    for page in files:
        if page.name.endswith("_formula.md"):
            print(page.read_text())


def _define_flags() -> None:
    flags.DEFINE_string(
        "rule", None, "Rule file, or name of a rule in the zoo.", required=not only_prints_config()
    )
    flags.DEFINE_integer("steps", 500, "Steps that the trained agent plays.")
    flags.DEFINE_integer("environments", 8, "Parallel environments that it plays in.")
    flags.DEFINE_integer("horizon", 10, "Future transitions that the probes predict.")
    flags.DEFINE_string(
        "formula", "", "Suites of discovery tasks to fit a formula of the rule on, by commas."
    )
    define_task_flags("catch/8x8")


if __name__ == "__main__":
    commands.run(main, _define_flags)
