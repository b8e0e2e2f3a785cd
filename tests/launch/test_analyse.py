"""The command that analyses a rule: what it refuses before an agent learns."""

import json

import pytest

from tests.launch.common import outcomes

REFUSED = {
    "another run": (
        ["--workdir={other}"],
        "is of a run with another config: command is 'evaluate' there and 'analyse' here",
    ),
    "file": (["--workdir={file}"], "file' is not a folder."),
    "damaged": (["--workdir={damaged}"], "damaged' cannot be used: "),
    "steps": (["--workdir={new}", "--steps=10"], "steps is 10; expected at least 100."),
    "suite": (["--workdir={new}", "--suite=catch/5"], "'5'"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyses")
    places = {name: folder / name for name in ("other", "file", "damaged", "new")}
    places["file"].touch()
    for name, text in {"other": json.dumps({"command": "evaluate"}), "damaged": "{"}.items():
        places[name].mkdir()
        (places[name] / "config.json").write_text(text)
    # So small that a command that refuses nothing ends soon.
    small = ["--rule=grid57", "--suite=catch/4x3", "--config.budget=256", "--config.seeds=1"]
    cases = {
        name: [*small, *(argument.format(**places) for argument in arguments)]
        for name, (arguments, _) in REFUSED.items()
    }
    return places, outcomes("launch.analyse", cases)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_an_agent_learns(refusals, name):
    places, outcome = refusals[0], refusals[1][name]
    status, output = outcome
    assert REFUSED[name][1] in output
    assert "Traceback" not in output
    assert "compiling" not in output
    assert status == 2
    assert not places["new"].exists()
