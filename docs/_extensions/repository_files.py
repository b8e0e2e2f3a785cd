"""Links to the repository's files, a check of all links of the site, and code in docstrings.

A relative link of a page to a file or folder that is no page leads to the public repository where
`repository_url` names one, otherwise to a copy in the site, with highlighted code. Files that pages
include lead to these pages (`repository_pages`).
"""

import html
import html.parser
import os
import pathlib
import urllib.parse
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = "source"  # Of the copies, in the site.
LEXERS = {".py": "python", ".md": "markdown", ".yaml": "yaml", ".json": "json", ".sh": "bash"}
LEXERS |= {".sbatch": "bash", ".toml": "toml", "Makefile": "make"}


class RepositoryLinks(SphinxTransform):
    """Replaces links to the repository's files in a page that has been read."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Replace the links of the current page."""
        downloads = self.document.findall(addnodes.download_reference)
        for node in [*downloads, *self.document.findall(addnodes.pending_xref)]:
            path = self._path(node) if node.get("reftype") == "myst" else None
            if path is not None and path.exists() and path.is_relative_to(ROOT):
                node.replace_self(self._link(node, path.relative_to(ROOT)))

    def _path(self, node: nodes.Element) -> pathlib.Path | None:
        """Return the file or folder that a link leads to, or None for another kind of link."""
        target = node["reftarget"]
        if node.get("refdomain") == "doc":
            is_page = target in self.env.found_docs
            return None if is_page else self.env.srcdir / f"{target}.md"
        folder = (self.env.srcdir / self.env.docname).parent
        return pathlib.Path(os.path.normpath(folder / urllib.parse.unquote(target)))

    def _link(self, node: nodes.Element, path: pathlib.Path) -> nodes.Element:
        page = self.config.repository_pages.get(path.as_posix())
        if page is not None:
            wanted = {"refdomain": "doc", "reftype": "myst", "refexplicit": True}
            link: nodes.Element = addnodes.pending_xref(
                refdoc=self.env.docname,
                reftarget=page,
                reftargetid=node.get("reftargetid"),
                **wanted,
            )
        elif self.config.repository_url:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            link = nodes.reference(refuri=f"{self.config.repository_url}/{kind}/main/{path}")
        else:
            _linked(self.env).setdefault(self.env.docname, set()).add(path.as_posix())
            up = "../" * self.env.docname.count("/")
            link = nodes.reference(refuri=f"{up}{_page(path)}.html", internal=True)
        text = node.astext()
        inner = nodes.literal(text, text) if node.findall(nodes.literal) else nodes.inline("", text)
        link += node.children or [inner]
        return link


def _linked(env: BuildEnvironment) -> dict[str, set[str]]:
    """Return the files and folders that each page links to."""
    if not hasattr(env, "repository_files"):
        env.repository_files = {}  # pyright: ignore[reportAttributeAccessIssue]
    return env.repository_files  # pyright: ignore[reportAttributeAccessIssue]


def _page(path: pathlib.Path) -> str:
    """Return the name of a copy's page."""
    folder = (ROOT / path).is_dir()
    return f"{FOLDER}/{path.as_posix()}/index" if folder else f"{FOLDER}/{path.as_posix()}"


def copies(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file and folder that is linked to."""
    paths = {pathlib.Path(path) for group in _linked(app.env).values() for path in group}
    for path in [path for path in paths if (ROOT / path).is_dir()]:
        inside = sorted(x for x in (ROOT / path).iterdir() if x.is_file() and _is_text(x))
        paths |= {x.relative_to(ROOT) for x in inside}
        items = "".join(
            f'<li><a href="{html.escape(x.name)}.html">{html.escape(x.name)}</a></li>'
            for x in inside
        )
        yield _page(path), _context(path, f"<ul>{items}</ul>"), "page.html"
    for path in sorted(path for path in paths if (ROOT / path).is_file()):
        text = (ROOT / path).read_text(encoding="utf-8")
        lexer = LEXERS.get(path.suffix, LEXERS.get(path.name, "text"))
        code = app.builder.highlighter.highlight_block(text, lexer)  # pyright: ignore[reportAttributeAccessIssue]
        yield _page(path), _context(path, code), "page.html"


def _context(path: pathlib.Path, body: str) -> dict[str, Any]:
    title = html.escape(path.as_posix())
    return {"title": title, "body": f"<h1><code>{title}</code></h1>{body}"}


def _is_text(path: pathlib.Path) -> bool:
    return path.suffix in LEXERS or path.name in LEXERS


class _Links(html.parser.HTMLParser):
    """The relative links of a page, and the names that links to it may end in."""

    def __init__(self, text: str):
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values.get("id") or "", values.get("name") or ""}
        for name in ("href", "src"):
            link = values.get(name)
            if link and not urllib.parse.urlparse(link).scheme and not link.startswith("//"):
                self.links.add(link)


def check_links(app: Sphinx, exception: Exception | None) -> None:
    """Warn of each relative link of the site that leads nowhere."""
    if exception is not None or app.builder.format != "html":
        return
    folder = pathlib.Path(app.outdir)
    pages = {
        path: _Links(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.html")
        if "_static" not in path.parts
    }
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urllib.parse.urlparse(link)
            target = path
            if parts.path:
                target = pathlib.Path(
                    os.path.normpath(path.parent / urllib.parse.unquote(parts.path))
                )
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists():
                LOGGER.warning("%s links to %s, which is not there", path, link, type="links")
            elif target in pages and anchor not in pages[target].anchors:
                LOGGER.warning("%s links to %s, which has no %r", path, link, anchor, type="links")


def mark_code(
    app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """Mark indented blocks of a docstring as code, as reStructuredText wants it."""
    marked, before = [], ""
    for line in lines:
        if line.startswith("    ") and marked and not marked[-1] and not before.startswith(" "):
            marked += ["::", ""]
        if line:
            before = line
        marked.append(line)
    lines[:] = marked


def _forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _linked(env).pop(docname, None)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform, the copies and the check."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_config_value("repository_url", "", "env")
    app.add_config_value("repository_pages", {}, "env")
    app.add_transform(RepositoryLinks)
    app.connect("autodoc-process-docstring", mark_code, priority=100)  # Before Napoleon.
    app.connect("env-purge-doc", _forget)
    app.connect("html-collect-pages", copies)
    app.connect("build-finished", check_links)
    return {"parallel_read_safe": False}
