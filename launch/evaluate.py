"""Trains fresh agents by frozen rules on tasks, beside hand-designed rules and a random policy.

    python -m launch.evaluate --rule=first.npz --suite=grid_heldout --workdir=runs/heldout

Started again with the same workdir, it repeats no contender that was finished.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import app, flags

from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import evaluate, resolve
from evaluation.scores import Summary
from launch import workdirs
from launch.configs import evaluate as default_config
from launch.configuration import from_config
from launch.flag_parsing import define_config, parse_flags
from launch.progress import Progress
from launch.provenance import code_version

_RULE = flags.DEFINE_multi_string(
    "rule",
    [],
    "Rule file, or name of a rule in the zoo; several by commas or repetition. Without it, only"
    " the baselines are run.",
)
_SUITE = flags.DEFINE_string(
    "suite", "grid_heldout", "Suites or environments, separated by commas."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder for all results.", required=True)
_CONFIG = define_config(default_config)


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
    folder = workdirs.open_workdir(workdir, identity)
    provenance: dict[str, Any] = {"code_version": code_version(), "command": sys.argv}
    return evaluate(tasks, contenders, config, pathlib.Path(folder), provenance, Progress)


def use_all_cores(most: int = 16) -> None:
    """One XLA device per core, each with one thread: an evaluation is many small programs.

    To be called before JAX computes anything; leaves alone what XLA_FLAGS says of it.
    """
    found = os.environ.get("XLA_FLAGS", "")
    if "device_count" in found:
        return
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    os.environ["XLA_FLAGS"] = f"{found} --xla_cpu_multi_thread_eigen=false".strip()
    jax.config.update("jax_num_cpu_devices", min(cores, most))


def main(argv: list[str]) -> None:
    """The command."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments {argv[1:]}.")
    use_all_cores()
    rules = [name.strip() for value in _RULE.value for name in value.split(",") if name.strip()]
    suites = [name.strip() for name in _SUITE.value.split(",") if name.strip()]
    try:
        config = from_config(EvaluationConfig, _CONFIG.value)
        run(rules, suites, config, _WORKDIR.value)
    except (ValueError, OSError, ImportError) as error:
        print(f"launch.evaluate: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
