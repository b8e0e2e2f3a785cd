"""A figure as files: PNG for the screen, and SVG for papers."""

import io
import pathlib
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from disco_common.atomic import write_atomically

_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # Names may have dollar signs.
}
# Equal figures are equal files, and letters are shapes, which look alike everywhere.
_SVG: Any = {"svg.hashsalt": "disco", "svg.fonttype": "path"}
_NO_METADATA: Any = {"Date": None, "Creator": None}


def plot_style() -> AbstractContextManager[None]:
    """Return a context in which figures have the project's style.

    It begins at Matplotlib's defaults, since other packages change the style of the process when
    they are imported (bsuite's plots do).
    """
    return style.context(["default", _STYLE])


class Drawing(NamedTuple):
    """A figure of Matplotlib, drawn.

    Attributes:
      png: a PNG file.
      svg: an SVG file.
    """

    png: bytes
    svg: bytes

    @classmethod
    def of(cls, figure: Figure) -> "Drawing":
        """Draw a figure."""
        FigureCanvasAgg(figure)
        with mpl.rc_context(_SVG):
            png, svg = io.BytesIO(), io.BytesIO()
            figure.savefig(png, format="png", dpi=130)
            figure.savefig(svg, format="svg", metadata=_NO_METADATA)
        return cls(png.getvalue(), svg.getvalue())

    def files(self, stem: str) -> dict[str, bytes]:
        """Return the contents by file name, whose stem is given."""
        return {f"{stem}.png": self.png, f"{stem}.svg": self.svg}

    def write(self, folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
        """Write the files to a folder; return their paths.

        Raises:
          OSError: if one cannot be written.
        """
        files = self.files(stem)
        for name, content in files.items():
            write_atomically(folder / name, content)
        return [folder / name for name in files]
