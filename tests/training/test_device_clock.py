"""The share of time in which a device computes nothing."""

import time

import pytest

from training import host_pipeline
from training.host_pipeline import DeviceClock


@pytest.fixture
def clock(monkeypatch):
    """Its computations are times at which they are done."""

    def when_done(at):
        time.sleep(max(0.0, at - time.monotonic()))
        return at

    monkeypatch.setattr(host_pipeline, "_when_done", when_done)
    clock = DeviceClock()
    yield clock
    clock.close()


def busy(clock, seconds):
    clock.follow(lambda: time.monotonic() + seconds, lambda at: at)


def test_computations_that_overlap_count_once(clock):
    busy(clock, 1.0)
    busy(clock, 0.5)
    time.sleep(2.0)
    assert clock.idle_fraction() == pytest.approx(0.5, abs=0.2)


def test_gaps_are_idle_and_each_look_begins_anew(clock):
    time.sleep(1.0)
    busy(clock, 1.0)
    assert clock.idle_fraction() == pytest.approx(0.5, abs=0.2)
    busy(clock, 1.0)
    assert clock.idle_fraction() == pytest.approx(0.0, abs=0.2)
