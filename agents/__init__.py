"""Agents, and their common parts: protocol, networks, optimisers."""

import importlib.util

from environments.errors import MissingPackageError, how_to_install

if importlib.util.find_spec("haiku") is None:
    raise MissingPackageError(
        "Agents, discovery and evaluation need packages that a rule as a library does not."
        f" {how_to_install('platform')}"
    )
