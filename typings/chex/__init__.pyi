"""What a type checker must know of chex: that its `dataclass` makes dataclasses."""

from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")

Array = Any
ArrayTree = Any
Numeric = Any
PRNGKey = Any

@overload
@dataclass_transform(kw_only_default=True)
def dataclass(cls: type[_T], /) -> type[_T]: ...
@overload
@dataclass_transform(kw_only_default=True)
def dataclass(
    *,
    init: bool = ...,
    repr: bool = ...,
    eq: bool = ...,
    order: bool = ...,
    unsafe_hash: bool = ...,
    frozen: bool = ...,
    kw_only: bool = ...,
    mappable_dataclass: bool = ...,
) -> Callable[[type[_T]], type[_T]]: ...
def __getattr__(name: str) -> Any: ...
