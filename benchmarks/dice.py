"""DiCE beside what its paper compares it with, on tasks with a deceptive optimum.

    python -m benchmarks.dice --workdir=runs/dice

- `bandit`: DiCE;
- `fixed`: τ = 1, the paper's baseline;
- `random`: temperatures that bandits choose who never learn;
- `entropy`: DiCE with an entropy bonus, a tenth of the policy's loss as there.

Each seed of each variant trains for the budget. Then its agent plays new episodes in
`Mode.EVALUATION`, in which the bandits' agents have the temperature that they value most (section
4.1), and the others the one of training. Two numbers for each variant: the mean return of these
episodes, and that of the training episodes in the last fifth of the budget, whose temperatures were
drawn. Intervals are Student's over seeds, those of differences from `bandit` Welch's.

What is done is kept in the workdir; the command continues what was interrupted.
"""

import pathlib

import jax
import numpy as np
from absl import flags
from jaxtyping import Float

import environments
from agents import registry
from agents.dice.agent import DiceAgent
from agents.protocol import Batch
from benchmarks import intervals
from evaluation import playing
from launch.support import commands
from training import device
from training.runs import Run, TrainedRun
from training.settings import TrainingSettings

_WORKDIR = flags.DEFINE_string("workdir", "runs/dice", "Folder for all runs.")
_SUITE = flags.DEFINE_list("suite", ["grid_heldout/near_or_far", "deep_sea/10"], "Environments.")
_SEEDS = flags.DEFINE_integer("seeds", 10, "Seeds of each variant.", lower_bound=2)
_STEPS = flags.DEFINE_integer("budget", 99_968, "Environment steps of a run.", lower_bound=1024)
_VARIANTS = {
    "bandit": "",
    "fixed": "exploration=fixed",
    "random": "exploration=random",
    "entropy": "entropy_cost=0.1",
}
_PLAYED = 64, 1_000  # Environments, and steps in each.


def main() -> None:
    """Train, play and print."""
    for name in _SUITE.value:
        task = environments.make(name)
        found = {variant: _scores(task, variant) for variant in _VARIANTS}
        print(f"{name}, {_STEPS.value:,} environment steps, {_SEEDS.value} seeds")
        for kind in ("training", "evaluation"):
            for variant, scores in found.items():
                line = f"  {kind}, {variant}: {intervals.of_mean(scores[kind]).text(3)}"
                if variant != "bandit":
                    less = intervals.of_difference(found["bandit"][kind], scores[kind])
                    line += f", bandit's less this {less.text(2)}"
                print(f"{line}; seeds {np.sort(scores[kind]).round(2).tolist()}", flush=True)


def _scores(task: environments.Environment, variant: str) -> dict[str, Float[np.ndarray, "seeds"]]:
    """Return the mean returns of each seed, in training and of the final agent."""
    agent = registry.find("dice").configured(_VARIANTS[variant]).make(task)
    folder = pathlib.Path(_WORKDIR.value) / task.name.replace("/", "_") / variant
    runs = [Run(task, seed, folder / f"seed_{seed}") for seed in range(_SEEDS.value)]
    settings = TrainingSettings(num_steps=_STEPS.value, interval=_STEPS.value // 20)
    trained = device.train(agent, runs, settings, folder / "together")
    assert isinstance(agent, DiceAgent)
    return {
        "training": np.array([_last_fifth(run) for run in trained]),
        "evaluation": np.array([_played(agent, run, task, i) for i, run in enumerate(trained)]),
    }


def _last_fifth(run: TrainedRun) -> float:
    """Return the mean return of the episodes that ended in the last fifth of the budget."""
    last = [x for x in run.episodes if x.environment_steps > 0.8 * _STEPS.value]
    return sum(x.return_sum for x in last) / sum(x.episodes for x in last)


def _played(agent: DiceAgent, run: TrainedRun, task: environments.Environment, seed: int) -> float:
    """Return the mean return of the final agent's first episodes, one in each environment."""
    number, steps = _PLAYED
    learner = jax.tree.map(jax.numpy.asarray, run.learner)
    batch: Batch = playing.play(agent, learner, task, steps, number, 1_000 + seed)
    ended = np.cumsum(batch.last, axis=0) - batch.last
    if not np.all(np.any(batch.last, axis=0)):
        raise ValueError(f"Not each episode of {task.name} ends within {steps} steps.")
    return float(np.sum(np.where(ended == 0, batch.reward, 0.0)) / number)


if __name__ == "__main__":
    commands.run(main)
