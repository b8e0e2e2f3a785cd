"""The documentation's site: `make docs` builds it into `docs/_build/html`.

The build needs no network. With `DISCO_DOCS_INTERSPHINX=1` names of other packages in the API
reference are links to their documentation, whose inventories are fetched.
"""

import os
import pathlib
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]
# Of the notebooks' kernels, which start in the folder of their page.
os.environ["PYTHONPATH"] = str(ROOT)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.pop("MPLBACKEND", None)  # With another one than the kernels' own, plots are not shown.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / "docs" / "_build" / "jax_cache"))

import disco  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "disco"
author = "The disco authors"
copyright = "2025, the disco authors; Apache-2.0"
version = release = disco.__version__

extensions = [
    "myst_nb",
    "repository_files",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
nitpicky = True

# Pages.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # A page may skip a level of headings.
myst_links_external_new_tab = False

# Notebooks: executed at each build, and a cell that fails is an error.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# API reference.
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # Docstrings state shapes and dtypes.
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
default_role = "code"  # Docstrings have single backquotes.
# Names of this project must lead somewhere, but for a few that are not of its interface.
nitpick_ignore_regex = [
    ("py:.*", r"(?!(agents|disco|environments|evaluation)\.).*"),
    ("py:class", r"disco\.hand_designed_rules\._.*"),
    ("py:class", r"disco\.(meta_network\.LifetimeState|moments\.Moments)"),
]
add_module_names = False
doctest_test_doctest_blocks = ""  # Only blocks that say so; these run in one namespace a page.

repository_url = PROJECT.get("urls", {}).get("Repository", "")
repository_pages = {"README.md": "index"} | {
    f"disco/zoo/{name}.md": f"zoo/{name}" for name in disco.zoo()
}

if os.environ.get("DISCO_DOCS_INTERSPHINX") == "1":
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
        "optax": ("https://optax.readthedocs.io/en/latest", None),
    }

# Theme.
html_theme = "furo"
html_title = "disco"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
