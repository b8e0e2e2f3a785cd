"""`python -m launch`: the commands, and names."""

import importlib

import pytest

import disco
from environments import registry

main = importlib.import_module("launch.__main__").main


def test_all_commands_are_listed(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    for command in ("discover", "evaluate", "export", "report", "tune", "watch"):
        assert f"python -m launch.{command} " in shown
    assert "Film the agent of a finished run." in shown
    assert "launch.support.workdirs" not in shown


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("suites", [*registry.suites()]),
        ("environments", [*registry.names()]),
        ("rules", [*disco.zoo(), "disco_103"]),
        ("agents", ["actor_critic", "dreamer", "iris", "muesli", "muzero", "ppo", "random"]),
    ],
)
def test_names(kind, expected, capsys):
    assert main([kind]) == 0
    assert set(expected) <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [["suite"], ["rules", "agents"]])
def test_unknown_words(arguments, capsys):
    assert main(arguments) == 2
    assert f"There is no {' '.join(arguments)!r}; expected" in capsys.readouterr().err
