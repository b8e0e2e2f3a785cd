"""Pictures and films of what final agents do, from the folders of an evaluation's runs."""

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import matplotlib.colors

from agents.pictures import PLANE_COLOURS
from evaluation.contenders import RANDOM, Contender
from evaluation.report.merging import MergedEvaluation
from evaluation.report.texts import file_name

FOLDER = "films"  # Beside the page.
_MAX_PICTURE_BYTES = 2_000_000  # Of an evaluation, in the page.


@dataclasses.dataclass(frozen=True)
class Film:
    """A film of a final agent.

    Attributes:
      caption: the contender and the seed.
      source: the film, in the run's folder.
      file: its path beside the page.
    """

    caption: str
    source: pathlib.Path
    file: str

    @property
    def is_image(self) -> bool:
        """Whether a page shows it as an image."""
        return self.source.suffix.lower() == ".gif"


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Pictures and films of what final agents do.

    Attributes:
      by_task: captions and pictures (PNG), of tasks that have any.
      films: of tasks that have any.
      absent: by reason, the tasks without a picture.
      left_out: the number of pictures for which there was no space.
    """

    by_task: dict[str, list[tuple[str, bytes]]]
    films: dict[str, list[Film]]
    absent: dict[str, list[str]]
    left_out: int

    @property
    def plane_colours(self) -> list[str]:
        """The colours of planes in pictures, in order, as CSS has them."""
        return [matplotlib.colors.to_hex(colour) for colour in PLANE_COLOURS]


def find_pictures(name: str, merged: MergedEvaluation, shown: Sequence[Contender]) -> Pictures:
    """Return the pictures of each contender's first run on each task that has any, and all films.

    Args:
      name: of the evaluation.
      merged: the evaluation.
      shown: contenders.
    """
    found: dict[str, list[tuple[str, bytes]]] = {}
    films: dict[str, list[Film]] = {}
    left_out, size, number = 0, 0, itertools.count()
    for task, contender in itertools.product(merged.tasks, shown):
        by_seed = (merged.pictures(contender.name, task, seed) for seed in merged.seeds)
        for caption, picture in next(filter(None, by_seed), []):
            own = found.setdefault(task, [])
            if size + len(picture) > _MAX_PICTURE_BYTES:
                left_out += 1
                continue
            size += len(picture)
            own.append((f"{contender.name}, {caption}", picture))
        for seed, path in merged.films(contender.name, task):
            what = f"{contender.name}, seed {seed}" + f", {path.stem}" * (path.stem != "film")
            file = f"{FOLDER}/{file_name(name)}_{next(number)}{path.suffix}"
            film = Film(what, path, file)
            films.setdefault(task, []).append(film)
    absent: dict[str, list[str]] = {}
    for task in merged.tasks:
        if task not in found:
            absent.setdefault(_reason(merged, shown, task), []).append(task)
    return Pictures({task: x for task, x in found.items() if x}, films, absent, left_out)


def _reason(merged: MergedEvaluation, shown: Sequence[Contender], task: str) -> str:
    """Return why a task has no picture."""
    learning = {x.name for x in shown if x.kind != RANDOM}
    if not any(name in learning and own == task for name, own, _ in merged.folders):
        return "no contender that learns has a run"
    if merged.config.strip_frames == 0:
        return "the evaluation drew none (strip_frames is 0)"
    return (
        "their observations are neither images nor boards, or drawing failed, which the"
        " evaluation's log says"
    )
