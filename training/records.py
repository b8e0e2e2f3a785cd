"""The records of a run on disk, the same for every agent and environment.

    episodes.jsonl   the episodes that ended, as sums over those that ended together: one line per
                     episode from host environments, one per interval from JAX environments
    metrics.jsonl    the agent's metrics, speed, and mean return, one line per interval

Each line has `environment_steps`, the steps of the run by then, in all of its environments. Metrics
that are not finite are null.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from disco_common.json_lines import JsonLines
from environments.episodes import Episode

STEPS = "environment_steps"
EPISODES = "episodes.jsonl"


@dataclasses.dataclass(frozen=True)
class EpisodeSums:
    """Sums over episodes that ended together.

    Attributes:
      environment_steps: of the run by then.
      episodes: how many ended.
      return_sum: of their undiscounted returns.
      length_sum: of their steps.
      result_sums: of the suite's own results, by name.
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
        """Return the sums of a line of `episodes.jsonl`, also of one that an older version wrote.

        Raises:
          KeyError: if the line lacks something.
          TypeError: if something is not a number.
        """
        if "return" in line:
            sums = [line[STEPS], 1.0, line["return"], line["length"], line["results"]]
        else:
            sums = [line[field.name] for field in dataclasses.fields(cls)]
        steps, episodes, return_sum, length_sum, results = sums
        for number in (steps, episodes, return_sum, length_sum, *results.values()):
            if not isinstance(number, int | float):
                raise TypeError(f"expected a number, found {number!r}")
        return cls(steps, float(episodes), float(return_sum), float(length_sum), dict(results))

    def as_means(self) -> dict[str, float | None]:
        """Return the metrics `episodes`, `episode_return` and `episode_length`; None for none."""
        number = self.episodes
        return {
            "episodes": number,
            "episode_return": self.return_sum / number if number else None,
            "episode_length": self.length_sum / number if number else None,
        }


class Records:
    """The records in a run's folder."""

    def __init__(self, folder: pathlib.Path):
        """Make the folder, if there is none."""
        folder.mkdir(parents=True, exist_ok=True)
        self._episodes = JsonLines(folder / EPISODES)
        self._metrics = JsonLines(folder / "metrics.jsonl")

    def keep(self, environment_steps: int) -> None:
        """Drop what was recorded after a step, and damaged lines.

        Raises:
          OSError: naming the file, if it cannot be read or written.
        """
        for lines in (self._episodes, self._metrics):
            # Nothing ends at step 0; a run that begins anew keeps nothing.
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
        there = {name: float(x) for name, x in metrics.items() if x is not None}
        line = {name: x if math.isfinite(x) else None for name, x in there.items()}
        self._metrics.append([{**line, STEPS: environment_steps}])
        return None not in line.values()

    def sync(self) -> None:
        """Wait until the records are on the disk, as a checkpoint after them will be."""
        self._episodes.sync()
        self._metrics.sync()

    def last_step(self) -> int:
        """Return the step of the last metrics; 0 without any. Errors as of `episodes`."""
        lines = self._metrics.read_undamaged()[0]
        return max((int(line.get(STEPS, 0)) for line in lines.values()), default=0)

    def are_finite(self) -> bool:
        """Return whether all metrics so far are finite; errors as of `episodes`."""
        return not any(None in line.values() for line in self._metrics.read())

    def episodes(self) -> Iterator[EpisodeSums]:
        """Yield what was recorded of episodes, in order.

        Raises:
          OSError: naming the file, if it cannot be read.
          ValueError: naming file and line, if a line is damaged.
        """
        for line in self._episodes.read():
            yield EpisodeSums.of_line(line)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics, in order; errors as of `episodes`."""
        return self._metrics.read()


def mean_metrics(sums: Mapping[str, tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Return the means of the metrics of updates.

    Args:
      sums: by kind of update, the sums of its metrics and the number of updates.

    Returns:
      By name; with several kinds, `kind/name`. Kinds without an update are left out.
    """
    return {
        f"{kind}/{name}" if len(sums) > 1 else name: x / number
        for kind, (metrics, number) in sums.items()
        for name, x in metrics.items()
        if number
    }


def read_episodes(folder: pathlib.Path) -> list[Episode]:
    """Return all episodes of a run in a host environment, in the order in which they ended."""
    every = map(EpisodeSums.of_line, JsonLines(folder / EPISODES).read())
    return [Episode(sums.return_sum, int(sums.length_sum), sums.result_sums) for sums in every]
