"""A report as one HTML file, rendered from the jinja2 templates in `evaluation/templates`.

The file needs no network, follows the reader's light or dark scheme, and fits a phone's width. All
texts are escaped: names are shown literally.

A section is a dataclass that names its template and its heading; the template reads its fields.
Besides jinja2's own filters, templates have

    figure | plot            a Plotly figure, interactive
    rows | data_table        rows (dictionaries of equal keys) as a table that can be sorted,
                             searched, and filtered by each column (DataTables)
    picture | data_uri       a PNG as the source of an image
    seeds | over_seeds       what follows "mean", with errors if there are several seeds
    tasks | interval_legend  what intervals of statistics over so many tasks are over
"""

import base64
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import itables
import jinja2
import pandas as pd
import plotly.graph_objects as go
from itables.javascript import generate_init_offline_itables_html
from itables.utils import find_package_file
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from evaluation.report import plotly_style
from evaluation.report.texts import interval_legend, over_seeds

TEMPLATES = pathlib.Path(__file__).parents[1] / "templates"


@runtime_checkable
class Section(Protocol):
    """A part of a page, with a heading of its own.

    Attributes:
      template: file name in `TEMPLATES`; there the section is called `section`.
    """

    template: ClassVar[str]

    @property
    def heading(self) -> str:
        """The section's heading, and its link's text."""
        ...


def render(title: str, sections: Sequence[Section], remarks: Sequence[str] = ()) -> str:
    """Return the HTML of a page.

    Args:
      title: of the page.
      sections: in order.
      remarks: sentences above the first section.
    """
    return (
        environment()
        .get_template("page.html")
        .render(title=title, sections=sections, remarks=remarks)
    )


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
        "plot": _plot,
        "data_table": _data_table,
        "data_uri": _data_uri,
        "over_seeds": over_seeds,
        "interval_legend": interval_legend,
    }
    made.globals |= {"plotly_js": Markup(get_plotlyjs()), "data_tables": _data_tables_script()}
    return made


def _plot(figure: go.Figure) -> Markup:
    return Markup(plotly_style.to_html(figure))


def _data_table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    html = itables.to_html_datatable(
        pd.DataFrame(rows),
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


def _data_uri(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def _data_tables_script() -> Markup:
    return Markup(generate_init_offline_itables_html(find_package_file("html/dt_bundle.js")))
