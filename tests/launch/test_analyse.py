"""The command that analyses a rule: what it refuses, what it keeps, and how it stops."""

import json
import signal

import pytest

import disco
from tests.launch.common import outcome, outcomes, start
from tests.launch.tiny_runs import wait_until
from tests.meta.common import small_rule

REFUSED = {
    "another run": (
        ["--workdir={other}"],
        "is of a run with another config: command is 'evaluate' there and 'analyse' here",
    ),
    "file": (["--workdir={file}"], "file' is not a folder."),
    "damaged": (["--workdir={damaged}"], "damaged' cannot be used: "),
    "steps": (["--workdir={new}", "--steps=10"], "steps is 10; expected at least 100."),
    "suite": (["--workdir={new}", "--suite=catch/5"], "'5'"),
    "arguments": (["--workdir={new}", "--env_kwargs=7"], "--env_kwargs=7; expected a JSON object"),
    "baselines": (
        ["--workdir={new}", "--config.baselines=('ppo',)"],
        "--config.baselines is given, and an analysis reads none; expected --rule alone.",
    ),
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


def test_the_rule_is_copied_and_the_copy_is_read(tmp_path):
    """It ends before an agent learns, as a file is where the evaluation's folder should be."""
    file, workdir = tmp_path / "mine.npz", tmp_path / "run"
    disco.save(small_rule(), file)
    workdir.mkdir()
    (workdir / "evaluation").touch()
    arguments = [f"--rule={file}", "--suite=catch/4x3", f"--workdir={workdir}"]
    ((status, output),) = outcomes("launch.analyse", {"there": arguments}).values()
    assert (status, "evaluation" in output) == (2, True), output
    assert (workdir / "rules" / "mine.npz").read_bytes() == file.read_bytes()
    file.unlink()
    ((status, output),) = outcomes("launch.analyse", {"gone": arguments}).values()
    assert f"The rule's copy {workdir / 'rules' / 'mine.npz'} is used." in output
    assert status == 2


@pytest.mark.slow
def test_sigterm_writes_a_checkpoint(tmp_path):
    """The random policy's runs, which are short, come first."""
    config = ["--config.budget=200000", "--config.seeds=1", "--config.updates_per_call=5"]
    arguments = ["--rule=grid57", "--suite=catch/4x3", f"--workdir={tmp_path}", *config]
    process, runs = start("launch.analyse", *arguments), tmp_path / "evaluation"
    wait_until(process, lambda: any(runs.glob("runs/grid57/*/*/metrics.jsonl")))
    process.send_signal(signal.SIGTERM)
    status, output = outcome(process)
    assert (status, "Traceback" in output) == (143, False), output
    assert any(runs.glob("unfinished/*/checkpoints/*"))
