"""Our PPO beside rejax's: final returns, curves and speed, with the same hyper-parameters.

    python -m venv /tmp/rejax && /tmp/rejax/bin/python -m pip install rejax==0.1.3 gymnax==0.0.9
    python -m benchmarks.ppo --rejax=/tmp/rejax/bin/python --output=runs/ppo

rejax (https://github.com/keraJLi/rejax) needs an environment of its own: it does not work with
gymnax 1.0. First ours trains all seeds of a task, then rejax, on this machine, each twice: in one
vectorised program, and one run after the other. The lesser time counts. Returns are of the policy
that samples its actions: ours of the training episodes that ended in an interval, rejax's of 128
episodes at the interval's end. The final return of a run is the mean over the last fifth of the
intervals, and its 95% interval is Student's over seeds; that of the difference is Welch's.

Gradients are not clipped, since rejax clips entries and ours clips the norm. Known differences:
ours takes a step between two episodes, and truncates where rejax terminates at the step limit; our
heads start with small weights.

Writes `ppo.json` and `ppo.png`.
"""

import json
import math
import pathlib
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from absl import app, flags
from jaxtyping import Float

import environments
from agents.networks import NetworkConfig
from agents.ppo.algorithm import PPO
from agents.ppo.config import PPOConfig
from agents.registry import Configured
from benchmarks import intervals
from disco_common.atomic import write_atomically
from evaluation.scoring import statistics
from launch.support.score_tables import print_rows
from training import device
from training.runs import Run
from training.settings import TrainingSettings

_REJAX = flags.DEFINE_string("rejax", None, "Python of an environment with rejax.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Folder for the results.", required=True)
_TASKS = flags.DEFINE_list(
    "tasks", ["CartPole-v1", "Acrobot-v1", "Breakout-MinAtar", "Asterix-MinAtar"], "gymnax' names."
)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Runs of each task.", lower_bound=2)
_STEPS = flags.DEFINE_integer("steps", 0, "Environment steps of a run; by default the task's.")
_POINTS = 25  # Intervals of a curve.

_CONTROL = {
    "num_envs": 5,
    "num_steps": 100,
    "num_epochs": 5,
    "num_minibatches": 5,
    "learning_rate": 7.5e-4,
}
_MINATAR = {
    "num_envs": 64,
    "num_steps": 32,
    "num_epochs": 4,
    "num_minibatches": 8,
    "learning_rate": 1e-3,
}
# In rejax's names; its defaults where nothing stands.
_COMMON = {
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
}


def settings_of(task: str) -> tuple[dict[str, Any], int]:
    """Return the hyper-parameters of a task, in rejax's names, and its environment steps."""
    own, steps = (_MINATAR, 1_000_000) if task.endswith("MinAtar") else (_CONTROL, 500_000)
    return {**_COMMON, **own}, steps


def ppo_config(settings: Mapping[str, Any]) -> PPOConfig:
    """Return our settings for rejax's."""
    return PPOConfig(
        network=NetworkConfig(torso=(64, 64), activation="silu"),
        separate_value_network=True,
        learning_rate=settings["learning_rate"],
        num_environments=settings["num_envs"],
        unroll_length=settings["num_steps"],
        num_epochs=settings["num_epochs"],
        num_minibatches=settings["num_minibatches"],
        discount=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        clip=settings["clip_eps"],
        value_clip=settings["clip_eps"],
        value_cost=settings["vf_coef"],
        entropy_cost=settings["ent_coef"],
        max_gradient_norm=0.0,
        adam_epsilon=1e-8,
    )


def train_ours(
    name: str, config: PPOConfig, steps: int, interval: int, seeds: int, folder: pathlib.Path
) -> dict[str, Any]:
    """Return what `benchmarks/rejax_ppo.py` returns."""
    return min(
        (
            _train_ours(name, config, steps, interval, seeds, folder, runs_at_once)
            for runs_at_once in (seeds, 1)
        ),
        key=lambda result: result["seconds"],
    )


