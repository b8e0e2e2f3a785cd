"""Whether truncated meta-gradients point where the scores of lifetimes rise.

    python -m benchmarks.estimators --workdir=runs/estimators

For a rule and a task it measures, with the agents of `launch/configs/varied.py` and lifetimes of
400 updates,

- the derivative of the lifetime's score (the mean return of its last fifth) in random directions of
  the meta-parameters, by antithetic differences with common random numbers, from two disjoint sets
  of seeds. Of a direction that is drawn from the standard normal distribution the mean square of it
  is the squared norm of the score's gradient;
- the meta-gradient of an agent, averaged over its lifetime, for several K, with and without the
  meta-value function, from two seeds;
- the score's derivative along each mean meta-gradient, by lifetimes as above but of other seeds.
  By the gradient's norm it is the cosine of the two.

The meta-parameters are those of the layer that weighs advantages, temperature and step
(`disco.anchored.PRIOR`), 100 numbers or fewer; for a rule without it, all.

Results are one JSON line for each rule and task, in `estimators.jsonl`; started again, the command
goes on where it was. Then it draws `estimators.svg`, and prints the table.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from absl import app, flags, logging
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree
from matplotlib.figure import Figure

import disco
import environments
from agents.rule_agent import make_agent
from disco.anchored import PRIOR
from disco_common import compilation, keys
from disco_common.keys import Purpose
from evaluation.studies import ablations
from launch.configs import varied
from launch.support import commands
from launch.support.discovery_config import DiscoveryRunConfig, make_rule
from meta.groups import AgentGroup, make_groups
from meta.meta_step import learn_and_validate, meta_gradient
from meta.population import init_member, meta_optimizer
from training.device_program import Lifetimes
from training.schedule import TrainingConfig

NUM_UPDATES = 400  # Of a lifetime.
BASE = varied.get_config()
LIFETIME = NUM_UPDATES * BASE.agent.steps_per_update  # In environment steps.
TASKS = (
    "varied/010_mdp_distracted_128",
    "varied/011_bandit_features",
    "varied/013_rooms_projected_128",
    "varied/015_cart_distracted_32",
    "varied/001_rooms_planes",
    "varied/000_grid_planes",
)
TRUNCATIONS = (1, 5, 20, 100)
_SEEDS = (1, 2), (3, 4)  # Of the derivatives; those along meta-gradients have seeds from 5.

_WORKDIR = flags.DEFINE_string("workdir", "runs/estimators", "Folder of the results.")
_RULES = flags.DEFINE_list(
    "rules", ["start", "three_families", "random"], "Of the zoo, start, random, or files."
)
_DIRECTIONS = flags.DEFINE_integer("directions", 48, "Random directions.", lower_bound=2)
_SIGMA = flags.DEFINE_float("sigma", 0.1, "Length of the steps along them, by coordinate.")


def rule_of(name: str) -> disco.DiscoveredRule:
    """Return a rule: `random` of the published form, `start` of `varied`, or one that is saved."""
    form = {"random": "published", "start": "progress"}.get(name)
    return make_rule(varied.get_config(form)) if form else ablations.load(name)


def config_of(num_updates: int) -> DiscoveryRunConfig:
    """Return the discovery's settings with K = `num_updates` and one lifetime."""
    return dataclasses.replace(
        BASE,
        estimator="meta_gradient",
        families=(),  # So that all tasks have equal agents.
        agent=dataclasses.replace(BASE.agent, lifetime=LIFETIME),
        meta=dataclasses.replace(BASE.meta, num_updates=num_updates),
        population=dataclasses.replace(
            BASE.population, size=1, lifetimes=(LIFETIME,), first_reset_after=0
        ),
    )


