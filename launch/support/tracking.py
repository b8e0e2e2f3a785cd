"""Where commands show their numbers while they run: TensorBoard, and Weights & Biases.

    tensorboard --logdir=runs/mine
    python -m launch.discover --workdir=runs/mine --wandb_project=rules
    WANDB_MODE=offline python -m launch.evaluate … --wandb_project=rules   (and later `wandb sync`)

Nothing else reads what is written here: reports read `metrics.jsonl`.
"""

import dataclasses
import importlib.util
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from absl import flags

from environments.errors import MissingPackageError, how_to_install

TENSORBOARD, WANDB = "tensorboard", "wandb"  # Folders in a workdir.
ID = "id.txt"  # Of a run of Weights & Biases.


@runtime_checkable
class Tracker(Protocol):
    """A place where the numbers of a run are shown."""

    def start(self, step: int, settings: Mapping[str, Any]) -> None:
        """Start or continue.

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
    """

    tensorboard: bool = True
    wandb_project: str = ""

    def trackers(
        self,
        workdir: pathlib.Path,
        name: str,
        part: str = "",
        metrics: Sequence[str] = (),
        step_name: str = "",
    ) -> dict[pathlib.Path, Tracker]:
        """Return the trackers of a run, not yet started, by folders of their own.

        TensorBoard and `wandb` are imported here: neither is needed for `--help`.

        Args:
          workdir: of the command.
          name: of the run in Weights & Biases.
          part: folder of the run, if the workdir has several, which form a group there.
          metrics: tags that are shown beside hyper-parameters.
          step_name: of the numbers' axis, where steps may go back.
        """
        found: dict[pathlib.Path, Tracker] = {}
        if self.tensorboard:
            from launch.support.tensorboard_log import TensorBoardLog

            folder = workdir / TENSORBOARD / part
            found[folder] = TensorBoardLog(folder, metrics)
        if self.wandb_project:
            from launch.support.wandb_log import WandbLog

            folder = workdir / WANDB / "runs" / part
            folder.mkdir(parents=True, exist_ok=True)
            group = workdir.resolve().name if part else None
            found[folder] = WandbLog(
                self.wandb_project, workdir, folder / ID, name, group, step_name
            )
        return found

    def arguments(self) -> list[str]:
        """Return the flags that say so, for a command of this package."""
        return [
            *([] if self.tensorboard else ["--notensorboard"]),
            *([f"--wandb_project={self.wandb_project}"] if self.wandb_project else []),
        ]


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
    tracking = Tracking(values.tensorboard, values.wandb_project)
    if tracking.wandb_project and importlib.util.find_spec("wandb") is None:
        raise MissingPackageError(
            f"--wandb_project={tracking.wandb_project} needs the package 'wandb', which is not"
            f" installed. {how_to_install('wandb')}"
        )
    return tracking
