"""Evolution of the weights of a rule's policy prior, by what agents learn in whole lifetimes.

A meta-gradient goes through a few updates of an agent, and does not see what a rule makes of the
agent after hundreds. This search does, for the weights of the policy target's prior
(`AnchoredRule.prior_weights`) at some points (`points_of`), between which others follow, and for
the agents' learning rate. CMA-ES (Hansen 2016, arXiv 1604.00772; the library `cmaes`) proposes a
generation of candidates, and fresh agents learn some tasks by each of them, all at once. A
candidate's fitness is the mean over these tasks of the normalised mean return, between the random
policy's (0) and the reference's (1), and at least -1. The tasks and the agents' seed are drawn anew
for each generation, and are the same for all its candidates.

    rule.npz              the rule at the mean of the last generation's distribution, and in its
                          header the learning rate
    evolution.csv         a row for each generation: fitness, learning rate, the rule's weights
    evolution.png, .svg   the same as a plot
    generations/0000.json of each generation the tasks, and the fitness of each candidate
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from cmaes import CMA
from jaxtyping import Float

import disco
import environments
from agents.search_space import RULE_RANGES
from disco import anchored
from disco_common.files import write_atomically
from disco_common.json_lines import dumps, read_object
from disco_common.ranges import Count, Positive, Range, require_ranges
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.evaluate import Experiment
from evaluation.executors import Show
from evaluation.report.drawing import Curve, Drawing, draw_line_panels
from evaluation.report.evaluation_files import to_csv
from evaluation.rules import fingerprint
from evaluation.scoring import references
from evaluation.scoring.references import by_references
from training import device_program

RULE, TABLE, PLOT = "rule.npz", "evolution.csv", "evolution"


@dataclasses.dataclass(frozen=True)
class EvolutionConfig:
    """Settings of a search.

    Attributes:
      generations: in total.
      population: candidates of each generation.
      num_tasks: tasks that agents learn by each candidate.
      sigma: initial standard deviation of each weight: of policy_prior's logit, and of the
        logarithms of the others and of the learning rate.
      seed: of the candidates and the tasks. That of the agents is the evaluation's, plus the
        number of the generation.
    """

    generations: Count = 10
    population: Annotated[int, Range("at least 4", lambda x: x >= 4)] = 10
    num_tasks: Count = 12
    sigma: Positive = 0.5
    seed: Annotated[int, Range("0 to 2**31 - 1", lambda x: 0 <= x < 2**31)] = 0

    def __post_init__(self):
        require_ranges(self)


class Generation(NamedTuple):
    """A generation that was tried.

    Attributes:
      tasks: names of those that agents learned.
      fitness: of each candidate.
      mean: of the distribution after it, as `_candidate` takes it.
    """

    tasks: tuple[str, ...]
    fitness: tuple[float, ...]
    mean: Float[np.ndarray, "D"]


def check(
    experiment: Experiment, contender: Contender, settings: EvolutionConfig
) -> tuple[disco.AnchoredRule, dict[str, references.Reference]]:
    """Return the rule, and the reference scores of the tasks that have some.

    Raises:
      ValueError: if the rule's prior is not computed from the age, a task is simulated on the host,
        or there are too few tasks with references.
    """
    rule, tasks, budget = contender.rule, experiment.tasks, experiment.config.num_steps
    if not isinstance(rule, disco.AnchoredRule) or not (
        rule.sizes.prior_outputs and rule.sizes.agent_features
    ):
        raise ValueError(
            f"The weights of {contender.name}'s policy prior are not outputs that read the age;"
            " expected a rule with sizes.prior_outputs and sizes.agent_features of at least 1."
        )
    if on_host := [task.name for task in tasks if task.is_host]:
        raise ValueError(f"{on_host!r:.300} are simulated on the host; expected JAX environments.")
    known, reasons = references.of_tasks(tasks, budget, references.shipped())
    if len(known) < settings.num_tasks:
        raise ValueError(
            f"{len(known)} tasks have reference scores; expected at least num_tasks"
            f" ({settings.num_tasks}). The others: {reasons!r:.300}"
        )
    return rule, known


def evolve(
    experiment: Experiment, contender: Contender, settings: EvolutionConfig
) -> list[Generation]:
    """Search, or continue a search; write the files.

    The search starts from the contender's rule and agent. The tasks are those of the discovery, in
    JAX environments; those without reference scores are not used. Each candidate has one run on
    each task of its generation. Finished generations in the folder are not repeated. Of the
    experiment, executor and `runs_per_job` are not used.

    Raises:
      ValueError: as `check` does, or if the agents do not fit in memory.
      OSError: if something cannot be written.
      StoppedBySignal: after a stop signal.
    """
    rule, known = check(experiment, contender, settings)
    config, folder, provenance = experiment.config, experiment.folder, experiment.provenance
    usable = [task for task in experiment.tasks if task.name in known]
    search = CMA(
        mean=np.zeros(len(points_of(rule)) * rule.sizes.prior_outputs + 1),
        sigma=settings.sigma,
        population_size=settings.population,
        seed=settings.seed,
    )
    found, rows = [], []
    (folder / "generations").mkdir(parents=True, exist_ok=True)
    steps = settings.population * settings.num_tasks * config.num_steps
    with experiment.open_progress("evolve", settings.generations * steps) as show:
        show(0, {}, "compiling")
        for number in range(settings.generations):
            candidates = [search.ask() for _ in range(settings.population)]
            chosen = _draw_tasks(usable, settings, number)
            file = folder / "generations" / f"{number:04d}.json"
            if (fitness := _read(file, settings.population)) is None:
                made = [_candidate(contender, x) for x in candidates]
                fitness = _fitness(made, chosen, config, known, number, show)
                text = dumps({"fitness": fitness, "tasks": [x.name for x in chosen]}, indent=1)
                write_atomically(file, text + "\n")
            search.tell([(x, -y) for x, y in zip(candidates, fitness, strict=True)])
            mean = np.array(search.mean)  # CMA-ES changes its own.
            found.append(Generation(tuple(x.name for x in chosen), tuple(fitness), mean))
            changed = _candidate(contender, mean)
            rows.append(_row(number, fitness, changed))
            experiment.announce(
                f"Generation {number + 1} of {settings.generations}: fitness up to"
                f" {max(fitness):.3f}, mean {np.mean(fitness):.3f}."
            )
            made_so_far = {"generations": len(found), "environment_steps": len(found) * steps}
            origin = dataclasses.asdict(settings) | made_so_far | {"from": fingerprint(rule)}
            _write(folder, rows, changed, {**provenance, "evolution": origin})
    return found


def _draw_tasks(
    tasks: Sequence[environments.Environment], settings: EvolutionConfig, number: int
) -> list[environments.Environment]:
    """Return the tasks of a generation: one of each of `num_tasks` nearly equal parts, in order."""
    random = np.random.default_rng([settings.seed, number])
    parts = np.array_split(np.arange(len(tasks)), settings.num_tasks)
    return [tasks[random.choice(part)] for part in parts]


def _candidate(contender: Contender, change: Float[np.ndarray, "D"]) -> Contender:
    """Return the contender, its rule and its agent's learning rate changed.

    Args:
      contender: from which the search starts.
      change: what is added to the prior's P outputs at the R points of the rule, `[R * P]`, and
        then to the logarithm of the learning rate.
    """
    rule = contender.rule
    assert isinstance(rule, disco.AnchoredRule)
    prior = change[:-1].reshape(-1, rule.sizes.prior_outputs)
    rate = contender.agent.learning_rate * math.exp(change[-1])
    agent = dataclasses.replace(contender.agent, learning_rate=rate)
    return contender.changed(rule=with_prior(rule, prior), agent=agent)


def _fitness(
    candidates: Sequence[Contender],
    tasks: Sequence[environments.Environment],
    config: EvaluationConfig,
    known: Mapping[str, references.Reference],
    number: int,
    show: Show,
) -> list[float]:
    """Return the fitness of each candidate of a generation."""
    settings, seed = config.training, config.seed + number
    by_name, scores = {task.name: task for task in tasks}, []
    steps = number * len(candidates) * len(tasks) * config.num_steps  # Of the search so far.
    for group in environments.group_by_dynamics(tasks):
        members = [by_name[name] for name in group.names]
        agents = [one.configured.make(members[0]) for one in candidates]
        returns = device_program.mean_returns(
            agents, members, seed, settings, lambda made, before=steps: show(before + made, {}, "")
        )
        scales = [known[name] for name in group.names]
        scores.append([by_references(x[:, None], scales) for x in returns])
        steps += len(candidates) * len(members) * config.num_steps
    return np.mean(np.concatenate(scores, axis=1), axis=1).tolist()


def _read(path: pathlib.Path, population: int) -> list[float] | None:
    """Return the fitness of a generation's candidates; None if the file is missing or damaged."""
    try:
        found = read_object(path)["fitness"]
        fitness = [float(x) for x in found]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_whole = len(fitness) == population and all(map(math.isfinite, fitness))
    return fitness if is_whole else None


