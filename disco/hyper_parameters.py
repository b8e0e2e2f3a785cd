"""Ranges of the hyper-parameters of rules, in addition to those of `disco_common.ranges`."""

from disco_common.ranges import Range

# Far beyond useful values, and far within the range of float32 and the memory of a machine.
_MAX_BINS = 100_001
_MAX = 1e6

POSITIVE = Range(f"a positive number of at most {_MAX:g}", lambda x: 0 < x <= _MAX)
COST = Range(f"at least 0, at most {_MAX:g}", lambda x: 0 <= x <= _MAX)


def odd_number(*, at_least: int) -> Range:
    """Return the range of numbers of bins of a categorical value: odd, so that 0 is a bin."""
    return Range(
        f"an odd number of at least {at_least}, at most {_MAX_BINS}",
        lambda x: type(x) is int and x % 2 == 1 and at_least <= x <= _MAX_BINS,
    )
