"""Training a fresh agent with a frozen rule on a task of a host environment.

In one process runs follow one another. A run acts one update behind: while the device learns from
a batch, threads prepare the next one by the parameters from before.

A run's folder has

    episodes.jsonl   return, length and the suite's own results of each episode that ended
    metrics.jsonl    losses, speed, and the share of time in which the learner waited
    checkpoints/     from which a run that was stopped goes on; its environments start new
                     episodes, and its replay fills anew
"""

import contextlib
import dataclasses
import logging
import pathlib
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

import disco
import environments
from agents.agent import Agent, AgentConfig, LearnerState
from agents.checkpoints import Checkpoints
from agents.device_clock import DeviceClock
from agents.host_acting import Act, Episode, make_act
from agents.host_experience import Experience, HostExperience
from agents.networks import uniform_network
from common.json_lines import JsonLines

_log = logging.getLogger(__name__)
_UPDATE = "update"


@dataclasses.dataclass(frozen=True)
class HostRun:
    """What became of a run.

    Attributes:
      episodes: that ended, with the update at which they did.
      is_finite: whether all of the agent's numbers were, at the end and in all logged losses.
      seconds: of wall time, compilation not included, over all of its stretches.
      restarts: simulator processes that died and were replaced.
      learner: the agent at the end; `()` of the random policy.
    """

    episodes: list[tuple[int, Episode]]
    is_finite: bool
    seconds: float
    restarts: int
    learner: Any


class HostProgram:
    """The compiled functions that train any rules of one form by one kind of agent.

    Meta-parameters and learning rates are arguments, so that they share one compilation.
    """

    def __init__(
        self,
        dynamics: environments.HostEnvironment,
        agent: AgentConfig,
        rule: disco.Rule | None,
    ):
        """Compiles nothing.

        Args:
          dynamics: of the tasks' family.
          agent: of all runs; its learning rate is not read.
          rule: of the form to come; None for the random policy.

        Raises:
          ValueError: if a rule cannot act there, as actions are continuous.
        """
        self._config = agent
        self._dynamics = dynamics
        if rule is None:
            network = uniform_network(environments.num_actions(dynamics))
            self.agent = Agent(agent, dynamics, network, agent.optimizer())
        else:
            self.agent = Agent.create(agent, dynamics, rule)
        self.act: Act = make_act(self.agent.network)
        self.init = jax.jit(self.agent.init_learner)
        self.learn = jax.jit(self._learn)

    def _learn(self, rule, learning_rate, learner: LearnerState, batch: disco.Trajectory):
        optimizer = self._config.optimizer(learning_rate)
        agent = dataclasses.replace(self.agent, optimizer=optimizer)
        learner, _, aux = agent.learn(rule, learner, batch)
        return learner, aux.metrics