def measured_places(rule: disco.DiscoveredRule) -> Int[np.ndarray, "n"]:
    """Return the places, in the vector of all, of the meta-parameters that are measured."""
    layers = {PRIOR} if PRIOR in rule.parameters else {*rule.parameters}
    marks = {
        name: jax.tree.map(lambda x, is_one=name in layers: jnp.full(x.shape, is_one), layer)
        for name, layer in rule.parameters.items()
    }
    return np.flatnonzero(ravel_pytree(dataclasses.replace(rule, parameters=marks))[0])


def mean_meta_gradients(
    rule: disco.DiscoveredRule,
    task: environments.Environment,
    num_updates: int,
    seed: int,
) -> dict[str, Float[np.ndarray, "n"]]:
    """Return the mean of the meta-gradients of a lifetime, at the places that are measured.

    By name: with the meta-value function, and with 0 in its place.
    """
    (group,) = make_groups(config_of(num_updates), (task,), rule, 1)
    # Parameters of tasks are arguments, so that tasks of equal dynamics share a program.
    name = f"K = {num_updates}"
    number = NUM_UPDATES // num_updates
    found = {}
    for suffix, weight in (("", 1.0), (" without values", 0.0)):
        static, task_params = _Static(group), group.task_params
        total = _sum(num_updates, static, rule, task_params, jnp.int32(seed), weight)
        found[name + suffix] = np.asarray(total)[measured_places(rule)] / number
    return found


class _Static:
    """A group as a static argument: equal to those of the same dynamics and rule's form."""

    def __init__(self, group: AgentGroup):
        self.group = group
        self._key = (group.dynamics, repr(jax.tree.structure(group.agent.rule)))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: Any) -> bool:
        return self._key == other._key


