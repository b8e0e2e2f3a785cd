"""Fingerprints of rules, by which an evaluation knows them again."""

import dataclasses
import hashlib
import json
from typing import Any

import jax
import numpy as np

import disco


def fingerprint(rule: disco.Rule) -> str:
    """Return a hash of a rule's class, its parameters, and its settings that are not the default.

    A setting that a later version adds therefore does not change it. All forms of a discovered rule
    count as one class: they were one in older versions.

    Raises:
      ValueError: if its class is no dataclass.
    """
    if not dataclasses.is_dataclass(rule):
        raise ValueError(f"The rule is of {type(rule).__name__}; expected a dataclass.")
    leaves = jax.tree.flatten_with_path(rule)[0]
    name = type(rule).__name__
    if isinstance(rule, disco.DiscoveredRule):
        name = disco.DiscoveredRule.__name__
    digest = hashlib.sha256(name.encode())
    digest.update(json.dumps(_own_settings(rule), sort_keys=True).encode())
    for path, leaf in leaves:
        digest.update(jax.tree_util.keystr(path).encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _own_settings(rule: Any) -> dict[str, Any]:
    """Return the static fields that are not the default, also of nested dataclasses."""
    found = {}
    for field in dataclasses.fields(rule):
        value = getattr(rule, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = [type(value).__name__, _own_settings(value)]
        elif isinstance(value, bool | int | float | str | tuple | None) and value != field.default:
            found[field.name] = value
    return found
