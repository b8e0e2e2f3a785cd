"""Scores of a random policy, compared with the published ones.

    python -m benchmarks.random_scores
    python -m benchmarks.random_scores --suite=atari/Pong,crafter/reward --episodes=20

Plays complete episodes with uniformly random actions. All instances contribute the same number of
episodes, their first ones, so that there is no bias towards short episodes. Prints their mean
return, its standard error, and the published score (`evaluation/published`), with the distance in
standard errors.
"""

import math

import jax
import numpy as np
from absl import app, flags

import environments
from agents.random_agent import RandomAgent
from evaluation.published import published_scores
from training.host_collection import HostActor

_SUITE = flags.DEFINE_string(
    "suite",
    "atari/Pong,atari/Breakout,atari/Freeway,atari/Boxing,atari/Bowling,atari/Enduro,"
    "atari/Tutankham,atari/FishingDerby,procgen/leaper,procgen/maze,procgen/heist,"
    "procgen/plunder,crafter/reward",
    "Environments, by commas.",
)
_EPISODES = flags.DEFINE_integer("episodes", 40, "Episodes in each environment.", lower_bound=2)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of all randomness.")


def random_returns(
    task: environments.Environment, num_episodes: int, seed: int, num_environments: int = 8
) -> np.ndarray:
    """Return the returns of at least `num_episodes` complete episodes of random actions.

    Each instance plays the same number of episodes.
    """
    assert isinstance(task.dynamics, environments.HostEnvironment)
    wanted = -(-num_episodes // num_environments)
    agent = RandomAgent(task.dynamics, num_environments)
    actor = HostActor(agent, task.dynamics, task.params, num_environments, seed)
    returns: list[list[float]] = [[] for _ in range(num_environments)]
    totals = np.zeros(num_environments)
    unroll = 0
    while min(map(len, returns)) < wanted:
        key = jax.random.fold_in(jax.random.key(seed), unroll)
        batch = actor.collect((), key, 200).batch
        for reward, last in zip(batch.reward, batch.last, strict=True):
            totals += reward
            for i in np.flatnonzero(last):
                returns[i].append(totals[i])
                totals[i] = 0.0
        unroll += 1
    actor.close()
    return np.array([x[:wanted] for x in returns]).ravel()


def main(argv: list[str]) -> None:
    """Print a line per environment."""
    del argv
    for name in _SUITE.value.split(","):
        task = environments.make(name.strip())
        # From the first paper that reports one.
        score = next(x.score for x in published_scores(task.name) if x.agent == "Random")
        returns = random_returns(task, _EPISODES.value, _SEED.value)
        mean, error = np.mean(returns), np.std(returns, ddof=1) / math.sqrt(len(returns))
        # Published scores are rounded, to units in Atari's case.
        distance = max(0.0, abs(mean - score) - 0.5 * (score == round(score)))
        errors = distance / error if error else 0.0 if not distance else math.inf
        print(
            f"{task.name}: {mean:.2f} ± {error:.2f} over {len(returns)} episodes; published"
            f" {score:g}; {errors:.1f} standard errors apart",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
