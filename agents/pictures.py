"""Pictures of observations: images, boards, and grids of planes.

They are PNG files. Their text chunk `caption` describes their contents.
"""

import io
import itertools
from collections.abc import Sequence

import jax
import matplotlib
import numpy as np
from jaxtyping import UInt8
from PIL import Image, PngImagePlugin

import environments

CAPTION = "caption"

_LEAST_SIDE = 4
_HEIGHT, _GAP = 64, 2  # Pixels; smaller images are enlarged.
_BACKGROUND, BETWEEN = 24, 128
_TEN_COLOURS = matplotlib.colormaps["tab10"].colors  # pyright: ignore
PLANE_COLOURS = tuple(_TEN_COLOURS[i] for i in (0, 7, 2, 3, 1, 4, 6, 8, 9, 5))
"""Of planes, in order. The second is grey, for the walls of this project's grid-worlds."""


def is_picture(spec: environments.ObservationSpec) -> bool:
    """Return whether observations can be drawn: images, boards, grids of planes."""
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


def strip(observations: np.ndarray, reward: float, num_frames: int, *, is_whole: bool) -> bytes:
    """Return a PNG file of evenly spaced frames of an episode, or of its beginning, in one row.

    Args:
      observations: all observations, the first included, `[steps + 1, H, W, ...]`.
      reward: the sum over the steps.
      num_frames: maximum number of frames.
      is_whole: whether the last observation ends the episode.
    """
    num_steps = len(observations) - 1
    shown = np.unique(np.linspace(0, num_steps, num_frames).round().astype(int))
    whole = "an episode" if is_whole else "the beginning of an episode"
    images = [as_image(observations[i]) for i in shown]
    return as_png([images], f"{whole}: {num_steps} steps, reward {reward:.4g}")


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
