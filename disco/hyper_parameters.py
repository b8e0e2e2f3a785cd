"""Ranges of rules' hyper-parameters. Each function raises ValueError, naming the field."""

from typing import Any

# Far beyond what is of use, and far within what float32 and memory hold.
_MOST_BINS = 100_001
_MOST = 1e6


def require_bins(num_bins: Any, *, least: int) -> None:
    """Of a categorical value: an odd number, so that 0 is a bin."""
    if type(num_bins) is not int or num_bins % 2 == 0 or not least <= num_bins <= _MOST_BINS:
        raise ValueError(
            f"num_bins is {num_bins}; expected an odd number of at least {least}, at most"
            f" {_MOST_BINS}."
        )


def require_positive(name: str, value: Any) -> None:
    """A positive number that float32 holds with room to spare."""
    if not 0 < value <= _MOST:
        raise ValueError(f"{name} is {value}; expected a positive number of at most {_MOST:g}.")


def require_fraction(name: str, value: Any) -> None:
    """From 0 to 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; expected 0 to 1.")


def require_cost(name: str, value: Any) -> None:
    """The weight of a term of the loss."""
    if not 0 <= value <= _MOST:
        raise ValueError(f"{name} is {value}; expected at least 0, at most {_MOST:g}.")


def require_num_actions(num_actions: Any) -> None:
    """At least one action."""
    if num_actions < 1:
        raise ValueError(f"num_actions is {num_actions}; expected at least 1.")
