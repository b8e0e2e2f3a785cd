"""A run, its result, and its files, in one format for all agents and environments.

    episodes.jsonl   sums over the episodes that ended: one line per episode from host environments,
                     from JAX environments one line per interval in which some ended
    metrics.jsonl    the agent's metrics, speed, and mean return: one line per interval
    agent.npz        the final learning state

Each line of the first two has `environment_steps`, the run's steps so far over all of its
environments. Metrics and returns that are not finite are null.
"""

import dataclasses
import io
import logging
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

import environments
from disco import npz
from disco_common.files import write_atomically
from disco_common.json_lines import JsonLines
from disco_common.pytrees import by_path
from environments.simulators import Episode

STEPS = "environment_steps"
AGENT = "agent.npz"
EPISODES = "episodes.jsonl"
METRICS = "metrics.jsonl"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class EpisodeSums:
    """Sums over the episodes of one record.

    Attributes:
      environment_steps: of the run so far.
      episodes: number of episodes that ended.
      return_sum: sum of their undiscounted returns.
      length_sum: sum of their lengths.
      result_sums: sums of the suite's own results, by name.
    """

    environment_steps: int
    episodes: float
    return_sum: float
    length_sum: float
    result_sums: Mapping[str, float]

    @classmethod
    def of_one(cls, environment_steps: int, episode: Episode) -> "EpisodeSums":
        """Return the sums over one episode."""
        results = {name: float(x) for name, x in episode.results.items()}
        total, length = float(episode.episode_return), float(episode.length)
        return cls(environment_steps, 1.0, total, length, results)

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> "EpisodeSums":
        """Return the sums in a line of `episodes.jsonl`, also in an older version's format.

        Returns and results that are null, as they were not finite, are NaN. A `KeyError` or
        `TypeError` says that a field is missing or not a number.
        """
        if "return" in line:
            sums = [line[STEPS], 1.0, line["return"], line["length"], line["results"]]
        else:
            sums = [line[field.name] for field in dataclasses.fields(cls)]
        steps, episodes, return_sum, length_sum, results = sums
        return_sum = math.nan if return_sum is None else return_sum
        results = {name: math.nan if x is None else x for name, x in results.items()}
        for number in (steps, episodes, return_sum, length_sum, *results.values()):
            if not isinstance(number, int | float):
                raise TypeError(f"expected a number, found {number!r}")
        return cls(steps, float(episodes), float(return_sum), float(length_sum), results)

    def as_means(self) -> dict[str, float | None]:
        """Return metrics: the number of episodes and their means, None without episodes."""
        number = self.episodes
        return {
            "episodes": number,
            "episode_return": self.return_sum / number if number else None,
            "episode_length": self.length_sum / number if number else None,
        }


class Records:
    """The records in a run's folder. An `OSError` of its methods names the file.

    Attributes:
      is_finite: whether all metrics are finite: those that `keep` kept, and those added since.
    """

    def __init__(self, folder: pathlib.Path):
        """Make the folder if it does not exist."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.is_finite = folder, True
        self._episodes = JsonLines(folder / EPISODES)
        self._metrics = JsonLines(folder / METRICS)

    def keep(self, environment_steps: int) -> None:
        """Delete the records after a step, and damaged lines."""
        for lines in (self._episodes, self._metrics):
            # No record is of step 0, so a run that starts again keeps no records.
            lines.keep(STEPS, environment_steps or -1)
        self.is_finite = not any(None in line.values() for line in self.metrics())

    def add_episodes(self, episodes: Iterable[EpisodeSums]) -> None:
        """Add sums over episodes."""
        self._episodes.append(dataclasses.asdict(sums) for sums in episodes if sums.episodes)

    def add_metrics(self, environment_steps: int, metrics: Mapping[str, float | None]) -> None:
        """Add the metrics of an interval; those that are None are left out."""
        line = {name: float(x) for name, x in metrics.items() if x is not None}
        self._metrics.append([{**line, STEPS: environment_steps}])
        if self.is_finite and not all(map(math.isfinite, line.values())):
            self.is_finite = False
            _log.warning(
                "%s has metrics that are not finite at step %d.", self._folder, environment_steps
            )

    def sync(self) -> None:
        """Wait until the records are on disk; called before a checkpoint is saved."""
        self._episodes.sync()
        self._metrics.sync()

    def last_step(self) -> int:
        """Return the step of the last metrics; 0 without any."""
        lines = self._metrics.read_undamaged()[0]
        return max((int(line.get(STEPS, 0)) for line in lines.values()), default=0)

    def episodes(self) -> tuple[EpisodeSums, ...]:
        """Return the records of episodes, in order.

        Raises:
          ValueError: naming file and line, if a line is damaged.
        """
        return tuple(map(EpisodeSums.of_line, self._episodes.read()))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics, in order.

        Raises:
          ValueError: naming file and line, if a line is damaged.
        """
        return self._metrics.read()


