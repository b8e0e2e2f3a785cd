"""Where commands show their numbers while they run: TensorBoard, and Weights & Biases.

    tensorboard --logdir=runs/mine
    python -m launch.discover --workdir=runs/mine --wandb_project=rules
    WANDB_MODE=offline python -m launch.evaluate … --wandb_project=rules   (and later `wandb sync`)

Reports read `metrics.jsonl` (`MetricsLog`), and nothing of what trackers write.
"""

import contextlib
import dataclasses
import importlib.util
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from absl import flags

from disco_common.json_lines import JsonLines

flags.disclaim_key_flags()

PROBE = "score/fresh_agents"
# Tags of the numbers that tell one discovery from another, beside their settings.
_RESULTS = (PROBE, "score/validation_reward", "meta/loss")
_SCORES = ("validation_reward", "episode_return")
_STEP = "meta_step"


@runtime_checkable
class Tracker(Protocol):
    """A place where the numbers of a run are shown."""

    def start(self, step: int, settings: Mapping[str, Any]) -> None:
        """Start or continue; the first call.

        Args:
          step: the last one that is kept, as those after it will be logged again.
          settings: of the run, JSON values.

        Raises:
          OSError: if something cannot be written.
          ValueError: if a service does not accept the run.
        """
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step by tag; raises as `start`."""
        ...

    def close(self) -> None:
        """Write or send what is left."""
        ...


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Which trackers a command has.

    Attributes:
      tensorboard: whether event files are written.
      wandb_project: of Weights & Biases; empty for none.
      group: of a single run there; empty for none.
    """

    tensorboard: bool = True
    wandb_project: str = ""
    group: str = ""

    def trackers(
        self,
        workdir: pathlib.Path,
        name: str,
        part: str = "",
        metrics: Sequence[str] = (),
        step_name: str = "",
    ) -> dict[pathlib.Path, Tracker]:
        """Return the trackers of a run, not yet started, by folders of their own.

        Args:
          workdir: of the command.
          name: of the run in Weights & Biases.
          part: folder of the run, if the workdir has several, which form a group there.
          metrics: tags that are shown beside hyper-parameters.
          step_name: of the numbers' axis, where steps may go back.
        """
        from launch.support import trackers

        found: dict[pathlib.Path, Tracker] = {}
        if self.tensorboard:
            folder = workdir / "tensorboard" / part
            found[folder] = trackers.TensorBoard(folder, metrics)
        if self.wandb_project:
            folder = workdir / "wandb" / "runs" / part
            folder.mkdir(parents=True, exist_ok=True)
            found[folder] = trackers.WandB(
                folder / "id.txt",
                step_name,
                project=self.wandb_project,
                dir=str(workdir),
                name=name,
                group=workdir.resolve().name if part else self.group or None,
            )
        return found


def define_flags() -> None:
    """Define the flags."""
    flags.DEFINE_bool(
        "tensorboard", True, "Write event files for TensorBoard in the workdir's tensorboard/."
    )
    flags.DEFINE_string(
        "wandb_project",
        "",
        "Project of Weights & Biases that the numbers are sent to; empty for none. The run's id is"
        " kept in the workdir, and a continued command continues the run. With the environment"
        " variable WANDB_MODE=offline nothing is sent. Needs the extra 'wandb'.",
    )


def of_flags(values: Any) -> Tracking:
    """Return what the flags say.

    Raises:
      MissingPackageError: if `wandb` is needed and not installed.
    """
    from environments.errors import MissingPackageError, how_to_install

    tracking = Tracking(values.tensorboard, values.wandb_project)
    if tracking.wandb_project and importlib.util.find_spec("wandb") is None:
        raise MissingPackageError(
            f"--wandb_project={tracking.wandb_project} needs the package 'wandb', which is not"
            f" installed. {how_to_install('wandb')}"
        )
    return tracking


class MetricsLog:
    """A discovery's metrics: a JSON object per line in `metrics.jsonl`, and what trackers show."""

    def __init__(self, folder: pathlib.Path, tracking: Tracking = Tracking(), settings: Any = None):
        """Open the log in a run's folder.

        Args:
          folder: of the run.
          tracking: which trackers it has.
          settings: of the run for the trackers, a dictionary of JSON values; None for none.
        """
        self._folder = folder
        self._settings = settings or {}
        self._lines = JsonLines(folder / "metrics.jsonl")
        name = folder.resolve().name
        self._trackers = tuple(tracking.trackers(folder, name, metrics=_RESULTS).values())

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *exception) -> None:
        for tracker in self._trackers:
            tracker.close()

    def continue_from(self, step: int) -> None:
        """Delete what was logged after a step, as it will be computed again.

        Raises:
          OSError: naming the folder, if it cannot be written.
          ValueError: if a tracker's service does not accept the run.
        """
        with self._explained():
            self._lines.keep(_STEP, step)
            for tracker in self._trackers:
                tracker.start(step, self._settings)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step (`meta.run`); raises OSError, naming the folder."""
        with self._explained():
            self._lines.append([metrics])
        self.show(step, by_tag(metrics))

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step by tag for the trackers only; raises as `write`."""
        with self._explained():
            for tracker in self._trackers:
                tracker.log(step, values)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(f"Cannot write metrics in {self._folder}: {error}.") from error


def by_tag(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among a discovery's metrics by tag: a group, a slash, a name.

    Each task has the mean validation reward of its agents, without those that have none.
    """
    found = {
        _tag(name): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != _STEP
    }
    agents, rewards = metrics.get("agents", {}), dict[str, list[float]]()
    for task, reward in zip(
        agents.get("task", ()), agents.get("validation_reward", ()), strict=False
    ):
        if reward is not None:
            rewards.setdefault(task, []).append(reward)
    return found | {f"validation_reward/{x}": sum(y) / len(y) for x, y in rewards.items()}


def _tag(name: str) -> str:
    if name in _SCORES:
        return f"score/{name}"
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in ("agent", "meta") else f"run/{name}"
