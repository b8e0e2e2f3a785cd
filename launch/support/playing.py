"""Play in an environment, as a test of its installation (`launch.smoke`)."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import disco
import environments
from agents.networks import NetworkConfig
from agents.protocol import Agent
from agents.random_agent import RandomAgent
from agents.rule_agent import AgentConfig, RuleAgent
from environments.simulators import Episode
from training import collection
from training.host_collection import HostActor

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
    key = jax.random.key(1 + (agent == "untrained"))
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


def _mean(values: list) -> float | None:
    return float(np.mean(values)) if values else None


def _means(rows: list[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in (rows or [{}])[0]}
