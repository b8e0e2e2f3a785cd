"""Pictures of a terminal's text."""

import functools
import pathlib

import matplotlib
import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image, ImageDraw, ImageFont

_SIZE = 12  # Of the font, in pixels.
# The sixteen colours of a terminal, those of VGA; its blue is too dark to read on black.
_COLOURS = (
    *((85, 85, 85), (170, 0, 0), (0, 170, 0), (170, 85, 0)),
    *((85, 85, 255), (170, 0, 170), (0, 170, 170), (170, 170, 170)),
    *((85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85)),
    *((120, 120, 255), (255, 85, 255), (85, 255, 255), (255, 255, 255)),
)


def draw_terminal(
    characters: Integer[np.ndarray, "rows columns"], colours: Integer[np.ndarray, "rows columns"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw a terminal's characters, bytes of Latin-1, in their colours, of 0 to 15."""
    font, (width, height) = _font()
    rows, columns = characters.shape
    image = Image.new("RGB", (columns * width, rows * height))
    draw = ImageDraw.Draw(image)
    for row, column in zip(*np.nonzero((characters > 32) & (characters != 127)), strict=True):
        text = chr(int(characters[row, column]))
        colour = _COLOURS[int(colours[row, column]) % len(_COLOURS)]
        draw.text((column * width, row * height), text, fill=colour, font=font)
    return np.asarray(image)


@functools.cache
def _font() -> tuple[ImageFont.FreeTypeFont, tuple[int, int]]:
    """Return Matplotlib's font of equally wide characters, and the size of one."""
    path = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
    font = ImageFont.truetype(str(path), _SIZE)
    ascent, descent = font.getmetrics()
    return font, (round(font.getlength("M")), ascent + descent)
