"""Ablations: discovery without each of its parts (DiscoRL, figure 3c).

    python -m benchmarks.ablations --workdir=runs/ablations

Discovers a rule for each ablation of `launch/configs/ablations.py` and each seed, evaluates all of
them together on each suite, and writes one report. Prints each ablation's normalised IQM over a
suite's tasks, with a 95% interval over discoveries and agents' seeds; the tasks are fixed. Started
again, it continues.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from absl import flags
from rich.console import Console
from rich.table import Table

from launch import commands
from launch.configs.ablations import ABLATIONS
from launch.flag_parsing import define_output_folder

_WORKDIR = define_output_folder("workdir", "Folder for all results.")
_ABLATIONS = flags.DEFINE_list("ablations", list(ABLATIONS), "Names of the ablations.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Discoveries of each, with seeds 0, 1, ...", 1)
_META_STEPS = flags.DEFINE_integer("meta_steps", 300, "Meta-steps of each discovery.")
_SUITES = flags.DEFINE_list("suites", ["grid_heldout"], "Suites of the evaluations.")
_AGENT_SEEDS = flags.DEFINE_integer(
    "agent_seeds",
    2,
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


def cells(folder: pathlib.Path, rules: Sequence[str]) -> tuple[str, str]:
    """Return the IQM of an evaluation's rules with its interval, and that of each discovery."""
    results = json.loads((folder / "results.json").read_text())
    each = [results["contenders"][name]["normalized_score"]["IQM"] for name in rules]
    found = {
        frozenset(x["rules"]): x["normalized_score"]["IQM"] for x in results["discoveries"].values()
    }
    over_all = found.get(frozenset(rules), each[0])  # One discovery has no entry.
    interval = "{value:.2f} [{low:.2f}, {high:.2f}]".format(**over_all)
    return interval, ", ".join(f"{x['value']:.2f}" for x in each)


def show(folder: pathlib.Path, suites: Sequence[str], ablations: Sequence[str], seeds: int) -> None:
    """Print the table."""
    table = Table(title=f"Normalised IQM, {seeds} discoveries of each")
    table.add_column("ablation")
    for suite in suites:
        table.add_column(suite)
        table.add_column("each discovery")
    for ablation in ablations:
        rules = [f"{ablation}-{seed}" for seed in range(seeds)]
        table.add_row(ablation, *(x for suite in suites for x in cells(folder / suite, rules)))
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
