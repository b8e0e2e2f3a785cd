"""Discover a rule with each of several seeds, all at once, on one accelerator.

    python -m benchmarks.discover_seeds --config=launch/configs/ablations.py:no_age --seeds=5 \
        --output=runs/parts/rules --name=no_age

writes `no_age-0.npz` to `no_age-4.npz` there, the averages of the rules after all meta-steps, as
`launch.export` writes that of a run without probes. Started again, it does nothing if all files
are there; an unfinished discovery begins anew, as it takes minutes (`meta.seeds`).
"""

import dataclasses
import pathlib
import time

from absl import flags

import disco
from disco_common import stopping
from disco_common.configuration import from_config
from launch.support import commands
from launch.support.flag_parsing import define_config, define_output_folder
from launch.support.progress import Progress
from launch.support.rule_provenance import rule_provenance
from launch.support.settings import DiscoverSettings
from launch.support.setup import make_discovery, make_rule, make_tasks
from meta import seeds


def files(folder: pathlib.Path, name: str, number: int) -> list[pathlib.Path]:
    """Return the rule files of seeds 0, 1, ..."""
    return [folder / f"{name}-{seed}.npz" for seed in range(number)]


def main() -> None:
    """Run the command."""
    settings = from_config(DiscoverSettings, flags.FLAGS.config)
    paths = files(pathlib.Path(flags.FLAGS.output), flags.FLAGS.name, flags.FLAGS.seeds)
    if all(path.exists() for path in paths):
        print(f"All of {paths[0]} to {paths[-1]} are there.")
        return
    tasks = make_tasks(settings)
    every = [dataclasses.replace(settings, seed=seed) for seed in range(len(paths))]
    rules = [make_rule(one) for one in every]
    discovery = make_discovery(settings, tasks, rules[0])
    names = [group.names for group in discovery.groups]
    per_meta_step = discovery.steps_per_meta_step * discovery.population_size * len(paths)
    began = 0.0
    with stopping.noting(), Progress("discover", settings.meta_steps) as bar:
        bar.start(0)

        def report(step: int, metrics: tuple[seeds.SeedsMetrics, ...]) -> None:
            nonlocal began  # After the first meta-step, which is compiled.
            if step == 1:
                began = time.perf_counter()
            if step == 1 or step % settings.log_interval == 0:
                reward = sum(float(x["validation_reward"].sum()) for x in metrics)
                reward /= sum(x["validation_reward"].size for x in metrics)
                shown = {"validation reward": reward}
                if step > 1:
                    seconds = time.perf_counter() - began
                    shown["env steps/s"] = per_meta_step * (step - 1) / seconds
                bar.update(step, shown)

        found = seeds.discover(discovery, range(len(paths)), rules, settings.meta_steps, report)
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    for path, one, (rule, task_meta_steps) in zip(paths, every, found, strict=True):
        disco.save(rule, path, rule_provenance(one, one.meta_steps, names, task_meta_steps))
        print(f"Wrote {path}.")


if __name__ == "__main__":
    define_output_folder("output", "Folder for the rule files.")
    flags.DEFINE_string("name", "rule", "Beginning of their names.")
    flags.DEFINE_integer("seeds", 3, "Number of discoveries, with seeds 0, 1, ...", 1)
    define_config("grid57_laptop")
    commands.run(main)
