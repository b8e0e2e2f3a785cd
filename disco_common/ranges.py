"""Ranges of numbers, which fields of configuration dataclasses have as a part of their types.

    @dataclasses.dataclass(frozen=True)
    class Settings:
        discount: Fraction = 0.99
        layers: Count = 2

        def __post_init__(self):
            require_ranges(self)

A field that a subclass defines anew keeps its range, or has another one.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

T = TypeVar("T")
LARGEST = 3.4e38  # Of float32.


class Range(NamedTuple):
    """A range of finite numbers.

    Attributes:
      expected: the range in words, for a message.
      contains: returns whether a finite number is in the range.
    """

    expected: str
    contains: Callable[[float], bool]

    def require_value(self, name: str, number: Any) -> None:
        """Raise a `ValueError` with the name, what was found and what was expected."""
        if not (self.contains(number) and is_finite(number)):
            raise ValueError(f"{name} is {number}; expected {self.expected}.")


def is_finite(number: float) -> bool:
    """Return whether a number is finite, also in float32, the precision of all computations."""
    return abs(number) < LARGEST


POSITIVE = Range("a positive number", lambda x: x > 0)
AT_LEAST_0 = Range("at least 0", lambda x: x >= 0)
AT_LEAST_1 = Range("at least 1", lambda x: x >= 1)
FRACTION = Range("0 to 1", lambda x: 0 <= x <= 1)
BELOW_1 = Range("at least 0, below 1", lambda x: 0 <= x < 1)

AtLeast0 = Annotated[T, AT_LEAST_0]
Count = Annotated[int, AT_LEAST_1]
Positive = Annotated[float, POSITIVE]
Fraction = Annotated[float, FRACTION]
Below1 = Annotated[float, BELOW_1]


def require_ranges(settings: Any, prefix: str = "") -> None:
    """Refuse a dataclass whose fields are outside the ranges of their types.

    Args:
      settings: the dataclass. Fields may be of a type with a range, of tuples of it, or None, too,
        which is accepted: `Count`, `tuple[Count, ...]`, `Count | None`, but no optional tuples.
      prefix: put before the names in a message, for example `"agent."`.

    Raises:
      ValueError: naming the field, what was found and what was expected.
    """
    for name, (allowed, is_optional) in _ranges_of(type(settings)).items():
        found = getattr(settings, name)
        if isinstance(found, tuple):
            for i, number in enumerate(found):
                allowed.require_value(f"{prefix}{name}[{i}]", number)
        elif found is not None or not is_optional:
            allowed.require_value(prefix + name, found)


@functools.cache
def _ranges_of(cls: type) -> Mapping[str, tuple[Range, bool]]:
    """Return the ranges of the fields of a class and its bases, and whether they may be None."""
    return {
        name: (allowed, type(None) in typing.get_args(hint))
        for base in reversed(cls.__mro__)
        for name, hint in inspect.get_annotations(base).items()
        for part in (hint, *typing.get_args(hint))
        for allowed in getattr(part, "__metadata__", ())
        if isinstance(allowed, Range)
    }


def divisor_of(name: str, number: int) -> Range:
    """Return the range of the divisors of a setting's number, which are at least 1."""
    return Range(f"a divisor of {name} ({number})", lambda x: x >= 1 and number % x == 0)
