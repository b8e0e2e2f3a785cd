"""TensorBoard and Weights & Biases as trackers (`launch.support.tracking`).

Both packages are imported here only, when a run is tracked.
"""

import contextlib
import functools
import os
import pathlib
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

from disco_common import files
from disco_common.files import write_atomically

_VERSION = "brain.Event:2"  # Of event files: TensorBoard drops the steps after a restart.


class TensorBoard:
    """A folder's event file.

    Events are written synchronously: `SummaryWriter`s queue them for a thread, which dies when the
    disk is full.
    """

    def __init__(self, folder: pathlib.Path, metrics: Sequence[str] = ()):
        """Store the folder, which is made with the first file.

        Args:
          folder: of the event files. Its name is that of the run.
          metrics: tags of the numbers that TensorBoard shows beside hyper-parameters.
        """
        self._folder = folder
        self._metrics = metrics
        self._writer: Any = None

    def start(self, step: int, settings: Mapping[str, Any]) -> None:
        """Begin a new file; TensorBoard drops what earlier ones have after the step."""
        from tensorboard.compat.proto.event_pb2 import SessionLog  # pyright: ignore
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{platform.node()}.{os.getpid()}"
        self._writer = RecordWriter((self._folder / name).open("wb"))
        self._add(file_version=_VERSION)
        if step:
            self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        if values := _flattened(settings):
            names = [hparams.HParam(name) for name in values]
            metrics = [hparams.Metric(tag) for tag in self._metrics]
            self._add(summary=hparams.hparams_config_pb(hparams=names, metrics=metrics))
            name = self._folder.resolve().parent.name
            self._add(summary=hparams.hparams_pb(values, trial_id=name))
        self._writer.flush()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by tag."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore

        numbers = [Summary.Value(tag=tag, simple_value=x) for tag, x in values.items()]
        self._add(step=step, summary=Summary(value=numbers))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # `log` has raised it already.
                self._writer.close()

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Return nested settings by dotted names; what is neither a number nor text, as text."""
    found: dict[str, bool | float | str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flattened(value, f"{prefix}{name}.")
        else:
            is_plain = isinstance(value, bool | int | float | str)
            found[prefix + name] = value if is_plain else str(value)
    return found


class WandB:
    """A run of Weights & Biases, whose id is kept in the workdir: a restart continues the run.

    The environment variables of `wandb` apply: with WANDB_MODE=offline nothing is sent, and
    `wandb sync` sends the folder `wandb` later.
    """

    def __init__(self, id_file: pathlib.Path, step_name: str, **arguments: Any):
        """Store what the run is called.

        Args:
          id_file: with the run's id, once it is started; in an existing folder.
          step_name: a number that charts have as their axis, where steps may go back; empty where
            steps only grow.
          **arguments: of `wandb.init`: project, dir, name, group.
        """
        self._arguments = arguments
        self._id_file = id_file
        self._step_name = step_name
        self._run: Any = None

    def start(self, step: int, settings: Mapping[str, Any]) -> None:
        """Start or continue the run; numbers of steps that it has already are ignored."""
        del step
        import wandb

        # It takes our package `agents` for that of a service, and would recommend another product.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        id_ = ""
        if self._id_file.exists():  # An id that is damaged is refused below.
            id_ = files.read_text(self._id_file, errors="replace").strip()
        try:
            self._run = wandb.init(
                **self._arguments,
                id=id_ or None,
                resume="allow",
                config=dict(settings),
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"--wandb_project: Weights & Biases does not accept the run {id_} ({reason});"
                " `wandb login` stores a key, and with WANDB_MODE=offline nothing is sent."
            ) from error
        if not id_:
            write_atomically(self._id_file, f"{self._run.id}\n")
        if self._step_name:
            self._run.define_metric("*", step_metric=self._step_name)
        if self._run.offline:
            folder = f"{self._arguments['dir']}/wandb"
            _announce(f"nothing is sent; `wandb sync` sends what is in {folder}.")
        else:
            _announce(self._run.project_url if self._arguments["group"] else self._run.url)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers by tag."""
        if self._step_name:
            self._run.log({**values, self._step_name: step})
        else:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run: what is left is sent, or written."""
        if self._run is not None:
            self._run.finish()


@functools.cache
def _announce(where: str) -> None:
    """Print where the runs are, once."""
    print(f"Weights & Biases: {where}", flush=True)
