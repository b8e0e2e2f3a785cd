import dataclasses

import pytest

from disco_common.ranges import AtLeast0, Count, Fraction, require_ranges
from tests.annotations import unchecked


@dataclasses.dataclass(frozen=True)
class Settings:
    """Fields of each kind that may have a range."""

    discount: Fraction = 0.5
    layers: tuple[Count, ...] = (1,)
    steps: AtLeast0[int] | None = None
    name: str = ""

    def __post_init__(self):
        require_ranges(self, "its ")


@dataclasses.dataclass(frozen=True)
class Others(Settings):
    """A class with another default, and a field of its own."""

    discount: float = 0.9
    width: Count = 3


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Settings, {"discount": 1.5}, "^its discount is 1.5; expected 0 to 1.$"),
        (Settings, {"discount": float("nan")}, "its discount is nan; expected 0 to 1"),
        (Settings, {"layers": (2, 0)}, r"its layers\[1\] is 0; expected at least 1"),
        (Settings, {"steps": -1}, "its steps is -1; expected at least 0"),
        (Others, {"discount": -0.5}, "its discount is -0.5; expected 0 to 1"),
        (Others, {"layers": (0,)}, r"its layers\[0\] is 0; expected at least 1"),
        (Others, {"width": 0}, "its width is 0; expected at least 1"),
    ],
)
def test_numbers_out_of_the_range_of_their_type_are_refused(kind, change, message):
    with pytest.raises(ValueError, match=message):
        kind(**change)


@unchecked()
def test_nothing_is_no_number():
    assert Settings(steps=None).steps is None
    with pytest.raises(TypeError):
        Settings(discount=None)  # pyright: ignore[reportArgumentType]
