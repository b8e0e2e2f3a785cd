r"""Analyse a discovered rule: its policy updates, and the analyses of the paper's figure 4.

    python -m launch.analyse --rule=grid57 --suite=catch/8x8 --workdir=runs/analysis
    python -m launch.analyse --rule=disco_103.npz --suite=atari/Pong,atari/Breakout \
        --workdir=runs/analysis

The report shows how the rule changes a policy, beside PPO and DPO. An agent learns each task by the
rule, and then plays it. The report shows what the weights of the policy target's prior depend on,
if they are outputs of the meta-network, and, if agents have predictions y and z, their confidence
along an episode, their saliency on the observations, how well probes decode future events from
them, and the influence of later predictions on earlier targets; ablations, in which the rule does
not read the agent's predictions, show their effect on learning. Settings are those of
`launch.evaluate`.
"""

import sys

from absl import flags

from disco_common.configuration import from_config
from disco_common.terminal import printable
from environments import registry
from evaluation.config import EvaluationConfig
from evaluation.contenders import rule_contenders
from evaluation.evaluate import check, resolve
from evaluation.studies.analysis import AnalysisConfig, analyse
from launch.configs import evaluate as default_config
from launch.evaluate import CHANGEABLE, Identity, listed
from launch.support import commands, workdirs
from launch.support.flag_parsing import (
    define_config,
    define_output_folder,
    given,
    only_prints_config,
)
from launch.support.progress import Progress
from launch.support.provenance import code_version


def main() -> None:
    """Run the command."""
    values = flags.FLAGS
    config = from_config(EvaluationConfig, values.config)
    settings = AnalysisConfig(
        steps=values.steps,
        environments=values.environments,
        horizon=values.horizon,
        shown=min(AnalysisConfig.shown, values.steps),
    )
    contenders = rule_contenders([values.rule], config)
    tasks = resolve(listed(values.suite))
    check(tasks, contenders, config)
    identity = Identity(
        tasks=tuple(task.name for task in tasks),
        rules={x.name: x.parameters_sha256 for x in contenders},
        config=config,
        command="analyse",
        task_files={task.name: task.sha256 for task in tasks if task.sha256},
    )
    with workdirs.opened(values.workdir, identity, CHANGEABLE) as folder:
        files = analyse(
            values.rule,
            tasks,
            config,
            settings,
            folder,
            {"code_version": code_version(), "command": sys.argv},
            Progress,
        )
    print("Written: " + ", ".join(map(printable, files)))


if __name__ == "__main__":
    flags.DEFINE_string(
        "rule", None, "Rule file, or name of a rule in the zoo.", required=not only_prints_config()
    )
    flags.DEFINE_string("suite", "catch/8x8", "Suites or environments, separated by commas.")
    define_output_folder("workdir", "Folder for all results.")
    flags.DEFINE_integer("steps", AnalysisConfig.steps, "Steps that the trained agent plays.")
    flags.DEFINE_integer(
        "environments", AnalysisConfig.environments, "Parallel environments that it plays in."
    )
    flags.DEFINE_integer(
        "horizon", AnalysisConfig.horizon, "Future transitions that the probes predict."
    )
    define_config(
        default_config, registry.family_of((given("suite") or "catch").partition(",")[0].strip())
    )
    commands.run(main)
