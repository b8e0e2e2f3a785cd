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

Writes `ppo.json`, and the curves' means and standard errors as `ppo.png` and `ppo.svg`.
"""

import dataclasses
import inspect
import json
import pathlib
import subprocess
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags
from jaxtyping import Float
from scipy import stats

import environments
from agents.networks import NetworkConfig
from agents.ppo.algorithm import PPO
from agents.ppo.config import PPOConfig
from agents.registry import ConfiguredAlgorithm
from disco_common.files import write_atomically
from evaluation.report.drawing import Curve, draw_line_panels
from evaluation.scoring import statistics
from launch.support.display import print_rows
from training import device
from training.records import Run
from training.schedule import TrainingConfig

_REJAX = flags.DEFINE_string("rejax", None, "Python of an environment with rejax.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Folder for the results.", required=True)
_TASKS = flags.DEFINE_list(
    "tasks", ["CartPole-v1", "Acrobot-v1", "Breakout-MinAtar", "Asterix-MinAtar"], "gymnax' names."
)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Runs of each task.", lower_bound=2)
_STEPS = flags.DEFINE_integer("steps", 0, "Environment steps of a run; by default the task's.")
_POINTS = 25  # Intervals of a curve.

# Of both; the rest of rejax's settings are its defaults.
_CONTROL = PPOConfig(
    network=NetworkConfig(torso=(64, 64), activation="silu"),
    separate_value_network=True,
    learning_rate=7.5e-4,
    num_environments=5,
    unroll_length=100,
    num_epochs=5,
    num_minibatches=5,
    discount=0.99,
    gae_lambda=0.95,
    clip=0.2,
    value_clip=0.2,
    value_cost=0.5,
    entropy_cost=0.01,
    max_gradient_norm=0.0,
    adam_epsilon=1e-8,
)
_MINATAR = {
    "num_environments": 64,
    "unroll_length": 32,
    "num_epochs": 4,
    "num_minibatches": 8,
    "learning_rate": 1e-3,
}
_REJAXS_NAMES = {
    "num_environments": "num_envs",
    "unroll_length": "num_steps",
    "num_epochs": "num_epochs",
    "num_minibatches": "num_minibatches",
    "learning_rate": "learning_rate",
    "discount": "gamma",
    "gae_lambda": "gae_lambda",
    "clip": "clip_eps",
    "value_cost": "vf_coef",
    "entropy_cost": "ent_coef",
}


class _Trained(NamedTuple):
    """The mean returns of each seed and interval, and the seconds of training."""

    returns: Float[np.ndarray, "seeds points"]
    seconds: float

    @property
    def final(self) -> Float[np.ndarray, "seeds"]:
        """The mean over the last fifth of each curve."""
        return statistics.mean(self.returns[:, -(_POINTS // 5) :])


def _train_ours(
    name: str, config: PPOConfig, interval: int, folder: pathlib.Path, runs_at_once: int
) -> _Trained:
    folder = folder / f"{name} {time.time():.0f}" / f"{runs_at_once}_at_once"
    task, steps = environments.make(f"gymnax/{name}"), interval * _POINTS
    runs = [Run(task, seed, folder / f"seed_{seed}") for seed in range(_SEEDS.value)]
    boundaries = tuple(range(interval, steps + 1, interval))
    settings = TrainingConfig(
        num_steps=steps, boundaries=boundaries, interval=interval, runs_at_once=runs_at_once
    )
    results = device.train(
        ConfiguredAlgorithm(PPO, config).make(task), runs, settings, folder / "together"
    )
    sums = np.zeros((2, _SEEDS.value, _POINTS))  # Of returns and of episodes.
    for seed, result in enumerate(results):
        assert result.is_finite
        for x in result.episodes:
            if x.environment_steps <= steps:
                at = np.searchsorted(boundaries, x.environment_steps)
                sums[:, seed, at] += x.return_sum, x.episodes
    returns = sums[0] / np.where(sums[1] > 0, sums[1], np.nan)
    return _Trained(returns, sum(result.train_seconds for result in results))


def _train_rejax(name: str, config: PPOConfig, interval: int) -> _Trained:
    """Return what `_rejax` finds in its own environment.

    Raises:
      RuntimeError: if it fails, with what it printed.
    """
    request = {
        "environment": name,
        "settings": {theirs: getattr(config, ours) for ours, theirs in _REJAXS_NAMES.items()},
        "steps": interval * _POINTS,
        "interval": interval,
        "seeds": _SEEDS.value,
    }
    command = [_REJAX.value, "-c", f"{inspect.getsource(_rejax)}\n_rejax()"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{_REJAX.value} failed on {name}:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return _Trained(np.array(found["returns"]), found["seconds"])


def _rejax() -> None:
    """Train rejax's PPO: with evaluations for the curves, without them for the time.

    Its source runs by itself. It reads a request from stdin, and writes the mean returns of its
    evaluations, by seed and interval, and the seconds that training alone takes, without
    compilation: the lesser of those of all seeds in one program and of one after the other.
    """
    import json
    import sys
    import time

    import jax
    import jax.numpy as jnp
    import rejax  # pyright: ignore[reportMissingImports]

    request = json.load(sys.stdin)
    algorithm = rejax.PPO.create(
        env=request["environment"],
        total_timesteps=request["steps"],
        eval_freq=request["interval"],
        skip_initial_evaluation=True,
        **request["settings"],
    )
    keys = jax.random.split(jax.random.key(0), request["seeds"])
    _, (_, returns) = jax.jit(jax.vmap(algorithm.train))(keys)  # [seeds, intervals, episodes]
    alone = algorithm.replace(eval_callback=lambda *_: jnp.zeros(()), eval_freq=request["steps"])
    seconds = []
    for train in (jax.vmap(alone.train), lambda keys: jax.lax.map(alone.train, keys)):
        compiled = jax.jit(train).lower(keys).compile()
        began = time.perf_counter()
        jax.block_until_ready(compiled(keys))
        seconds.append(time.perf_counter() - began)
    result = {"returns": jnp.mean(returns, axis=-1).tolist(), "seconds": min(seconds)}
    json.dump(result, sys.stdout)


def _text(test: Any) -> str:
    """Return a mean, or a difference of means, with the 95% interval of a t-test."""
    low, high = test.confidence_interval(0.95)
    return f"{(low + high) / 2:.1f} [{low:.1f}, {high:.1f}]"


def _curves(interval: int, trained: Mapping[str, _Trained]) -> dict[str, Curve]:
    """Return means over seeds ± standard errors by environment steps, by whose they are."""
    steps, curves = interval * np.arange(1, _POINTS + 1), {}
    for whose, (x, _) in trained.items():
        mean, error = statistics.mean(x.T), statistics.standard_error(x.T)
        curves[whose] = Curve(steps, mean, mean - error, mean + error)
    return curves


def main(argv: list[str]) -> None:
    """Run the benchmark."""
    del argv
    output = pathlib.Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    panels: dict[str, dict[str, Curve]] = {}
    rows: list[dict[str, Any]] = []
    for name in _TASKS.value:
        is_minatar = name.endswith("MinAtar")
        config = dataclasses.replace(_CONTROL, **(_MINATAR if is_minatar else {}))
        steps = _STEPS.value or (1_000_000 if is_minatar else 500_000)
        per_update = config.num_environments * config.unroll_length
        interval = max(1, steps // (_POINTS * per_update)) * per_update
        ours = min(
            (_train_ours(name, config, interval, output, number) for number in (_SEEDS.value, 1)),
            key=lambda trained: trained.seconds,
        )
        trained = {"ours": ours, "rejax": _train_rejax(name, config, interval)}
        panels[name] = _curves(interval, trained)
        finals = [x.final for x in trained.values()]
        speed = {k: interval * _POINTS * _SEEDS.value / x.seconds for k, x in trained.items()}
        rows.append(
            {"task": name, "environment steps": f"{interval * _POINTS:,}"}
            | {whose: _text(stats.ttest_1samp(x.final, 0.0)) for whose, x in trained.items()}
            | {"ours - rejax": _text(stats.ttest_ind(*finals, equal_var=False))}
            | {f"steps/s, {whose}": f"{x:,.0f}" for whose, x in speed.items()}
            | {"ratio": f"{speed['ours'] / speed['rejax']:.2f}"}
        )
        found = {"rows": rows, "curves": panels}
        write_atomically(output / "ppo.json", json.dumps(found, default=np.ndarray.tolist))
        figure = draw_line_panels(panels, xlabel="environment steps", ylabel="return")
        figure.write(output, "ppo")
    print_rows(f"PPO, {_SEEDS.value} seeds", rows)


if __name__ == "__main__":
    app.run(main)
