"""A report as one HTML file, rendered from the jinja2 templates in `evaluation/templates`.

The file needs no network, follows the reader's light or dark scheme, and fits a phone's width. All
texts are escaped: names are shown literally.

A section is a dataclass that names its template and has its figures; the template reads its fields.
Besides jinja2's own filters, templates have

    rows | data_table        rows (dictionaries of equal keys) as a table that can be sorted,
                             searched, and filtered by each column (DataTables)
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

import itables
import jinja2
import matplotlib.colors
import pandas as pd
from itables.javascript import generate_init_offline_itables_html
from itables.utils import find_package_file
from markupsafe import Markup

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
        "data_table": _data_table,
        "data_uri": lambda x: f"data:image/png;base64,{base64.b64encode(x).decode()}",
        "file_name": tables.file_name,
        "over_seeds": tables.over_seeds,
    }
    made.globals |= {
        "data_tables": Markup(
            generate_init_offline_itables_html(find_package_file("html/dt_bundle.js"))
        ),
        "paper_tables": paper_tables,
        "plane_colours": list(map(matplotlib.colors.to_hex, PLANE_COLOURS)),
        "tables": tables,
    }
    return made


def _data_table(rows: Sequence[Row]) -> Markup:
    html = itables.to_html_datatable(
        pd.DataFrame([{k: "" if x is None else x for k, x in row.items()} for row in rows]),
        showIndex=False,
        connected=False,
        column_filters="footer",
        display_logo_when_loading=False,
        maxBytes=0,
        pageLength=25,
        lengthMenu=[25, 100, -1],
        classes="display compact",
    )
    return Markup(html)
