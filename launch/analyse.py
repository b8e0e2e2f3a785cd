r"""What a discovered rule has discovered: the paper's figure 4 for a rule and tasks of one's own.

    python -m launch.analyse --rule=grid57 --suite=catch/8x8 --workdir=runs/analysis
    python -m launch.analyse --rule=disco_103.npz --suite=atari/Pong,atari/Breakout \
        --workdir=runs/analysis

An agent learns each task by the rule and then plays it: how sure the predictions y and z are along
an episode, what they look at, what of the future can be read from them, and how far a later
prediction reaches into the targets of now. Agents that learn by the rule with its own predictions
hidden from it show what these are good for. Settings are those of `launch.evaluate`.
"""

import pathlib
import sys

from absl import flags

from environments import registry
from evaluation.analyses import AnalysisConfig, analyse
from evaluation.config import EvaluationConfig
from evaluation.evaluate import resolve
from launch import commands
from launch.configs import evaluate as default_config
from launch.configuration import from_config, from_json
from launch.flag_parsing import define_config, given
from launch.progress import Progress
from launch.provenance import code_version


def main() -> None:
    """The command."""
    values = flags.FLAGS
    suites = [name.strip() for name in values.suite.split(",") if name.strip()]
    what = AnalysisConfig(
        steps=values.steps,
        environments=values.environments,
        horizon=values.horizon,
        shown=min(AnalysisConfig.shown, values.steps),
    )
    files = analyse(
        values.rule,
        resolve(suites),
        from_config(EvaluationConfig, values.config),
        what,
        pathlib.Path(values.workdir),
        from_json,
        {"code_version": code_version(), "command": sys.argv},
        Progress,
    )
    print("Written: " + ", ".join(map(str, files)))


if __name__ == "__main__":
    flags.DEFINE_string("rule", None, "Rule file, or name of a rule in the zoo.", required=True)
    flags.DEFINE_string("suite", "catch/8x8", "Suites or environments, separated by commas.")
    flags.DEFINE_string("workdir", None, "Folder for all results.", required=True)
    flags.DEFINE_integer("steps", AnalysisConfig.steps, "That the trained agent plays.")
    flags.DEFINE_integer("environments", AnalysisConfig.environments, "In which it plays at once.")
    flags.DEFINE_integer("horizon", AnalysisConfig.horizon, "Transitions of the probes' future.")
    define_config(
        default_config, registry.family_of((given("suite") or "catch").partition(",")[0].strip())
    )
    commands.run(main)