def _row(number: int, fitness: Sequence[float], changed: Contender) -> dict[str, Any]:
    """Return a generation's row of the table."""
    row = {
        "generation": number,
        "best_fitness": max(fitness),
        "mean_fitness": float(np.mean(fitness)),
        "learning_rate": changed.agent.learning_rate,
    }
    for name, at in weights(changed.rule).items():
        row |= {f"{name} {point}": x for point, x in at.items()}
    return row


def _write(
    folder: pathlib.Path,
    rows: Sequence[dict[str, Any]],
    changed: Contender,
    provenance: Mapping[str, Any],
) -> None:
    """Write the rule, the table and the plot."""
    assert isinstance(changed.rule, disco.AnchoredRule)
    write_atomically(folder / TABLE, to_csv(rows))
    _plot(rows).write(folder, PLOT)
    recommended = {name: getattr(changed.agent, name) for name in RULE_RANGES}
    recommended["network"] = dataclasses.asdict(changed.agent.network)
    agent = {**provenance.get("agent", {}), **recommended}
    disco.save(changed.rule, folder / RULE, {**provenance, "agent": agent})


def _plot(rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Return a panel for fitness, for the learning rate, and for each weight, by generation."""
    panels: dict[str, dict[str, Curve]] = {}
    for column in list(rows[0])[1:]:
        title, _, point = column.partition(" ")  # Of weights.
        title = "fitness" if title.endswith("fitness") else title
        curve = Curve(range(1, len(rows) + 1), [row[column] for row in rows])
        panels.setdefault(title, {})[point or column.replace("_", " ")] = curve
    log = {title: "y" for title in panels if title.endswith("advantage_weight")}
    return draw_line_panels(panels, xlabel="generation", log=log)


class Point(NamedTuple):
    """What the outputs of a rule's prior read.

    Attributes:
      updates: of the agent.
      deviation: of its advantages.
      probability: of the action taken.
      ratio: to its probability when it was taken.
    """

    updates: int = 1_000
    deviation: float = 0.3
    probability: float = 0.25
    ratio: float = 1.0


_POINTS = {
    "at birth": Point(updates=0),
    "after 1000 updates": Point(),
    "advantages ten times as large": Point(deviation=3.0),
    "an action of a tenth of the probability": Point(probability=0.025),
    "an action twice as probable as when it was taken": Point(ratio=2.0),
}


def points_of(rule: disco.AnchoredRule) -> dict[str, Point]:
    """Return the points between which the outputs of a rule's policy prior follow.

    The weights of the policy target's prior (`AnchoredRule.prior_weights`) are computed from
    outputs of the meta-network, which are linear in what they read of the agent and of the action
    taken, for transitions for which the meta-network's LSTM adds nothing.
    """
    sizes, names = rule.sizes, list(_POINTS)
    used = names[: 1 + sizes.agent_features] + names[3 : 3 + sizes.prior_features]
    return {name: _POINTS[name] for name in used}


def _features(rule: disco.AnchoredRule) -> Float[np.ndarray, "R R"]:
    """Return what the prior's head reads at each point, after a 1 for its bias."""
    rows = []
    for point in points_of(rule).values():
        age, deviation, probability, ratio = map(jnp.float32, point)
        of_agent = anchored.agent_features(age, deviation)
        log_probability = jnp.log(probability)
        of_action = anchored.prior_features(log_probability, log_probability - jnp.log(ratio))
        used = of_agent[: rule.sizes.agent_features] + of_action[: rule.sizes.prior_features]
        rows.append([1.0, *map(float, used)])
    return np.array(rows)


def with_prior(rule: disco.AnchoredRule, change: Float[np.ndarray, "R P"]) -> disco.AnchoredRule:
    """Return a rule whose prior's outputs are changed by these numbers at its points."""
    head = rule.parameters[anchored.PRIOR]
    bias, *slopes = np.linalg.solve(_features(rule), change)
    changed = {
        "w": head["w"].at[-len(slopes) :].add(jnp.asarray(slopes, head["w"].dtype)),
        "b": head["b"] + jnp.asarray(bias, head["b"].dtype),
    }
    return dataclasses.replace(rule, parameters={**rule.parameters, anchored.PRIOR: changed})


def weights(rule: disco.Rule | None) -> dict[str, dict[str, float]]:
    """Return the weights of an anchored rule's prior that are outputs, by name, at each point."""
    assert isinstance(rule, disco.AnchoredRule)
    head = rule.parameters[anchored.PRIOR]
    slopes = head["w"][-(rule.sizes.agent_features + rule.sizes.prior_features) :]
    outputs = jnp.asarray(_features(rule)) @ jnp.concatenate([head["b"][None], slopes])
    return {
        name: dict(zip(points_of(rule), x[:, 0].tolist(), strict=True))
        for name, x in rule.prior_weights(outputs).items()
        if isinstance(x, jnp.ndarray)
    }