@partial(compilation.jit_compiled_fast, static_argnums=(0, 1))
def _sum(
    num_updates: int,
    static: _Static,
    rule: disco.DiscoveredRule,
    task_params: PyTree[Array],
    seed: Int[Array, ""],
    weight: Float[Array, ""],
) -> Float[Array, "R"]:
    """Return the sum of an agent's meta-gradients.

    `weight` multiplies the values of the meta-value function.
    """
    config, group = config_of(num_updates), static.group
    apply = group.value_function.apply
    value_function = dataclasses.replace(
        group.value_function, apply=lambda params, x: weight * apply(params, x)
    )
    group = dataclasses.replace(group, task_params=task_params, value_function=value_function)
    parameters, zero = ravel_pytree(rule)[0], jnp.int32(0)

    def meta_step(carry, number):
        member, total = carry
        key = keys.key(config.seed, Purpose.TRAIN, number, seed)
        learned = learn_and_validate(config, group, rule, number, member, key)
        after, before = learned.member, member.agent.learner
        gradient, _, logits = meta_gradient(
            config, group, rule, after.value, before, learned.residuals, learned.trajectory
        )
        value = group.value_function.update(after.value, logits, learned.trajectory)
        member = dataclasses.replace(after, value=value)
        return (member, total + gradient), None

    start = meta_optimizer(config.meta).init(parameters)
    member = init_member(config, group, rule, zero, zero, seed, zero, start)
    carry = member, jnp.zeros_like(parameters)
    return jax.lax.scan(meta_step, carry, jnp.arange(NUM_UPDATES // num_updates))[0][1]


def scores(
    rule: disco.DiscoveredRule,
    vectors: Float[np.ndarray, "m R"],
    task: environments.Environment,
    seed: int,
) -> Float[np.ndarray, "m"]:
    """Return the score of a lifetime by each of several meta-parameters."""
    config = config_of(1).agent
    _, unravel = ravel_pytree(rule)
    agents = [make_agent(unravel(jnp.asarray(x, jnp.float32)), config, task) for x in vectors]
    settings = TrainingConfig(config.lifetime, runs_at_once=min(4, len(agents)))
    lifetimes = Lifetimes(agents, task, seed, settings)
    unrolls = settings.num_unrolls(lifetimes.steps_per_unroll)
    states, _ = lifetimes.advance(lifetimes.init(), 0, unrolls * 4 // 5)
    _, episodes = lifetimes.advance(states, unrolls * 4 // 5, unrolls)
    return np.asarray(episodes.return_sum) / np.maximum(np.asarray(episodes.count), 1)


def differences(
    rule: disco.DiscoveredRule,
    steps: Float[np.ndarray, "d n"],
    task: environments.Environment,
    seeds: Sequence[int],
) -> Float[np.ndarray, "d"]:
    """Return half the difference of the scores with each step forwards and backwards.

    Steps are of the places that are measured; scores are means over seeds.
    """
    parameters, places = np.asarray(ravel_pytree(rule)[0]), measured_places(rule)
    both = np.tile(parameters, (2 * len(steps), 1))
    both[::2, places] += steps
    both[1::2, places] -= steps
    found = np.mean([scores(rule, both, task, seed) for seed in seeds], axis=0)
    forwards, backwards = found.reshape(-1, 2).T
    return (forwards - backwards) / 2.0


def measure(rule: disco.DiscoveredRule, task: environments.Environment) -> dict[str, Any]:
    """Measure one rule on one task; see the module."""
    number, sigma = len(measured_places(rule)), _SIGMA.value
    directions = np.random.default_rng(0).normal(size=(_DIRECTIONS.value, number))
    by_seed = [differences(rule, sigma * directions, task, seeds) / sigma for seeds in _SEEDS]
    found: dict[str, Any] = {"derivatives": [x.tolist() for x in by_seed]}
    means, estimates = {}, {}
    for truncation in TRUNCATIONS:
        pair = [mean_meta_gradients(rule, task, truncation, seed) for seed in (1, 2)]
        for name in pair[0]:
            first, second = (one[name] for one in pair)
            means[name] = -(first + second) / 2.0  # Of the loss: scores rise against it.
            norms = np.linalg.norm(first) * np.linalg.norm(second)
            estimates[name] = {
                "norm": float(np.linalg.norm(means[name])),
                "between_seeds": float(first @ second / norms),
            }
            logging.info("%s, %s: %s", task.name, name, estimates[name]["between_seeds"])
    # As long as the random steps.
    steps = np.array([sigma * np.sqrt(number) * x / np.linalg.norm(x) for x in means.values()])
    for seeds in ((5, 6, 7), (8, 9, 10)):
        along = differences(rule, steps, task, seeds) / np.linalg.norm(steps[0])
        for name, x in zip(means, along.tolist(), strict=True):
            estimates[name].setdefault("along", []).append(x)
    return found | {"estimates": estimates, "parameters": number}


class Quality(NamedTuple):
    """What is known of an estimator, for a rule and a task.

    Attributes:
      rule, estimator, task: their names; `evolution` is of antithetic pairs of lifetimes.
      steps: the environment steps of estimates, until the variance of their mean is the square of
        its norm. Infinite if two seeds do not agree.
      cosine: the derivative along the meta-gradient by the norm of the score's gradient; None of
        evolution, which is unbiased.
      seeds: the cosine of the meta-gradients of two seeds, each the mean over a lifetime.
    """

    rule: str
    estimator: str
    task: str
    steps: float
    cosine: float | None = None
    seeds: float | None = None


def qualities(lines: Sequence[Mapping[str, Any]]) -> list[Quality]:
    """Return what is known of each estimator.

    Of tasks whose gradient is known from noise: where the derivatives of the two sets of seeds
    correlate.
    """
    found = []
    for line in lines:
        rule, task = line["rule"], line["task"]
        first, second = map(np.array, line["derivatives"])
        square = float(np.mean(first * second))
        if square <= 0.0:
            continue
        # Of one derivative: variance over lifetimes of a pair by variance over directions.
        total = float(np.mean(first**2 + second**2)) / 2.0
        noise = len(_SEEDS[0]) * max(0.0, total / square - 1.0)
        steps = line["parameters"] * (1.0 + noise) * 2 * LIFETIME
        found.append(Quality(rule, "evolution", task, steps))
        for name, estimate in line["estimates"].items():
            seeds = estimate["between_seeds"]
            steps = (1.0 / seeds - 1.0) * _steps(name) if seeds > 0.0 else np.inf
            cosine = float(np.mean(estimate["along"])) / np.sqrt(square)
            found.append(Quality(rule, name, task, steps, cosine, seeds))
    return found


def _steps(name: str) -> int:
    """Return the environment steps of the meta-gradients of a lifetime, with validation."""
    number = NUM_UPDATES // int(name.split()[2])
    return LIFETIME + number * BASE.meta.validation_trajectories * BASE.meta.validation_length


def table(found: Sequence[Quality]) -> str:
    """Return the results in Markdown: means over tasks, and the median of `steps`."""
    rows = [["rule", "estimator", "cosine", "cosine of two seeds", "steps until noise = signal"]]
    rows.append(["---"] * len(rows[0]))
    for rule, name in dict.fromkeys((one.rule, one.estimator) for one in found):
        own = [one for one in found if (one.rule, one.estimator) == (rule, name)]
        numbers = [one.cosine for one in own], [one.seeds for one in own]
        known = [[x for x in column if x is not None] for column in numbers]
        cells = [_interval(x) if x else "" for x in known]
        rows.append([rule, name, *cells, f"{np.median([one.steps for one in own]):,.0f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(found: Sequence[Quality], path: pathlib.Path) -> None:
    """Draw the cosines against K, a point for each task, and their means; a panel for each rule."""
    rules = list(dict.fromkeys(one.rule for one in found))
    figure = Figure(figsize=(3.2 * len(rules) + 1.0, 3.2), layout="constrained")
    panels = np.ravel(figure.subplots(1, len(rules), sharey=True))
    for panel, rule in zip(panels, rules, strict=True):
        for suffix, colour, shift in (("", "#0072B2", 0.94), (" without values", "#D55E00", 1.06)):
            means = []
            for number in TRUNCATIONS:
                key = rule, f"K = {number}{suffix}"
                own = [x.cosine for x in found if (x.rule, x.estimator) == key]
                panel.plot([shift * number] * len(own), own, "o", color=colour, alpha=0.4, ms=4)
                means.append(np.mean([x for x in own if x is not None]) if own else np.nan)
            panel.plot(TRUNCATIONS, means, color=colour, label=f"meta-gradient{suffix}")
        panel.axhline(0.0, color="#767676", linewidth=0.8)
        panel.set(title=rule, xscale="log", xlabel="K, updates differentiated")
        panel.set_xticks(TRUNCATIONS, [str(number) for number in TRUNCATIONS])
    figure.axes[0].set_ylabel("cosine with the gradient\nof a lifetime's score")
    figure.axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(path)


def _interval(values: Sequence[float]) -> str:
    """Return a mean, and the interval of its 95% t-distribution over tasks."""
    mean, number = float(np.mean(values)), len(values)
    half = scipy.stats.t.ppf(0.975, max(1, number - 1)) * np.std(values, ddof=1) / np.sqrt(number)
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def main(_: Any) -> None:
    """Measure what is missing, draw the figure, and print the table."""
    commands.use_all_cores()
    path = pathlib.Path(_WORKDIR.value) / "estimators.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {(one["rule"], one["task"]) for one in map(json.loads, lines)}
    for name in _RULES.value:
        for task in TASKS:
            if (name, task) in done:
                continue
            measured = measure(rule_of(name), environments.make(task))
            with path.open("a") as file:
                file.write(json.dumps({"rule": name, "task": task} | measured) + "\n")
    found = qualities([json.loads(line) for line in path.read_text().splitlines()])
    draw(found, path.with_suffix(".svg"))
    print(table(found))


if __name__ == "__main__":
    app.run(main)
