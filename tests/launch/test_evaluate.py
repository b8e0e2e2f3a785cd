"""The command's exit statuses and messages."""

import json

import pytest

from tests.launch.common import outcomes

# Refused before anything is compiled.
REFUSED = {
    "suite": (["--suite=no_such_suite"], "no_such_suite"),
    "environment": (["--suite=catch/5x5,grid57/no_such_task"], "grid57/no_such_task"),
    "rule": (["--rule=nowhere.npz"], "'nowhere.npz' does not exist"),
    "field": (["--config.no_such_field=1"], "no field 'no_such_field'. --print_config lists"),
    "nested field": (["--config.agent.speed=1"], "no field 'agent.speed'"),
    "value": (["--config.seeds=many"], "seeds"),
    "range": (["--config.seeds=0"], "seeds is 0; expected at least 1"),
    "family": (
        ["--config=launch/configs/evaluate_paper.py:foo"],
        "family of environments 'foo' is not",
    ),
    "budget": (["--config.budget=1"], "expected at least one update's 128"),
    "workdir": (["--workdir={file}/below"], "file"),
    "other": (["--workdir={other}"], "config.budget"),
    "address": (
        ["--executor=ray", "--ray_address=127.0.0.1:1"],
        "There is no Ray cluster at --ray_address=127.0.0.1:1 that accepts this process; tried"
        " 127.0.0.1:1 (ConnectionRefusedError",
    ),
    "size of an agent": (
        ["--agent=dreamer/v1,12m"],
        "'12m' does not say which Dreamer; expected at most one of each of version: nature,"
        " v1; size: 1m, xs, s, m, l, xl",
    ),
    "executor": (["--ray_address=auto"], "--ray_address is for --executor=ray"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workdirs")
    (folder / "file").touch()
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text(json.dumps({"config": {"budget": 3}}))
    places = {"file": folder / "file", "other": folder / "other"}
    cases = {
        name: [f"--workdir={folder / name}", *(argument.format(**places) for argument in arguments)]
        for name, (arguments, _) in REFUSED.items()
    }
    return outcomes("launch.evaluate", cases)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(refusals, name):
    status, output = refusals[name]
    assert REFUSED[name][1] in output
    assert "Traceback" not in output
    assert status == (1 if name == "value" else 2)  # absl's own status for a flag's value is 1.
