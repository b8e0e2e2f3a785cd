"""Dataclasses that are pytrees, and the paths of leaves."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax

C = TypeVar("C", bound=type)


def static(default: Any) -> Any:
    """Return a field of a pytree's dataclass that is part of its structure, with a default."""
    return dataclasses.field(default=default, metadata={"static": True})


def register_dataclass(cls: C) -> C:
    """Register a dataclass as a pytree: a decorator.

    It does what `jax.tree_util.register_dataclass` does, but structures of different classes
    differ. Those of JAX (0.10 and 0.11) are equal if the classes have the same fields and static
    values. Then a jitted function may run the program that it compiled for an object of one class
    on one of the other, and a method that a subclass overrides has no effect. JAX looks programs
    up by the structure's hash first, which the class is part of, so that this happens rarely.

    Args:
      cls: the class. Its `static` fields are part of the structure, and must be hashable; the
        others are children, in their order.

    Returns:
      The class.
    """
    fields = dataclasses.fields(cls)
    static = [x.name for x in fields if x.metadata.get("static")]
    children = [x.name for x in fields if not x.metadata.get("static")]
    keys = [jax.tree_util.GetAttrKey(name) for name in children]

    def flatten(node: Any) -> tuple[Sequence[Any], tuple[Any, ...]]:
        return [getattr(node, x) for x in children], tuple(getattr(node, x) for x in static)

    def flatten_with_keys(node: Any) -> tuple[Sequence[Any], tuple[Any, ...]]:
        values, structure = flatten(node)
        return list(zip(keys, values, strict=True)), structure

    def unflatten(structure: Iterable[Any], values: Iterable[Any]) -> Any:
        return cls(**dict(zip(children + static, [*values, *structure], strict=True)))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their paths, for example `"params/w"`, in their order."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }
