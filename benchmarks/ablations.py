"""Discoveries that differ in one thing, judged together (DiscoRL, figure 3).

    python -m benchmarks.ablations --workdir=runs/parts
    python -m benchmarks.ablations --workdir=runs/tasks --study=tasks --seeds=3
    python -m benchmarks.ablations --workdir=runs/families --study=families --seeds=3

- `parts`: without each of the parts of discovery (figure 3c);
- `tasks`: on more and more tasks (figure 3a and b);
- `families`: what is discovered on some families of tasks, judged on each.

Discovers a rule for each variant (`launch/configs/ablations.py`) and each seed, evaluates all of
them together on each set of tasks, and writes one report, a table and a figure: each variant's
normalised IQM over the tasks, with a 95% interval over discoveries and agents' seeds; the tasks
are fixed. Started again, it continues. On one accelerator, `--at_once` discovers the seeds of a
variant in one program.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from absl import flags
from rich.console import Console
from rich.table import Table

from benchmarks import discover_seeds
from disco_common.atomic import write_atomically
from disco_common.json_lines import read_object
from environments.suites import grid_heldout
from evaluation.report.discovery_plots import score_matrix
from launch import commands
from launch.configs.ablations import ABLATIONS, SUITES
from launch.flag_parsing import define_output_folder


@dataclasses.dataclass(frozen=True)
class Study:
    """Which variants of discovery are compared, and on what they are judged.

    Attributes:
      variants: of `launch/configs/ablations.py`.
      suites: suites or tasks, separated by commas, by what the columns are called.
    """

    variants: tuple[str, ...]
    suites: Mapping[str, str]


_OTHERS = ("catch", "deep_sea", "chain")  # Of `grid_heldout`; the other tasks are grid-worlds.
_HELD_OUT = grid_heldout.SUITES["grid_heldout"]
_GRID = [x for x in _HELD_OUT if not x.partition("/")[2].startswith(_OTHERS)]
_CHAINS = [x for x in _HELD_OUT if x.startswith("grid_heldout/chain")]
_BSUITE = ("Catch", "DeepSea", "UmbrellaChain", "DiscountingChain")
STUDIES = {
    "parts": Study(
        (*(x for x in ABLATIONS if x not in SUITES), "toy_environments"),
        {"grid_heldout": "grid_heldout"},
    ),
    "tasks": Study(
        ("tasks_1", "tasks_4", "tasks_14", "none", "generated", "families"),
        {"grid_heldout": "grid_heldout", "gymnax": "gymnax"},
    ),
    "families": Study(
        ("none", "generated", "chains", "control"),
        {
            "grid-worlds": ",".join(_GRID),
            "chains": ",".join(_CHAINS),
            "bsuite": ",".join(f"gymnax/{name}-bsuite" for name in _BSUITE),
            "CartPole": "gymnax/CartPole-v1",
        },
    ),
}

_WORKDIR = define_output_folder("workdir", "Folder for all results.")
_STUDY = flags.DEFINE_enum("study", "parts", list(STUDIES), "What is compared.")
_VARIANTS = flags.DEFINE_list("variants", None, "Names of variants, instead of the study's.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Discoveries of each, with seeds 0, 1, ...", 1)
_META_STEPS = flags.DEFINE_integer("meta_steps", 300, "Meta-steps of each discovery.", 1)
_AT_ONCE = flags.DEFINE_bool(
    "at_once",
    False,
    "Whether all seeds of a variant are discovered in one program, on one accelerator"
    " (`benchmarks.discover_seeds`).",
)
_AGENT_SEEDS = flags.DEFINE_integer("agent_seeds", 2, "Runs of each rule on each task.", 1)
_BUDGET = flags.DEFINE_integer("budget", 99_968, "Environment steps of each run.", 1)


def run(command: str, *arguments: str) -> None:
    """Run a command of this package.

    Raises:
      subprocess.CalledProcessError: if it fails.
    """
    print(f"{command} {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", command, *arguments], check=True)


def discover(folder: pathlib.Path, variant: str, seed: int) -> pathlib.Path:
    """Discover and export a rule; return its file."""
    name = f"{variant}-{seed}"
    rule = folder / "rules" / f"{name}.npz"
    if not rule.exists():
        rule.parent.mkdir(parents=True, exist_ok=True)
        workdir = f"--workdir={folder / 'discoveries' / name}"
        config = f"--config=launch/configs/ablations.py:{variant}"
        settings = (f"--config.meta_steps={_META_STEPS.value}", f"--config.seed={seed}")
        run("launch.discover", workdir, config, *settings)
        run("launch.export", workdir, f"--output={rule}")
    return rule


def discover_all(folder: pathlib.Path, variants: Sequence[str]) -> list[pathlib.Path]:
    """Discover and export the rules that are missing; return all files."""
    seeds = range(_SEEDS.value)
    if not _AT_ONCE.value:
        return [discover(folder, variant, seed) for seed in seeds for variant in variants]
    files = []
    for variant in variants:
        run(
            "benchmarks.discover_seeds",
            f"--config=launch/configs/ablations.py:{variant}",
            f"--config.meta_steps={_META_STEPS.value}",
            f"--seeds={_SEEDS.value}",
            f"--output={folder / 'rules'}",
            f"--name={variant}",
        )
        files += discover_seeds.files(folder / "rules", variant, _SEEDS.value)
    return files


def scores(folder: pathlib.Path, rules: Sequence[str]) -> tuple[dict[str, float], list[float]]:
    """Return the IQM of an evaluation's rules with its interval, and that of each discovery."""
    results = read_object(folder / "results.json")
    each = [results["contenders"][name]["normalized_score"]["IQM"] for name in rules]
    found = {
        frozenset(x["rules"]): x["normalized_score"]["IQM"] for x in results["discoveries"].values()
    }
    over_all = found.get(frozenset(rules), each[0])  # One discovery has no entry.
    return over_all, [x["value"] for x in each]


def show(folder: pathlib.Path, study: Study, variants: Sequence[str], seeds: int) -> None:
    """Print the table, and write it and the figure."""
    table = Table(title=f"Normalised IQM, {seeds} discoveries of each")
    table.add_column("variant")
    for name in study.suites:
        table.add_column(name)
        table.add_column("each discovery")
    found = {
        variant: {
            name: scores(folder / name, [f"{variant}-{seed}" for seed in range(seeds)])
            for name in study.suites
        }
        for variant in variants
    }
    for variant, row in found.items():
        cells = []
        for over_all, each in row.values():
            cells.append("{value:.2f} [{low:.2f}, {high:.2f}]".format(**over_all))
            cells.append(", ".join(f"{x:.2f}" for x in each))
        table.add_row(variant, *cells)
    Console(width=160).print(table)
    write_atomically(folder / "scores.json", json.dumps(found, indent=1) + "\n")
    score_matrix(found).write(folder, "scores")


def main() -> None:
    """Make the missing discoveries and evaluations, print the table and draw the figure."""
    folder, study = pathlib.Path(_WORKDIR.value), STUDIES[_STUDY.value]
    variants = _VARIANTS.value or study.variants
    rules = list(map(str, discover_all(folder, variants)))
    for name, suite in study.suites.items():
        run(
            "launch.evaluate",
            f"--rule={','.join(sorted(rules))}",
            f"--suite={suite}",
            f"--workdir={folder / name}",
            f"--config.seeds={_AGENT_SEEDS.value}",
            f"--config.budget={_BUDGET.value}",
            "--config.strip_frames=0",
        )
    runs = ",".join(str(folder / name) for name in study.suites)
    title = f"Discoveries: {_STUDY.value}"
    run("launch.report", f"--runs={runs}", f"--output={folder / 'report'}", f"--title={title}")
    show(folder, study, variants, _SEEDS.value)


if __name__ == "__main__":
    commands.run(main)
