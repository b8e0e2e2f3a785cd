"""A report as one HTML file, rendered from the jinja2 templates in `evaluation/templates`.

The file needs no network and no script, follows the reader's light or dark scheme, and fits a
phone's width. All texts are escaped: names are shown literally.

A section is a dataclass that names its template and has its figures; the template reads its fields.
Besides jinja2's own filters, templates have

    picture | data_uri       a PNG as the source of an image
    name | file_name, seeds | over_seeds
                             functions of `evaluation.report.tables`

and the modules `tables` and `paper_tables`.
"""

import base64
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jinja2
import matplotlib.colors

from agents.pictures import PLANE_COLOURS
from evaluation.report import paper_tables, tables
from evaluation.report.drawing import Drawing

TEMPLATES = pathlib.Path(__file__).parents[1] / "templates"

Row = Mapping[str, Any]
"""A row of a table. The keys of the first row are the table's header."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page, with a heading of its own.

    Attributes:
      template: file name in `TEMPLATES`; there the section is called `section`.
      name: of what it shows; also the beginning of its files' names.
      plots: its figures, by name.
    """

    template: ClassVar[str]
    name: str
    plots: Mapping[str, Drawing] = dataclasses.field(default_factory=dict)

    @property
    def heading(self) -> str:
        """The section's heading, and its link's text."""
        return self.name

    def stem(self, plot: str) -> str:
        """Return the name of a figure's files, without their suffix."""
        return f"{tables.file_name(self.name)}_{plot}"


def render(title: str, sections: Sequence[Section], remarks: Sequence[str] = ()) -> str:
    """Return the HTML of a page; the remarks are sentences above its first section."""
    page = environment().get_template("page.html")
    return page.render(title=title, sections=sections, remarks=remarks)


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates, which escapes all texts."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "data_uri": lambda x: f"data:image/png;base64,{base64.b64encode(x).decode()}",
        "file_name": tables.file_name,
        "over_seeds": tables.over_seeds,
    }
    made.globals |= {
        "paper_tables": paper_tables,
        "plane_colours": list(map(matplotlib.colors.to_hex, PLANE_COLOURS)),
        "tables": tables,
    }
    return made