def _train_ours(
    name: str,
    config: PPOConfig,
    steps: int,
    interval: int,
    seeds: int,
    folder: pathlib.Path,
    runs_at_once: int,
) -> dict[str, Any]:
    folder = folder / f"{runs_at_once}_at_once"
    task = environments.make(f"gymnax/{name}")
    runs = [Run(task, seed, folder / f"seed_{seed}") for seed in range(seeds)]
    boundaries = tuple(range(interval, steps + 1, interval))
    settings = TrainingSettings(
        num_steps=steps, boundaries=boundaries, interval=interval, runs_at_once=runs_at_once
    )
    results = device.train(Configured(PPO, config).make(task), runs, settings, folder / "together")
    returns = []
    for result in results:
        assert result.is_finite
        episodes = [x for x in result.episodes if x.environment_steps <= boundaries[-1]]
        rows = np.zeros((2, len(boundaries)))
        for x in episodes:
            at = np.searchsorted(boundaries, x.environment_steps)
            rows[:, at] += x.return_sum, x.episodes
        returns.append((rows[0] / np.where(rows[1] > 0, rows[1], np.nan)).tolist())
    return {
        "steps": list(boundaries),
        "returns": returns,
        "seconds": sum(result.train_seconds for result in results),
    }


def train_rejax(
    python: str, name: str, settings: Mapping[str, Any], steps: int, interval: int, seeds: int
) -> dict[str, Any]:
    """Return the curves and the time of rejax's PPO.

    Raises:
      RuntimeError: if it fails, with what it printed.
    """
    request = {
        "environment": name,
        "settings": settings,
        "steps": steps,
        "interval": interval,
        "seeds": seeds,
    }
    command = [python, str(pathlib.Path(__file__).parent / "rejax_ppo.py")]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed on {name}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def final_returns(returns: Float[np.ndarray, "seeds points"]) -> statistics.Estimate:
    """Return the mean over seeds of the last fifth of the curves, with its 95% interval."""
    return intervals.of_mean(_of_runs(returns))


def difference(
    first: Float[np.ndarray, "seeds points"], second: Float[np.ndarray, "seeds points"]
) -> statistics.Estimate:
    """Return the first final return minus the second, with Welch's 95% interval."""
    return intervals.of_difference(_of_runs(first), _of_runs(second))


def _of_runs(returns: Float[np.ndarray, "seeds points"]) -> Float[np.ndarray, "seeds"]:
    return statistics.mean(returns[:, -(_POINTS // 5) :])


def draw(path: pathlib.Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the mean over seeds and its standard error, a panel for each task."""
    columns = min(2, len(found))
    rows = math.ceil(len(found) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for panel, (name, both) in zip(axes.flat, found.items(), strict=False):
        for whose, result in both.items():
            returns = np.array(result["returns"], float)
            mean, error = statistics.mean(returns.T), statistics.standard_error(returns.T)
            (line,) = panel.plot(result["steps"], mean, label=whose)
            panel.fill_between(
                result["steps"], mean - error, mean + error, color=line.get_color(), alpha=0.2
            )
        panel.set(title=name, xlabel="environment steps", ylabel="return")
    axes[0, 0].legend()
    for unused in list(axes.flat)[len(found) :]:
        unused.set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(_) -> None:
    """Run the benchmark."""
    output = pathlib.Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    found, rows = {}, []
    for name in _TASKS.value:
        settings, steps = settings_of(name)
        per_update = settings["num_envs"] * settings["num_steps"]
        interval = max(1, (_STEPS.value or steps) // (_POINTS * per_update)) * per_update
        steps = interval * _POINTS
        folder = output / f"{name} {time.time():.0f}"
        ours = train_ours(name, ppo_config(settings), steps, interval, _SEEDS.value, folder)
        theirs = train_rejax(_REJAX.value, name, settings, steps, interval, _SEEDS.value)
        found[name] = {"ours": ours, "rejax": theirs}
        returns = {x: np.array(found[name][x]["returns"]) for x in found[name]}
        final = {x: final_returns(returns[x]) for x in returns}
        speed = {x: steps * _SEEDS.value / found[name][x]["seconds"] for x in found[name]}
        is_within = all(
            final[x].low <= final[y].value <= final[x].high
            for x, y in (("ours", "rejax"), ("rejax", "ours"))
        )
        rows.append(
            {
                "task": name,
                "environment steps": f"{steps:,}",
                "ours": final["ours"].text(1),
                "rejax": final["rejax"].text(1),
                "within each other's interval": "yes" if is_within else "no",
                "ours - rejax": difference(*returns.values()).text(1),
                "steps/s, ours": f"{speed['ours']:,.0f}",
                "rejax's": f"{speed['rejax']:,.0f}",
                "ratio": f"{speed['ours'] / speed['rejax']:.2f}",
            }
        )
        write_atomically(output / "ppo.json", json.dumps({"rows": rows, "curves": found}, indent=1))
        draw(output / "ppo.png", found)
    print_rows(f"PPO, {_SEEDS.value} seeds", rows)


if __name__ == "__main__":
    app.run(main)
