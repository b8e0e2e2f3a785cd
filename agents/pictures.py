"""Pictures of observations and of a world model's predictions, and the errors of these.

Images, boards and grids of planes can be drawn. Pictures are PNG files, whose text chunk `caption`
describes their contents.
"""

import dataclasses
import io
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import matplotlib
import numpy as np
from jaxtyping import PRNGKeyArray, UInt8
from PIL import Image, PngImagePlugin

import environments
from agents.protocol import Batch, ImaginingAgent

CAPTION = "caption"

_LEAST_SIDE = 4
_HEIGHT, _GAP = 64, 2  # Pixels; smaller images are enlarged.
_BACKGROUND, BETWEEN = 24, 128
_TEN_COLOURS = matplotlib.colormaps["tab10"].colors  # pyright: ignore
PLANE_COLOURS = tuple(_TEN_COLOURS[i] for i in (0, 7, 2, 3, 1, 4, 6, 8, 9, 5))
"""Of planes, in order. The second is grey, for the walls of this project's grid-worlds."""


def is_picture(spec: Any) -> bool:
    """Return whether observations of a shape can be drawn: images, boards, grids of planes."""
    shape = getattr(spec, "shape", ())
    return len(shape) in (2, 3) and sorted(shape)[-2] >= _LEAST_SIDE and min(shape[:2]) > 1


def image_index(spec: environments.ObservationSpec) -> int | None:
    """Return which of an observation's arrays to draw, counted in the order of their names.

    It is the first that can be drawn; None if there is none.
    """
    drawn = [i for i, part in enumerate(jax.tree.leaves(spec)) if is_picture(part)]
    return drawn[0] if drawn else None


def as_image(observation: np.ndarray, brightest: float | None = None) -> UInt8[np.ndarray, "H W 3"]:
    """Return an observation as an RGB image.

    One channel is drawn in grey, three in RGB. Otherwise each plane has a colour, and later planes
    cover earlier ones.

    Args:
      observation: `[H, W]` or `[H, W, C]`; uint8, or numbers.
      brightest: number that is drawn at full brightness, at least 1; by default the largest.
    """
    x = observation[..., None] if observation.ndim == 2 else observation
    if x.dtype != np.uint8:
        x = np.nan_to_num(x.astype(np.float64))
        largest = x.max(initial=0.0) if brightest is None else brightest
        x = 255.0 * np.clip(x / max(1.0, largest), 0.0, 1.0)
    if x.shape[-1] in (1, 3):
        return np.broadcast_to(x, (*x.shape[:2], 3)).astype(np.uint8)
    image = np.full((*x.shape[:2], 3), float(_BACKGROUND))
    for plane, colour in zip(np.moveaxis(x, -1, 0), itertools.cycle(PLANE_COLOURS), strict=False):
        weight = plane[..., None] / 255.0
        image = (1.0 - weight) * image + weight * 255.0 * np.array(colour)
    return image.astype(np.uint8)


def as_png(rows: Sequence[Sequence[UInt8[np.ndarray, "H W 3"]]], caption: str) -> bytes:
    """Return a PNG file of a grid of images; all are of one size, and all rows of one length."""
    height, width, _ = rows[0][0].shape
    scale = -(-_HEIGHT // height)
    found = np.full(
        (
            len(rows) * (height * scale + _GAP) - _GAP,
            len(rows[0]) * (width * scale + _GAP) - _GAP,
            3,
        ),
        BETWEEN,
        np.uint8,
    )
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = i * (height * scale + _GAP), j * (width * scale + _GAP)
            large = image.repeat(scale, axis=0).repeat(scale, axis=1)
            found[top : top + height * scale, left : left + width * scale] = large
    text, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    text.add_text(CAPTION, caption)
    Image.fromarray(found).save(buffer, "PNG", optimize=True, pnginfo=text)
    return buffer.getvalue()


def read_caption(picture: bytes) -> str:
    """Return the caption of a file of `as_png`.

    Raises:
      OSError: if it is not a picture, or is too large.
    """
    try:
        with Image.open(io.BytesIO(picture), formats=["PNG"]) as image:
            image.verify()
            return str(image.info.get(CAPTION, ""))
    except (SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(f"it is not a picture ({error})") from error


_BINS = 10  # Of a calibration error.
_SHOWN, _MOST_PREDICTED, _LEAST_PREDICTED = 16, 50, 4  # Frames of a picture; steps of an episode.


def prediction_picture(
    agent: ImaginingAgent, state: Any, batch: Batch, key: PRNGKeyArray
) -> dict[str, bytes]:
    """Draw what a world model predicts of the first environment's first episode.

    Returns:
      `prediction.png`: rows of what happened, of predictions, and of their difference; nothing for
      an episode of a few steps.
    """
    ends = np.flatnonzero(batch.last[:, 0])
    length = min(int(ends[0]) + 1 if len(ends) else len(batch.last), _MOST_PREDICTED)
    if length < _LEAST_PREDICTED:
        return {}
    episode = jax.tree.map(lambda x: x[:length, :1], dataclasses.replace(batch, memory=None))
    observation = jax.tree.map(lambda x: x[: length + 1, :1], batch.observation)
    episode = dataclasses.replace(episode, observation=observation)
    found = agent.imagine(state, episode, key, length + 1)
    shown = np.unique(np.linspace(0, length, _SHOWN).round().astype(int))
    brightest = float(max(found.observed.max(), found.predicted.max()))
    columns = [compared(found.observed[i], found.predicted[i], brightest) for i in shown]
    seen = int(np.sum(found.steps == 0))
    caption = (
        "the model's prediction: above what happened, in the middle what it expected, below the"
        f" difference; the first {seen} steps were seen, the other {length + 1 - seen} are"
        " predicted from actions alone"
    )
    return {"prediction.png": as_png(list(zip(*columns, strict=True)), caption)}


def compared(
    observed: np.ndarray, predicted: np.ndarray, brightest: float
) -> tuple[UInt8[np.ndarray, "H W 3"], UInt8[np.ndarray, "H W 3"], UInt8[np.ndarray, "H W 3"]]:
    """Return an observation `[H, W, ...]` and its prediction as images, and their difference.

    The number `brightest` is drawn brightest (`as_image`).
    """
    first, second = (as_image(x, brightest) for x in (observed, predicted))
    return first, second, np.abs(first.astype(np.int16) - second).astype(np.uint8)


def prediction_errors(
    reward: np.ndarray, predicted_reward: np.ndarray, end: np.ndarray, predicted_end: np.ndarray
) -> dict[str, float]:
    """Return errors of a world model's rewards and probabilities of an end, of the same steps."""
    return {
        "held_out/reward": float(reward.mean()),
        "held_out/reward_stddev": float(reward.std()),
        "held_out/reward_rmse": float(np.sqrt(np.mean(np.square(predicted_reward - reward)))),
        "held_out/reward_calibration_error": calibration_error(predicted_reward, reward),
        "held_out/ends": float(end.mean()),
        "held_out/ends_calibration_error": calibration_error(predicted_end, end),
    }


def calibration_error(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return the expected calibration error over ten bins with equal numbers of predictions."""
    order = np.argsort(predicted, axis=None, kind="stable")
    bins = (np.array_split(x.ravel()[order], _BINS) for x in (predicted, actual))
    gaps = [len(x) * abs(x.mean() - y.mean()) for x, y in zip(*bins, strict=True) if len(x)]
    return float(sum(gaps) / predicted.size)
