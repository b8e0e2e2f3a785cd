r"""Tune baselines and rules' agents: random search with the same number of trials for each.

    python -m launch.tune --rule=grid57 --suite=grid57 --trials=16 --workdir=runs/tuning \
        --baselines=actor_critic,ppo --config.seeds=1
    python -m launch.evaluate --rule=grid57 --suite=grid_heldout --workdir=runs/tuned \
        --baselines=actor_critic_tuned,ppo_tuned --tuned=runs/tuning/tuned.json

`evaluation.studies.tuning` has the ranges and defines a trial's score. Tune on the tasks of
discovery: what is tuned on a task is not judged on it. Started again, the command makes only what
is missing; with more `--trials`, it continues the search. Executors and workdirs are as in
`launch.evaluate`.
"""

from collections.abc import Mapping
from typing import Any

from absl import flags

from launch.support import commands
from launch.support.command_flags import listed_paths
from launch.support.evaluation_flags import define_flags


def main() -> None:
    """Run the command."""
    from agents.search_space import RULE_RANGES
    from disco_common.terminal import printable
    from evaluation.contenders import rule_contenders
    from evaluation.studies import tuning
    from evaluation.tuned_settings import TUNED_FILE
    from launch.support import evaluations
    from launch.support.display import print_rows

    values = flags.FLAGS
    experiment = evaluations.prepare(values)
    config, folder = experiment.config, experiment.folder
    rules = listed_paths(values.rule)
    if not rules and not config.baselines:
        raise ValueError("--rule is empty and config.baselines is (); expected something to tune.")
    evaluated = rule_contenders(rules, config, folder)
    searched = {
        "ranges": {x: _described(ranges) for x, ranges in tuning.all_ranges().items()},
        "rule_ranges": _described(RULE_RANGES),
    }
    with evaluations.opened("tune", experiment, evaluated, **searched) as started:
        found = tuning.tune(started, evaluated, values.trials)
    rows = [
        {
            "contender": name,
            "score": f"{one.score:.3f}",
            "settings": ", ".join(f"{key} {value:g}" for key, value in one.settings.items()),
            "at the edge of its range": ", ".join(one.at_the_edge),
        }
        for name, one in found.contenders.items()
    ]
    print_rows(f"Best of {values.trials} trials", rows)
    print(printable(f"Written: {folder / TUNED_FILE}, {folder / 'tuning.csv'}"))


def _described(space: Mapping[str, Any]) -> dict[str, str]:
    return {name: repr(values) for name, values in space.items()}


def _define_flags() -> None:
    flags.DEFINE_multi_string(
        "rule",
        [],
        "Rule file, or name of a rule in the zoo or of another package, to tune, too; several by"
        " commas or repetition.",
    )
    flags.DEFINE_integer("trials", 16, "Trials of each contender.", lower_bound=1)
    define_flags("grid57")


if __name__ == "__main__":
    commands.run(main, _define_flags)
