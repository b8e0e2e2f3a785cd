"""Environments of Gymnasium on the command line: their arguments."""

import pytest

from environments import EnvironmentNameError
from launch.support import evaluation_flags

LAKE = "gymnasium/FrozenLake-v1"


def test_arguments_become_part_of_names():
    found = evaluation_flags.suites_of(
        f"{LAKE}, catch/5x5", '{"is_slippery": false, "map_name": "8x8"}'
    )
    assert found == [f"{LAKE}?is_slippery=False&map_name=8x8", "catch/5x5"]
    assert evaluation_flags.suites_of(f"{LAKE},catch/5x5", None) == [LAKE, "catch/5x5"]


@pytest.mark.parametrize("text", ["", "is_slippery=false", "[1]", "{"])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError, match=r"--env_kwargs=.*; expected a JSON object"):
        evaluation_flags.suites_of(LAKE, text)


def test_arguments_without_an_environment_that_takes_some_are_refused():
    with pytest.raises(ValueError, match="--suite=catch/5x5,grid57 has none"):
        evaluation_flags.suites_of("catch/5x5,grid57", '{"x": 1}')


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(EnvironmentNameError, match="'x' is inf; expected"):
        evaluation_flags.suites_of(LAKE, '{"x": Infinity}')


def test_the_default_settings_follow_the_observations(monkeypatch):
    flags = ["--suite=gymnasium/CarRacing-v3", '--env_kwargs={"continuous": false}']
    monkeypatch.setattr("sys.argv", ["evaluate", *flags])
    assert evaluation_flags._config_argument("gymnasium/CarRacing-v3") == "images"
