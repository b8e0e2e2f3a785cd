"""What evolution strategies share: layers to perturb, agents by candidates, ranks, and checks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.stats
from jaxtyping import Float, Int

import disco
import environments
from agents.rule_agent import RuleAgentConfig, make_agent
from disco_common import compilation
from meta.config import DiscoveryConfig
from meta.estimators.protocol import Metrics, finite_mean, require_layers
from training.collection import EpisodeStatistics
from training.device_program import mesh
from training.memory_budget import require_memory_for_runs
from training.passes import unstack


class Generation(NamedTuple):
    """What was tried in a meta-step, by M tasks and P candidates.

    Attributes:
      tasks: their names, M.
      ages: environment steps of each task's agents since their start, M.
      returns: mean returns; NaN where no scored episode ended.
      norm: of the change of the rule's parameters.
    """

    tasks: Sequence[str]
    ages: Sequence[int]
    returns: Float[np.ndarray, "M P"]
    norm: float


def summarize(window: Sequence[Generation]) -> Metrics:
    """Return the means over generations; `agents` has the returns of the last one."""
    last = window[-1]
    number = last.returns.shape[1]
    return {
        "mean_return": finite_mean(np.concatenate([x.returns.ravel() for x in window])),
        "update_norm": float(np.mean([x.norm for x in window])),
        "agents": {
            "task": [name for name in last.tasks for _ in range(number)],
            "validation_reward": [
                float(x) if np.isfinite(x) else None for x in last.returns.ravel()
            ],
            "steps_since_reset": [age for age in last.ages for _ in range(number)],
        },
    }


def num_candidates(config: DiscoveryConfig) -> int:
    """Return P, those of a task; ValueError if the population is not one of pairs for each."""
    size, num_tasks = config.population.size, config.evolution.num_tasks
    number, rest = divmod(size, num_tasks)
    if rest or number % 2 or number < 4:
        raise ValueError(
            f"population.size is {size}; expected a multiple of 2 evolution.num_tasks"
            f" ({2 * num_tasks}), and at least {4 * num_tasks}: pairs of candidates for each task"
            " of a generation."
        )
    return number


def by_task(config: DiscoveryConfig) -> Int[np.ndarray, "M P"]:
    """Return the indices of each task's candidates among those that OpenES proposes.

    Pairs stay together: OpenES proposes the first ones of all pairs, then the second ones.
    """
    half = config.population.size // 2
    first = np.arange(half).reshape(config.evolution.num_tasks, -1)
    return np.concatenate([first, half + first], axis=1)


def layer_names(config: DiscoveryConfig, rule: disco.DiscoveredRule) -> tuple[str, ...]:
    """Return the layers that are perturbed, or raise ValueError if a rule has no such layers."""
    names = config.evolution.layers or tuple(rule.parameters)
    require_layers("evolution.layers", names, rule)
    return names


def with_layers(rule: disco.DiscoveredRule, layers: Mapping[str, Any]) -> disco.DiscoveredRule:
    """Return a rule with other parameters in some layers."""
    return dataclasses.replace(rule, parameters={**rule.parameters, **layers})


def rules_of(
    rule: disco.DiscoveredRule, candidates: Mapping[str, Any]
) -> list[disco.DiscoveredRule]:
    """Return the rule by each of P candidates, parameters of some layers with a leading axis."""
    return [with_layers(rule, one) for one in _unstack(candidates)]


_unstack = compilation.jit_compiled_fast(unstack)


def follow(
    average: disco.DiscoveredRule, rule: disco.DiscoveredRule, before: int, longest: float
) -> disco.DiscoveredRule:
    """Return the moving average of the rules after one more, with some `before`.

    It is their mean until the weight of the old average would exceed `longest`.
    """
    decay = min(longest, before / (before + 1.0))
    return jax.tree.map(lambda a, x: decay * a + (1.0 - decay) * x, average, rule)


def agent_config(
    config: DiscoveryConfig, task: environments.Environment, budget: int
) -> RuleAgentConfig:
    """Return the settings of agents that learn a task for so many environment steps."""
    return dataclasses.replace(config.agent_of(task.name), lifetime=budget)


def lifetimes_at(
    config: DiscoveryConfig, generation: int
) -> tuple[Int[np.ndarray, "_n"], Float[np.ndarray, "_n"]]:
    """Return the budgets that are drawn in a generation, ascending, and their probabilities.

    These are inversely proportional to the budget, as in `meta.population`.
    """
    lifetimes = np.sort(config.population.lifetimes)
    if interval := config.evolution.generations_per_lifetime:
        lifetimes = lifetimes[: 1 + generation // interval]
    weights = 1.0 / lifetimes
    return lifetimes, weights / weights.sum()


def ranks(returns: Float[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    """Return the ranks of returns, from -1/2 to 1/2; NaN is the lowest, equal ones share theirs."""
    known = np.where(np.isnan(returns), -np.inf, returns)
    return (scipy.stats.rankdata(known) - 1.0) / (len(known) - 1.0) - 0.5


def mean_returns(episodes: EpisodeStatistics) -> Float[np.ndarray, "P"]:
    """Return the mean return of each agent's episodes that ended; NaN where there are none."""
    with np.errstate(invalid="ignore"):
        return np.asarray(episodes.return_sum / episodes.count)


def replicated() -> jax.sharding.NamedSharding:
    """Return the sharding of arrays that every device holds."""
    return jax.sharding.NamedSharding(mesh(), jax.sharding.PartitionSpec())


def check(
    config: DiscoveryConfig,
    tasks: Sequence[environments.Environment],
    rule: disco.DiscoveredRule,
    num_agents: int,
) -> None:
    """Check that tasks are in JAX, agents fit in memory, and what environments return.

    `num_agents` live at the same time.

    Raises:
      OutputError: if an environment returns something else than it declares.
      ValueError: if a task is simulated on the host, there are fewer tasks than a generation has
        or several processes, or the agents do not fit in memory.
    """
    if on_host := [task.name for task in tasks if task.is_host]:
        raise ValueError(
            f"{on_host!r:.300} are simulated on the host; expected JAX environments with"
            f" estimator {config.estimator!r}."
        )
    if len(tasks) < config.evolution.num_tasks:
        raise ValueError(
            f"evolution.num_tasks is {config.evolution.num_tasks}; expected at most"
            f" {len(tasks)}, the tasks of the suite."
        )
    if jax.process_count() > 1:
        raise ValueError(
            f"estimator is {config.estimator!r} in {jax.process_count()} processes; expected"
            " one process, with all devices of a machine."
        )
    for task in tasks:
        environments.require_declared_outputs(task)
    longest = max(config.population.lifetimes)
    for group in environments.group_by_dynamics(tasks):
        task = next(task for task in tasks if task.name == group.names[0])
        require_memory_for_runs(
            f"{num_agents} agents",
            make_agent(rule, agent_config(config, task, longest), task),
            task.dynamics,
            num_agents,
            longest,
            config.meta.agents_at_once,
        )
