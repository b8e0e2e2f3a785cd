"""Play a thousand steps in each environment of a suite, as a test of its installation.

    python -m launch.smoke --suite=nethack
    python -m launch.smoke --suite=atari57 --agent=random

Each environment is played with random actions and by an untrained agent. The command prints the sum
of all rewards, the number of episodes that ended, their mean return, length and suite's results,
and the steps per second. Environments with continuous actions are played with random actions only:
a rule's agents need discrete actions.
"""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import flags
from dm_env import specs
from rich.table import Table

import disco
import environments
from agents.networks import NetworkConfig
from agents.protocol import Agent
from agents.random_agent import RandomAgent
from agents.rule_agent import AgentConfig, RuleAgent
from disco_common.terminal import console, printable
from environments.episodes import Episode
from evaluation.evaluate import resolve
from launch.support import commands
from training import collection
from training.host_collection import HostActor

_AGENTS = ("random", "untrained")
_SMALL = NetworkConfig(torso=(32,), channels=(8,), blocks=0, patch=4, model=8, head=(8,))


def play(
    task: environments.Environment, agent: str, num_steps: int, num_environments: int
) -> dict[str, Any]:
    """Play in an environment; return statistics of the episodes, and the duration.

    Args:
      task: to play.
      agent: `"random"` or `"untrained"`.
      num_steps: in all environments together.
      num_environments: number of parallel environments.

    Returns:
      `reward` (of all steps), `episodes`, `return` and `length` (means, or None if no episode
      ended), `results`, `seconds`.
    """
    environments.require_declared_outputs(task)
    per_environment = -(-num_steps // num_environments)
    dynamics = task.dynamics
    acting: Agent = RandomAgent(dynamics, num_environments)
    acting_state: Any = ()
    if agent != "random":
        config = AgentConfig(network=_SMALL, batch_size=1, num_environments=1, replay_ratio=0.0)
        acting = RuleAgent.create(config, dynamics, disco.ActorCritic())
        acting_state = acting.acting_state(jax.jit(acting.init)(jax.random.key(0)))
    key = jax.random.key(1 + _AGENTS.index(agent))
    if isinstance(dynamics, environments.HostEnvironment):
        actor = HostActor(acting, dynamics, task.params, num_environments, seed=0)
        try:
            began = time.perf_counter()
            collected = actor.collect(acting_state, key, per_environment)
            seconds = time.perf_counter() - began
        finally:
            actor.close()
        return _outcome(float(collected.batch.reward.sum()), collected.episodes, seconds)

    @jax.jit
    def rollout(key):
        state = collection.start(acting, dynamics, task.params, key, num_environments)
        return collection.unroll(
            acting, dynamics, task.params, acting_state, state, key, per_environment
        )[2]

    compiled = rollout.lower(key).compile()
    began = time.perf_counter()
    statistics = jax.device_get(compiled(key))
    count = float(statistics.count)
    return {
        "reward": float(statistics.reward_sum),
        "episodes": int(count),
        "return": float(statistics.return_sum) / count if count else None,
        "length": float(statistics.length_sum) / count if count else None,
        "results": {k: float(x) / count for k, x in statistics.result_sums.items() if count},
        "seconds": time.perf_counter() - began,
    }


def _outcome(reward: float, episodes: list[Episode], seconds: float) -> dict[str, Any]:
    return {
        "reward": reward,
        "episodes": len(episodes),
        "return": _mean([episode.episode_return for episode in episodes]),
        "length": _mean([episode.length for episode in episodes]),
        "results": _means([episode.results for episode in episodes]),
        "seconds": seconds,
    }


def main() -> None:
    """Run the command."""
    values = flags.FLAGS
    table = Table(title=f"{values.steps} steps in each environment")
    headings = "environment agent reward episodes return length steps/s results".split()
    for heading in headings:
        table.add_column(heading, no_wrap=heading == "environment")
    agents = [name.strip() for name in values.agent.split(",")]
    if unknown := set(agents) - set(_AGENTS):
        raise ValueError(f"--agent has {sorted(unknown)}; expected some of {list(_AGENTS)}.")
    for task in resolve([name.strip() for name in values.suite.split(",")]):
        is_discrete = isinstance(task.dynamics.action_spec(), specs.DiscreteArray)
        for agent in agents if is_discrete else ["random"]:
            outcome = play(task, agent, values.steps, values.num_environments)
            results = ", ".join(f"{k} {x:.3g}" for k, x in outcome["results"].items() if x)
            name = printable(task.name)
            table.add_row(
                name,
                agent,
                _shown(outcome["reward"]),
                str(outcome["episodes"]),
                _shown(outcome["return"]),
                _shown(outcome["length"]),
                f"{values.steps / outcome['seconds']:.0f}",
                results,
            )
            print(
                f"{name}, {agent}: reward {_shown(outcome['reward'])},"
                f" {outcome['episodes']} episodes, mean return {_shown(outcome['return'])}",
                flush=True,
            )
    console(log_width=150).print(table)


def _mean(values: list) -> float | None:
    return float(np.mean(values)) if values else None


def _means(rows: list[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in (rows or [{}])[0]}


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    flags.DEFINE_string("suite", None, "Suites or environments, by commas.", required=True)
    flags.DEFINE_string("agent", ",".join(_AGENTS), "Agents: random, untrained, or both.")
    flags.DEFINE_integer("steps", 1000, "Steps in each environment.", lower_bound=1)
    flags.DEFINE_integer(
        "num_environments", 4, "Parallel instances that share the steps.", lower_bound=1
    )
    commands.run(main)
