"""Runs of Weights & Biases, with ids that are kept in the workdir."""

import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import wandb

from disco_common import files
from disco_common.atomic import write_atomically


class WandbLog:
    """A run of Weights & Biases: a tracker (`launch.support.tracking`).

    The run's id is kept in a file: started again, the command continues the run. Steps that were
    logged before are logged only once. The environment variables of `wandb` apply: with
    WANDB_MODE=offline nothing is sent, and `wandb sync` sends the folder `wandb` later.
    """

    def __init__(
        self,
        project: str,
        folder: pathlib.Path,
        id_file: pathlib.Path,
        name: str,
        group: str | None = None,
        step_name: str = "",
    ):
        """Store what the run is called.

        Args:
          project: of the run.
          folder: that holds the folder `wandb` with the run's files.
          id_file: with the run's id, once it is started; in an existing folder.
          name: of the run.
          group: of the run; None for none.
          step_name: a number that charts have as their axis, where steps may go back; empty where
            steps only grow.
        """
        self._arguments = {"project": project, "dir": str(folder), "name": name, "group": group}
        self._id_file = id_file
        self._step_name = step_name
        self._run: Any = None

    def start(self, step: int, settings: Mapping[str, Any]) -> None:
        """Start or continue the run.

        Args:
          step: the last one that is kept. Weights & Biases cannot drop those after it, and ignores
            them when they are logged again.
          settings: of the run, JSON values.

        Raises:
          ValueError: if Weights & Biases does not accept the run.
          OSError: if the id cannot be written.
        """
        del step
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
        assert self._run is not None, "start comes first"
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
