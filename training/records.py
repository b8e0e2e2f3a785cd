"""A run's records on disk, in one format for all agents and environments.

    episodes.jsonl   sums over the episodes that ended: one line per episode from host environments,
                     one line per interval from JAX environments
    metrics.jsonl    the agent's metrics, speed, and mean return: one line per interval

Each line has `environment_steps`, the run's steps so far over all of its environments. Metrics and
returns that are not finite are null.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from disco_common.json_lines import JsonLines
from environments.simulators import Episode

STEPS = "environment_steps"
EPISODES = "episodes.jsonl"
METRICS = "metrics.jsonl"


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
        return cls(
            environment_steps=environment_steps,
            episodes=1.0,
            return_sum=float(episode.episode_return),
            length_sum=float(episode.length),
            result_sums={name: float(x) for name, x in episode.results.items()},
        )

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> "EpisodeSums":
        """Return the sums in a line of `episodes.jsonl`, also in an older version's format.

        Returns and results that are null, as they were not finite, are NaN.

        Raises:
          KeyError: if the line lacks a field.
          TypeError: if a field is not a number.
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
    """The records in a run's folder."""

    def __init__(self, folder: pathlib.Path):
        """Make the folder if it does not exist."""
        folder.mkdir(parents=True, exist_ok=True)
        self._episodes = JsonLines(folder / EPISODES)
        self._metrics = JsonLines(folder / METRICS)

    def keep(self, environment_steps: int) -> None:
        """Delete the records after a step, and damaged lines.

        Raises:
          OSError: naming the file, if it cannot be read or written.
        """
        for lines in (self._episodes, self._metrics):
            # No record is of step 0, so a run that starts again keeps no records.
            lines.keep(STEPS, environment_steps or -1)

    def add_episodes(self, episodes: Iterable[EpisodeSums]) -> None:
        """Add sums over episodes.

        Raises:
          OSError: naming the file, if they cannot be written.
        """
        self._episodes.append(dataclasses.asdict(sums) for sums in episodes if sums.episodes)

    def add_metrics(self, environment_steps: int, metrics: Mapping[str, float | None]) -> bool:
        """Add the metrics of an interval; those that are None are left out.

        Returns:
          Whether all of them are finite.

        Raises:
          OSError: naming the file, if they cannot be written.
        """
        line = {name: float(x) for name, x in metrics.items() if x is not None}
        self._metrics.append([{**line, STEPS: environment_steps}])
        return all(map(math.isfinite, line.values()))

    def sync(self) -> None:
        """Wait until the records are on disk; called before a checkpoint is saved."""
        self._episodes.sync()
        self._metrics.sync()

    def last_step(self) -> int:
        """Return the step of the last metrics; 0 without any. Raises the errors of `episodes`."""
        lines = self._metrics.read_undamaged()[0]
        return max((int(line.get(STEPS, 0)) for line in lines.values()), default=0)

    def are_finite(self) -> bool:
        """Return whether all metrics so far are finite; raises the errors of `episodes`."""
        return not any(None in line.values() for line in self._metrics.read())

    def episodes(self) -> Iterator[EpisodeSums]:
        """Yield the records of episodes, in order.

        Raises:
          OSError: naming the file, if it cannot be read.
          ValueError: naming file and line, if a line is damaged.
        """
        for line in self._episodes.read():
            yield EpisodeSums.of_line(line)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics, in order; raises the errors of `episodes`."""
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
