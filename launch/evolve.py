r"""Evolve the weights of a rule's policy prior, and its agents' learning rate, by whole lifetimes.

    python -m launch.evolve --rule=runs/grid57/rule.npz --suite=grid57 --workdir=runs/evolution
    python -m launch.evolve --rule=runs/grid57/rule.npz --workdir=runs/evolution \
        --suite=grid57,grid_generated,mdp_generated --generations=20 --population=32 --tasks=24

`evaluation.studies.evolution` describes the search. The rule's prior must be computed from the
agent's age, as that of `launch/configs/grid57_laptop.py`. Evolve on the tasks of discovery, of
which those with reference scores are used: what is chosen by a task is not judged on it. The rule
is `rule.npz` in the workdir. The agents of a generation learn all at once, on all devices of this
process: on a CPU one per core at a time, on an accelerator all together. Of `--config`, `seeds` and
`baselines` are not used: each candidate has one agent per task. Started again, the command makes
only the generations that are missing; with more `--generations`, it continues the search.
"""

import dataclasses

from absl import flags

from launch.support import commands
from launch.support.command_flags import only_prints_config
from launch.support.evaluation_flags import define_task_flags

# What a rule's file says of the rule before the evolution.
_OF_ANOTHER_RULE = ("probe_score", "evaluations")


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable
    from evaluation.contenders import rule_contenders
    from evaluation.studies import evolution
    from launch.support import evaluations

    values = flags.FLAGS
    experiment = evaluations.prepare_tasks(values, baselines=(), seeds=1)
    (contender,) = rule_contenders([values.rule], experiment.config, experiment.folder)
    settings = evolution.EvolutionConfig(
        generations=values.generations,
        population=values.population,
        num_tasks=values.tasks,
        sigma=values.sigma,
        seed=values.search_seed,
    )
    evolution.check(experiment, contender, settings)
    of_start = contender.source["header"].get("provenance", {})
    kept = {name: x for name, x in of_start.items() if name not in _OF_ANOTHER_RULE}
    changeable = ["search.generations"]
    with evaluations.opened(
        "evolve", experiment, [contender], changeable, search=settings
    ) as started:
        own = dataclasses.replace(started, provenance={**kept, **started.provenance})
        evolution.evolve(own, contender, settings)
    names = (evolution.RULE, evolution.TABLE, f"{evolution.PLOT}.png")
    print(f"Written: {', '.join(printable(experiment.folder / name) for name in names)}")


def _define_flags() -> None:
    flags.DEFINE_string(
        "rule",
        None,
        "Rule file, or name of a rule in the zoo, to start from.",
        required=not only_prints_config(),
    )
    flags.DEFINE_integer("generations", 10, "Generations in total.", 1)
    flags.DEFINE_integer("population", 10, "Candidates of a generation.", 4)
    flags.DEFINE_integer("tasks", 12, "Tasks that agents learn by each.", 1)
    flags.DEFINE_float("sigma", 0.5, "Initial deviation of the weights' logarithms.", 0.0)
    flags.DEFINE_integer("search_seed", 0, "Seed of candidates and tasks.", 0)
    define_task_flags("grid57")


if __name__ == "__main__":
    commands.run(main, _define_flags)
