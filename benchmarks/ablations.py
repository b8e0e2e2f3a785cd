"""Ablations: discovery without each of its parts (DiscoRL, figure 3c).

    python -m benchmarks.ablations --workdir=runs/ablations

Discovers a rule for each ablation of `launch/configs/ablations.py` and each seed, evaluates all of
them together on each suite, and writes one report. Prints each ablation's normalised score, the
mean over a suite's tasks and over the discoveries, with a 95% t-interval over the discoveries, as
these differ by more than their agents do. Started again, it continues.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import scipy.stats
from absl import flags
from rich.console import Console
from rich.table import Table

from launch import commands
from launch.configs.ablations import ABLATIONS
from launch.flag_parsing import define_output_folder

_WORKDIR = define_output_folder("workdir", "Folder for all results.")
_ABLATIONS = flags.DEFINE_list("ablations", list(ABLATIONS), "Names of the ablations.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Discoveries of each, with seeds 0, 1, ...", 1)
_META_STEPS = flags.DEFINE_integer("meta_steps", 150, "Meta-steps of each discovery.")
_SUITES = flags.DEFINE_list("suites", ["grid57", "grid_heldout"], "Suites of the evaluations.")
_AGENT_SEEDS = flags.DEFINE_integer(
    "agent_seeds",
    3,
    "Runs of each rule on each task.",
    lower_bound=1,
)
_BUDGET = flags.DEFINE_integer("budget", 50_000, "Environment steps of each run.")


def run(command: str, *arguments: str) -> None:
    """Run a command of this package.

    Raises:
      subprocess.CalledProcessError: if it fails.
    """
    print(f"{command} {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", command, *arguments], check=True)


def discover(folder: pathlib.Path, ablation: str, seed: int) -> pathlib.Path:
    """Discover and export a rule; return its file."""
    name = f"{ablation}-{seed}"
    rule = folder / "rules" / f"{name}.npz"
    if not rule.exists():
        rule.parent.mkdir(parents=True, exist_ok=True)
        workdir = f"--workdir={folder / 'discoveries' / name}"
        config = f"--config=launch/configs/ablations.py:{ablation}"
        settings = (f"--config.meta_steps={_META_STEPS.value}", f"--config.seed={seed}")
        run("launch.discover", workdir, config, *settings)
        run("launch.export", workdir, f"--output={rule}")
    return rule


def scores(folder: pathlib.Path, ablation: str, seeds: int) -> np.ndarray:
    """Return each discovery's mean normalised score over an evaluation's tasks."""
    contenders = json.loads((folder / "results.json").read_text())["contenders"]
    found = [contenders[f"{ablation}-{seed}"]["normalized_score"]["mean"] for seed in range(seeds)]
    return np.array([x["value"] for x in found])


def interval(values: np.ndarray, confidence: float = 0.95) -> str:
    """Return the mean and the t-interval as text."""
    if len(values) < 2:
        return f"{values.mean():.2f}"
    half = scipy.stats.sem(values) * scipy.stats.t.ppf((1.0 + confidence) / 2, len(values) - 1)
    return f"{values.mean():.2f} ± {half:.2f}"


def show(folder: pathlib.Path, suites: Sequence[str], ablations: Sequence[str], seeds: int) -> None:
    """Print the table."""
    table = Table(title=f"Mean normalised score, {seeds} discoveries of each (95% t-interval)")
    table.add_column("ablation")
    for suite in suites:
        table.add_column(suite)
        table.add_column("each discovery")
    for ablation in ablations:
        row = [ablation]
        for suite in suites:
            found = scores(folder / suite, ablation, seeds)
            row += [interval(found), ", ".join(f"{x:.2f}" for x in found)]
        table.add_row(*row)
    Console(width=160).print(table)


def main() -> None:
    """Make the missing discoveries and evaluations, and print the table."""
    folder = pathlib.Path(_WORKDIR.value)
    rules = [
        str(discover(folder, ablation, seed))
        for seed in range(_SEEDS.value)
        for ablation in _ABLATIONS.value
    ]
    for suite in _SUITES.value:
        run(
            "launch.evaluate",
            f"--rule={','.join(sorted(rules))}",
            f"--suite={suite}",
            f"--workdir={folder / suite}",
            f"--config.seeds={_AGENT_SEEDS.value}",
            f"--config.budget={_BUDGET.value}",
            "--config.strip_frames=0",
        )
    runs = ",".join(str(folder / suite) for suite in _SUITES.value)
    run("launch.report", f"--runs={runs}", f"--output={folder / 'report'}", "--title=Ablations")
    show(folder, _SUITES.value, _ABLATIONS.value, _SEEDS.value)


if __name__ == "__main__":
    commands.run(main)
