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
    clock.seconds += 10.0  # It compiles.
    pace.at(1)
    assert pace.left() == "more than 2 s left"
    clock.seconds += 15.0  # It learns: a quarter of it in 15 s.
    pace.at(26)
    assert pace.left() == "1 min 44 s left"
    clock.seconds += 44.4
    pace.at(100)
    pace.begin()
    assert pace.left() == "1 min 0 s left"


def test_jobs_that_go_on_are_not_taken_for_fast_ones():
    """Half of the first one was made earlier: its first report says so at once."""
    clock = Clock()
    pace = Pace([("rule", 100), ("rule", 100)], clock)
    pace.begin()
    clock.seconds = 1.0
    pace.at(50)
    assert pace.left() == ""
    clock.seconds += 10.0
    pace.at(60)
    assert pace.left() == "2 min 20 s left"


def test_a_job_that_is_begun_again_and_one_without_units_spoil_no_estimate():
    clock = Clock()
    pace = Pace([("empty", 10), ("rule", 100)], clock)
    pace.begin()
    clock.seconds = 1.0
    pace.at(0)
    pace.begin()
    assert pace.left() == ""
    for seconds, units in ((5.0, 20), (15.0, 30), (20.0, 10), (30.0, 20)):
        clock.seconds = seconds
        pace.at(units)
    assert pace.left() == "1 min 20 s left"


def test_jobs_of_one_report_are_known_when_they_end():
    clock = Clock()
    pace = Pace([("short", 10)] * 3, clock)
    for left in ("", "10 s left", "5 s left"):
        pace.begin()
        assert pace.left() == left
        clock.seconds += 5.0
        pace.at(10)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.2, "59 s"), (61, "1 min 1 s"), (1_500, "25 min"), (7_500, "2 h 5 min")],
)
def test_seconds_in_words(seconds, words):
    assert in_words(seconds) == words


def test_more_than_nothing_is_not_said():
    clock = Clock()
    pace = Pace([("random", 100), ("rule", 100)], clock)
    pace.begin()
    clock.seconds = 0.2
    pace.at(100)
    pace.begin()
    assert pace.left() == ""
