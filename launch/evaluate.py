"""Trains fresh agents by frozen rules on tasks, beside hand-designed rules and a random policy.

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=runs/heldout
    python -m launch.evaluate --rule=first.npz --suite=crafter --workdir=runs/crafter

Settings are a laptop's, those of the first suite's kind; the paper's, for an accelerator, are in
`launch/configs/evaluate_paper.py`. Started again with the same workdir, it repeats no contender
that was finished, and no run in a host environment; such a run that was stopped continues from
its newest checkpoint.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from environments import registry
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import evaluate, resolve
from evaluation.scores import Summary
from launch import commands, workdirs
from launch.configs import evaluate as default_config
from launch.configuration import from_config
from launch.flag_parsing import define_config, given
from launch.progress import Progress
from launch.provenance import code_version

# What an update's memory grows with. The first costs nothing but time.
_SHRINK = (
    "runs_at_once",
    "agent.batch_size",
    "agent.unroll_length",
    "agent.network.model",
    "agent.network.torso",
    "agent.network.head",
    "agent.num_environments",
    "agent.replay_capacity",
)


@dataclasses.dataclass(frozen=True)
class _Identity:
    """What a workdir is the evaluation of. It may be continued with the same one only."""

    tasks: tuple[str, ...]
    rules: dict[str, str]
    config: EvaluationConfig


def run(
    rules: Sequence[str], suites: Sequence[str], config: EvaluationConfig, workdir: str
) -> Summary:
    """Runs or continues an evaluation.

    Args:
      rules: rule files, or names in the zoo.
      suites: suites or environments.
      config: of the evaluation.
      workdir: for all results.

    Raises:
      ValueError, OSError, ImportError: if a name, a file, a setting or the workdir does not fit.
    """
    tasks = resolve(suites)
    contenders = make_contenders(rules, config)
    identity = _Identity(
        tasks=tuple(task.name for task in tasks),
        rules={c.name: c.source["parameters_sha256"] for c in contenders if c.kind == "discovered"},
        config=config,
    )
    changeable = ("config.runs_at_once", "config.checkpoint_seconds")
    folder = workdirs.open_workdir(workdir, identity, changeable)
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    return evaluate(tasks, contenders, config, pathlib.Path(folder), provenance, Progress)


def main() -> None:
    """The command."""
    values = flags.FLAGS
    rules = [name.strip() for value in values.rule for name in value.split(",") if name.strip()]
    suites = [name.strip() for name in values.suite.split(",") if name.strip()]
    run(rules, suites, from_config(EvaluationConfig, values.config), values.workdir)


if __name__ == "__main__":
    flags.DEFINE_multi_string(
        "rule",
        [],
        "Rule file, or name of a rule in the zoo; several by commas or repetition. Without it,"
        " only the baselines are run.",
    )
    flags.DEFINE_string("suite", "grid_heldout", "Suites or environments, separated by commas.")
    flags.DEFINE_string("workdir", None, "Folder for all results.", required=True)
    first_suite = (given("suite") or "grid_heldout").partition(",")[0].strip()
    define_config(default_config, registry.family_of(first_suite))
    if not registry.is_host(first_suite):  # Runs there follow one another, each on all cores.
        commands.use_all_cores()
    commands.run(main, shrink=_SHRINK)
