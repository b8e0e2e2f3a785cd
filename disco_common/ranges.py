"""Ranges of numbers, for checks in configuration dataclasses."""

from collections.abc import Callable
from typing import Any, NamedTuple

LARGEST = 3.4e38  # Of float32.


class Range(NamedTuple):
    """A range of finite numbers.

    Attributes:
      expected: the range in words, for a message.
      contains: returns whether a finite number is in the range.
    """

    expected: str
    contains: Callable[[float], bool]

    def require(self, settings: Any, prefix: str, *names: str) -> None:
        """Refuse settings that have a number outside the range.

        Args:
          settings: a dataclass.
          prefix: put before the names in a message, for example `"agent."`.
          *names: fields of the dataclass: numbers, tuples of numbers, or None, which is accepted.

        Raises:
          ValueError: naming the field, what was found and what was expected.
        """
        for name in names:
            found = getattr(settings, name)
            numbers = {name: found}
            if isinstance(found, tuple):
                numbers = {f"{name}[{i}]": number for i, number in enumerate(found)}
            for which, number in numbers.items():
                if number is not None:
                    self.require_value(f"{prefix}{which}", number)

    def require_numbers(self, settings: Any, *names: str) -> None:
        """Refuse fields of a dataclass, each of which is one number; errors are as of `require`."""
        for name in names:
            self.require_value(name, getattr(settings, name))

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


def divisor_of(name: str, number: int) -> Range:
    """Return the range of the divisors of a setting's number, which are at least 1."""
    return Range(f"a divisor of {name} ({number})", lambda x: x >= 1 and number % x == 0)
