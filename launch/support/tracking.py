"""Where commands show their numbers while they run: TensorBoard, and Weights & Biases.

    tensorboard --logdir=runs/mine
    python -m launch.discover --workdir=runs/mine --wandb_project=rules
    WANDB_MODE=offline python -m launch.evaluate … --wandb_project=rules   (and later `wandb sync`)

Reports read the files of runs (`metrics.jsonl`), and nothing of what is written here.
"""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from disco_common import files
from disco_common.files import write_atomically
from disco_common.json_lines import JsonLines
from evaluation.executors import Numbers, Show

if TYPE_CHECKING:
    from evaluation.evaluate import Experiment

flags.disclaim_key_flags()

PROBE = "score/fresh_agents"  # Tag of a probe's score.
META_STEP, ENVIRONMENT_STEPS = "meta_step", "environment_steps"
_SECONDS_BETWEEN_READS = 10.0


@dataclasses.dataclass(frozen=True)
class Tracking:
    """Where a command's numbers are shown: event files; a project, and a group, of W&B, if any."""

    tensorboard: bool = True
    wandb_project: str = ""
    wandb_group: str = ""


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

    if values.wandb_project and importlib.util.find_spec("wandb") is None:
        raise MissingPackageError(
            f"--wandb_project={values.wandb_project} needs the package 'wandb', which is not"
            f" installed. {how_to_install('wandb')}"
        )
    return Tracking(values.tensorboard, values.wandb_project)


Log = Callable[[int, Mapping[str, float]], None]
"""Logs numbers of a step by tag; raises OSError, naming the folder, if it cannot be written."""


@contextlib.contextmanager
def trackers(
    tracking: Tracking,
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    step_name: str,
    step: int = 0,
) -> Iterator[Log]:
    """Open the trackers of a run's folder, or continue: steps after `step` are logged again.

    The settings are JSON values; `step_name` is that of the charts' axis.

    Raises:
      ValueError: if Weights & Biases does not accept the run.
      OSError: naming the folder, if something cannot be written.
    """
    logs: list[Log] = []
    with contextlib.ExitStack() as closing:
        with _named(folder):
            if tracking.tensorboard:
                logs.append(closing.enter_context(_event_file(folder, settings, step)))
            if tracking.wandb_project:
                run = _wandb_run(tracking, folder, settings)
                closing.callback(run.finish)
                run.define_metric("*", step_metric=step_name)
                logs.append(lambda step, values: run.log({**values, step_name: step}))

        def log(step: int, values: Mapping[str, float]) -> None:
            with _named(folder):
                for one in logs:
                    one(step, values)

        yield log