def name_by_kind(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of an agent's kinds of update by name; of several kinds by `kind/name`."""
    return {
        f"{kind}/{name}" if len(metrics) > 1 else name: x
        for kind, of_kind in metrics.items()
        for name, x in of_kind.items()
    }


def read_episodes(folder: pathlib.Path) -> list[Episode]:
    """Return all episodes of a run in a host environment, in the order in which they ended."""
    every = map(EpisodeSums.of_line, JsonLines(folder / EPISODES).read())
    return [Episode(sums.return_sum, int(sums.length_sum), sums.result_sums) for sums in every]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of an agent.

    Attributes:
      task: its environment.
      seed: of all randomness.
      folder: for its records and its final agent.
    """

    task: environments.Environment
    seed: int
    folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """The result of a run.

    Attributes:
      episodes: sums over the episodes that ended, in the order of their steps.
      is_finite: whether the final learning state and all recorded metrics are finite.
      start_seconds: wall time of compilation and start; 0 in host environments.
      train_seconds: wall time of training, without compilation, over all sessions of the run. Of
        runs that are trained together each has both times divided by their number.
      restarts: number of simulator processes that died and were replaced.
      learner: the final learning state, NumPy; None for a self-contained agent.
    """

    episodes: tuple[EpisodeSums, ...]
    is_finite: bool
    start_seconds: float
    train_seconds: float
    restarts: int = 0
    learner: Any = None


def all_finite(tree: PyTree[Array]) -> Bool[Array, ""]:
    """Return whether all floating-point numbers of a pytree are finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in floats], bool))


class SavedAgentError(ValueError):
    """A saved agent cannot be read; the message names the file, and says why."""


def save_agent(folder: pathlib.Path, state: Any) -> None:
    """Write a learning state, unless it has no arrays; an `OSError` names the file."""
    arrays = {name: np.asarray(x) for name, x in by_path(state).items()}
    if not arrays:
        return
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_atomically(folder / AGENT, buffer.getvalue())


def load_agent(folder: pathlib.Path, like: Any) -> Any:
    """Read a learning state.

    Args:
      folder: of the run.
      like: a state of the same agent, or its shapes (`jax.eval_shape(agent.init, key)`).

    Returns:
      A pytree of the structure of `like`, of NumPy arrays.

    Raises:
      FileNotFoundError: if the run saved no agent.
      SavedAgentError: if the file is damaged, or is another agent's.
    """
    path, expected = folder / AGENT, by_path(like)
    if not expected:  # Nothing was written.
        return like
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; expected the final agent, which runs of this version save."
        )
    try:
        arrays = npz.read(path)
    except npz.ArchiveError as error:
        raise SavedAgentError(f"{path} {error}") from error
    if set(arrays) != set(expected):
        raise SavedAgentError(
            f"{path} is that of another agent: it has {sorted(arrays)}; expected"
            f" {sorted(expected)}."
        )
    for name in expected:
        found = arrays[name]
        shape, dtype = expected[name].shape, np.dtype(expected[name].dtype)
        if found.dtype == f"V{dtype.itemsize}":  # NumPy does not know bfloat16.
            arrays[name] = found = found.view(dtype)
        if (found.shape, found.dtype) != (shape, dtype):
            raise SavedAgentError(
                f"{path} is that of another agent: {name} is {found.dtype} {found.shape}; expected"
                f" {dtype} {shape}."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])