def train(
    program: HostProgram,
    rule: disco.Rule | None,
    learning_rate: float,
    task: environments.Environment,
    seed: int,
    num_updates: int,
    folder: pathlib.Path,
    log_interval: int,
    checkpoint_seconds: float,
    report: Callable[[int, float | None, float | None], None] = lambda *_: None,
) -> HostRun:
    """Trains an agent, or continues to.

    Args:
      program: for the task's family and rules of this form.
      rule: to learn by; None for the random policy.
      learning_rate: of the agent.
      task: to learn on.
      seed: of all randomness.
      num_updates: of the whole run.
      folder: of the run.
      log_interval: updates between two looks at the progress.
      checkpoint_seconds: between two checkpoints.
      report: called at each look with the updates made, environment steps per second, and the
        mean return of the episodes since the last look (None if none).

    Raises:
      CheckpointError: if a checkpoint cannot be written, or none can be read.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      ValueError: if the replay does not fit in memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    episodes = JsonLines(folder / "episodes.jsonl")
    metrics = JsonLines(folder / "metrics.jsonl")
    with contextlib.closing(Checkpoints(folder / "checkpoints", keep=2)) as checkpoints:
        run = _Run(program, rule, learning_rate, task, seed, checkpoints, episodes, metrics)
        with contextlib.closing(run):
            past = run.live(num_updates, log_interval, checkpoint_seconds, report)
    return HostRun(
        episodes=[(line[_UPDATE], from_json(line)) for line in episodes.read()],
        learner=run.learner,
        **dataclasses.asdict(past),
    )


def read_episodes(folder: pathlib.Path) -> list[Episode]:
    """All episodes of a run, in the order in which they ended."""
    return [from_json(line) for line in JsonLines(folder / "episodes.jsonl").read()]


class _Run:
    """An agent on its way.

    Attributes:
      learner: it.
    """

    def __init__(self, program, rule, learning_rate, task, seed, checkpoints, episodes, metrics):
        self._program: HostProgram = program
        self._rule, self._learning_rate = rule, jnp.float32(learning_rate)
        self._checkpoints: Checkpoints = checkpoints
        self._episodes: JsonLines = episodes
        self._metrics: JsonLines = metrics
        self.learner, self._first, self._past = self._born_or_restored(task, seed)
        if self._first:
            _log.warning(
                "%s continues at update %d; its environments start new episodes and its replay"
                " fills anew, as neither is saved.",
                self._episodes.path.parent,
                self._first,
            )
        self._episodes.keep(_UPDATE, self._first - 1)
        self._metrics.keep(_UPDATE, self._first - 1)
        # Other environments and draws than before an interruption, and than those of other runs.
        experience_seed = environments.seed_of(task.name, seed, self._first)
        self._clock = DeviceClock()
        self._experience = HostExperience(
            program.agent, program.act, task.task, experience_seed, acting_device()
        )

    def close(self) -> None:
        """Ends the environments."""
        self._experience.close()
        self._clock.close()

    def _born_or_restored(self, task, seed) -> tuple[Any, int, "_Past"]:
        """The learner, the updates that it made, and how they went."""
        born, past = (), _Past()
        if self._rule is not None:
            key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(task.name.encode()))
            born = self._program.init(self._rule, key)
        restored = self._checkpoints.restore({"learner": born, "past": past.as_arrays()})
        if restored is None:
            return born, 0, past
        first, state = restored
        return jax.device_put(state["learner"]), first, _Past.of_arrays(state["past"])

    def live(self, num_updates, log_interval, checkpoint_seconds, report) -> "_Past":
        """All updates that are still to make; how it went."""
        config, past = self._program.agent.config, self._past
        window, saved_at = _Window(), time.monotonic()
        started, seconds_before, restarts_before = saved_at, past.seconds, past.restarts
        self._experience.request(self._params, self._first)
        for update in range(self._first, num_updates):
            experience = self._experience.take()
            is_last = update + 1 == num_updates
            if not is_last:
                self._experience.request(self._params, update + 1)
            window.add(experience, self._learn(experience.batch))
            steps = config.steps_per_update * (update + 1)
            self._episodes.append(
                {_UPDATE: update, "environment_steps": steps, **to_json(x)}
                for x in experience.episodes
            )
            if update == self._first:  # Which compiles.
                jax.block_until_ready(self.learner)
                started = time.monotonic()
            past.seconds = seconds_before + time.monotonic() - started
            past.restarts = restarts_before + self._experience.restarts
            if is_last or (update + 1 - self._first) % log_interval == 0:
                line = window.summary(config.steps_per_update)
                line["learner_idle_fraction"] = self._clock.idle_fraction()
                past.is_finite &= all(x is None or np.isfinite(x) for x in line.values())
                self._metrics.append([{_UPDATE: update, "environment_steps": steps, **line}])
                report(update + 1, line["environment_steps_per_second"], line["episode_return"])
                window = _Window()
            if not is_last and time.monotonic() - saved_at > checkpoint_seconds:
                self._save(update + 1)
                saved_at = time.monotonic()
        self._checkpoints.wait()
        past.is_finite &= bool(all_finite(self.learner))
        return past

    @property
    def _params(self) -> disco.Params:
        return {} if self._rule is None else self.learner.params

    def _learn(self, batch: disco.Trajectory) -> Any:
        """One update; its metrics, which are still being computed."""
        if self._rule is None:
            return {}
        self.learner, metrics = self._clock.follow(
            lambda: self._program.learn(
                self._rule, self._learning_rate, self.learner, jax.device_put(batch)
            ),
            watched=lambda results: results[1],
        )
        return metrics

    def _save(self, step: int) -> None:
        state = {"learner": self.learner, "past": self._past.as_arrays()}
        self._checkpoints.save(step, state)


@dataclasses.dataclass
class _Past:
    """How a run went so far; see `HostRun`."""

    is_finite: bool = True
    seconds: float = 0.0
    restarts: int = 0

    def as_arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint."""
        return {name: np.asarray(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def of_arrays(cls, arrays: dict[str, Any]) -> "_Past":
        """The inverse."""
        return cls(**{name: np.asarray(value).item() for name, value in arrays.items()})


class _Window:
    """What happened between two looks at the progress."""

    def __init__(self):
        self._began = time.monotonic()
        self._experiences: list[Experience] = []
        self._metrics: list[Any] = []

    def add(self, experience: Experience, metrics: Any) -> None:
        """One update."""
        self._experiences.append(experience._replace(batch=None))  # pyright: ignore
        self._metrics.append(metrics)

    def summary(self, steps_per_update: int) -> dict[str, float | None]:
        """Means over the updates, in JSON values; times are in seconds per update."""
        metrics = jax.device_get(self._metrics)
        count, seconds = len(metrics), time.monotonic() - self._began
        episodes = [x for experience in self._experiences for x in experience.episodes]
        timings = [experience.timing for experience in self._experiences]
        return {
            "episode_return": _mean([x.episode_return for x in episodes]),
            "episode_length": _mean([float(x.length) for x in episodes]),
            "episodes": float(len(episodes)),
            "environment_steps_per_second": count * steps_per_update / seconds,
            "engine_seconds": sum(x.engine for x in timings) / count,
            "policy_seconds": sum(x.policy for x in timings) / count,
            "replay_seconds": sum(x.replay_seconds for x in self._experiences) / count,
            **{name: _mean([float(x[name]) for x in metrics]) for name in metrics[0]},
        }


def acting_device() -> Any:
    """Where policies act: on a CPU beside the learner's core, else on the learner's device."""
    devices = jax.local_devices()
    return devices[-1] if devices[0].platform == "cpu" else devices[0]


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def to_json(episode: Episode) -> dict[str, Any]:
    """An episode's record."""
    return {
        "return": float(episode.episode_return),
        "length": int(episode.length),
        "results": {name: float(x) for name, x in episode.results.items()},
    }


def from_json(line: dict[str, Any]) -> Episode:
    """The inverse."""
    return Episode(line["return"], line["length"], line["results"])


@jax.jit
def all_finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Whether all floating-point numbers of a tree are finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in floats], bool))