@contextlib.contextmanager
def _named(folder: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(f"Cannot write metrics in {folder}: {error}.") from error


@contextlib.contextmanager
def _event_file(folder: pathlib.Path, settings: Mapping[str, Any], step: int) -> Iterator[Log]:
    """Open a new event file of TensorBoard, with the settings as hyper-parameters.

    TensorBoard drops what earlier files have after the step. It has writers with a queue, too,
    whose thread dies when the disk is full.
    """
    from tensorboard.compat.proto.event_pb2 import SessionLog  # pyright: ignore
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.summary.writer.record_writer import RecordWriter

    own = folder / "tensorboard"
    own.mkdir(parents=True, exist_ok=True)
    writer = RecordWriter((own / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("wb"))
    _add_event(writer, file_version="brain.Event:2")
    _add_event(writer, step=step + 1, session_log=SessionLog(status=SessionLog.START))
    values = hparams.hparams_pb(_flattened(settings), trial_id=folder.resolve().name)
    _add_event(writer, summary=values)
    writer.flush()

    def log(step: int, values: Mapping[str, float]) -> None:
        numbers = [Summary.Value(tag=tag, simple_value=x) for tag, x in values.items()]
        _add_event(writer, step=step, summary=Summary(value=numbers))
        writer.flush()

    try:
        yield log
    finally:
        with contextlib.suppress(OSError):  # `log` has raised it already.
            writer.close()


def _add_event(writer: Any, **fields: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore

    writer.write(Event(wall_time=time.time(), **fields).SerializeToString())


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Return nested settings by dotted names; what is neither a number nor text, as text."""
    found: dict[str, bool | float | str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flattened(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value if isinstance(value, bool | int | float) else str(value)
    return found


def _wandb_run(tracking: Tracking, folder: pathlib.Path, settings: Mapping[str, Any]) -> Any:
    """Return the run of Weights & Biases whose id the folder has, or a new one."""
    import wandb

    # It takes our package `agents` for that of a service, and would recommend another product.
    os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
    id_file = folder / "wandb" / "runs" / "id.txt"
    id_ = files.read_text(id_file, errors="replace").strip() if id_file.exists() else ""
    try:
        run = wandb.init(
            project=tracking.wandb_project,
            dir=str(folder),
            name=folder.resolve().name,
            group=tracking.wandb_group or None,
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
    id_file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(id_file, f"{run.id}\n")
    where = f"nothing is sent; `wandb sync` sends what is in {folder}/wandb."
    print(f"Weights & Biases: {where if run.offline else run.url}", flush=True)
    return run


def by_tag(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among a discovery's metrics by tag: a group, a slash, a name.

    Each task has the mean validation reward of its agents, without those that have none.
    """
    found, rewards = dict[str, float](), dict[str, list[float]]()
    for name, value in metrics.items():
        if isinstance(value, int | float) and name != META_STEP:
            group, _, rest = name.partition("_")
            if name in ("validation_reward", "episode_return"):
                group, rest = "score", name
            elif group not in ("agent", "meta"):
                group, rest = "run", name
            found[f"{group}/{rest}"] = float(value)
    agents = metrics.get("agents", {"task": (), "validation_reward": ()})
    for task, reward in zip(agents["task"], agents["validation_reward"], strict=True):
        if reward is not None:
            rewards.setdefault(task, []).append(reward)
    return found | {f"validation_reward/{x}": sum(y) / len(y) for x, y in rewards.items()}


class _ReturnCurves:
    """The returns of an evaluation's runs, which are logged while they are made.

    They are read from the runs' records, whoever makes the runs: this process, or a worker of a Ray
    cluster that shares the file system. Tags are `return/<task>/<contender>/seed_<number>`.
    """

    def __init__(self, workdir: pathlib.Path, log: Log):
        self._workdir, self._log = workdir, log
        self._read_before: dict[pathlib.Path, tuple[int, int]] = {}  # Of each: size, last step.
        self._last_read = time.monotonic()

    def read_in_time(self) -> None:
        """Read if the last time is long ago."""
        if time.monotonic() - self._last_read >= _SECONDS_BETWEEN_READS:
            self.read()

    def read(self) -> None:
        """Log what is new in the records; raises OSError if a file cannot be read or written."""
        for path in self._workdir.glob("runs/*/*/seed_*/metrics.jsonl"):
            *_, contender, task, seed, _ = path.parts
            size_before, last = self._read_before.get(path, (0, 0))
            size = path.stat().st_size if path.is_file() else 0
            lines = JsonLines(path).read_undamaged()[0].values() if size != size_before else ()
            for line in lines:
                step, value = line.get(ENVIRONMENT_STEPS), line.get("episode_return")
                if isinstance(step, int) and step > last and isinstance(value, int | float):
                    self._log(step, {f"return/{task}/{contender}/{seed}": value})
                    last = step
            self._read_before[path] = size, last
        self._last_read = time.monotonic()


def tracked(experiment: "Experiment", tracking: Tracking) -> "Experiment":
    """Return an evaluation whose runs are also tracked, with its settings."""
    if not (tracking.tensorboard or tracking.wandb_project):
        return experiment
    folder, settings = experiment.folder, dataclasses.asdict(experiment.config)

    @contextlib.contextmanager
    def open_progress(title: str, total: int) -> Iterator[Show]:
        with (
            trackers(tracking, folder, settings, ENVIRONMENT_STEPS) as log,
            experiment.open_progress(title, total) as show,
        ):
            curves = _ReturnCurves(folder, log)

            def show_and_log(completed: float, numbers: Numbers, doing: str) -> None:
                show(completed, numbers, doing)
                curves.read_in_time()

            yield show_and_log
            curves.read()

    return dataclasses.replace(experiment, open_progress=open_progress)
