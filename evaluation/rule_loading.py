"""Rules by name: read from files, from their copies in a workdir, or made by other packages.

Other packages add rules by entry points of the group `disco.rules`: the entry point has the rule's
name, and is a function that returns the rule (`docs/extending.md`).
"""

import dataclasses
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import disco
from agents import registry
from disco import rule_sources
from disco_common import plugins
from disco_common.terminal import require_printable
from evaluation import folder_names
from evaluation.config import family_of
from evaluation.studies import ablations

PLUGINS = plugins.define("disco.rules", disco.Rule)
FILE_SHA256 = "file_sha256"  # In a contender's source, the hash of its rule's file.

_log = logging.getLogger(__name__)


def copies_in(workdir: str | os.PathLike) -> pathlib.Path:
    """Return the folder in a workdir for copies of rule files, by the contenders' names."""
    return pathlib.Path(workdir) / "rules"


def copy_of_rule(copies: pathlib.Path, contender: str) -> pathlib.Path:
    """Return the path of the copy of a contender's rule file, in a folder of copies."""
    return copies / f"{folder_names.of_contender(contender)}.npz"


def find_plugin(rule: str) -> Callable[..., disco.Rule] | None:
    """Return the function of another package that makes a rule; None if there is none.

    Raises:
      PluginError: (an `ImportError`) if it cannot be imported.
    """
    return None if rule.startswith(rule_sources.HUB) else plugins.find(PLUGINS, rule)


def load(rule: str, copy: pathlib.Path | None) -> tuple[disco.Rule, dict[str, Any], dict[str, str]]:
    """Return a rule, its file's header, and the file's hash for the contender's source.

    Args:
      rule: a name of `disco.rule_sources`, or of a plugin, which has neither header nor hash.
      copy: of the file, to read if the file is gone; None for none.
    """
    if plugin := find_plugin(rule):
        return plugin(), {}, {}
    path = source(rule, copy)
    if path == copy:
        _log.warning("Rule file %r does not exist. The rule's copy %s is used.", rule, copy)
    return *ablations.read(path), {FILE_SHA256: rule_sources.sha256_of(path)}


def with_discount(name: str, rule: disco.Rule, discount: float) -> disco.Rule:
    """Return a rule with another discount.

    Raises:
      ValueError: if it has no such field.
    """
    if not dataclasses.is_dataclass(rule) or "discount" not in {
        field.name for field in dataclasses.fields(rule)
    }:
        raise ValueError(
            f"rule_discount is {discount:g}, but the rule {name!r} has no discount to set; expected"
            " None."
        )
    return dataclasses.replace(rule, discount=discount)


def source(rule: str, copy: pathlib.Path | None) -> pathlib.Path:
    """Return the path of a rule's file, or of its copy if the file is gone."""
    try:
        return rule_sources.find(rule)
    except FileNotFoundError:
        if copy is None or not copy.is_file():
            raise
        return copy


def distinct_names(rules: Sequence[str]) -> list[str]:
    """Return the rules' names: file stems, prefixed by the folder's name where stems are equal."""
    found = [rule_sources.short_names(rule) for rule in rules]
    stems = [stem for stem, _ in found]
    names = [longer if stems.count(stem) > 1 else stem for stem, longer in found]
    for name, rule in zip(names, rules, strict=True):
        require_printable(f"--rule {rule!r}: the name", name)
        if names.count(name) > 1:
            raise ValueError(
                f"--rule names {rule!r} and another rule that would also be called {name!r};"
                " expected files of different names or in folders of different names."
            )
        known = plugins.names(registry.PLUGINS)
        if family_of(name) in known or "@" in name:
            kept = ", ".join(known)
            raise ValueError(
                f"--rule {rule!r} would be called {name!r}, which is kept for other contenders;"
                f" expected a file name without '@' and other than {kept}."
            )
    return names
