"""The time left of jobs of different speed."""

import pytest

from evaluation.pace import Pace, in_words


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def test_the_time_left_knows_that_kinds_differ_in_speed():
    """A random policy of a second, two rules of a minute: what was printed was 2 s left."""
    clock = Clock()
    pace = Pace([("random", 100), ("rule", 100), ("rule", 100)], clock)
    pace.begin()
    assert pace.left() == ""
    clock.seconds = 1.0
    pace.at(100)
    assert pace.left() == "more than 2 s left"
    pace.begin()
    assert pace.left() == "more than 2 s left"
    clock.seconds += 15.0  # It compiles and learns: a quarter of it in 15 s.
    pace.at(25)
    assert pace.left() == "1 min 45 s left"
    clock.seconds += 45.0
    pace.at(100)
    pace.begin()
    assert pace.left() == "1 min 0 s left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.2, "59 s"), (61, "1 min 1 s"), (1_500, "25 min"), (7_500, "2 h 5 min")],
)
def test_seconds_in_words(seconds, words):
    assert in_words(seconds) == words
