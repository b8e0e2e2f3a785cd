"""The command that evolves a rule's prior: what it writes, and what it refuses."""

import signal
import time

import pytest

import disco
from disco_common import stopping
from tests.evaluation.studies.test_evolution import rule
from tests.launch.common import outcome, outcomes, start
from tests.launch.tiny_runs import wait_until

SMALL = ("--suite=catch/5x5", "--config.budget=2560", "--population=4", "--tasks=1")
REFUSED = {
    "rule": (["--rule=grid57"], "policy prior are not outputs that read the age"),
    "host": (["--suite=crafter/reward"], "simulated on the host"),
    "references": (["--suite=catch/5x5,catch/8x8", "--tasks=9"], "expected at least num_tasks (9)"),
    "sigma": (["--sigma=0"], "sigma is 0.0; expected"),
    "population": (["--population=3"], "population"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evolutions")
    start = folder / "start.npz"
    disco.save(rule(), start, {"probe_score": 0.5, "seed": 7})
    base = [f"--rule={start}", *SMALL]
    made = [*base, f"--workdir={folder / 'made'}"]
    first = outcomes("launch.evolve", {"one": [*made, "--generations=1"]})
    again = outcomes("launch.evolve", {"two": [*made, "--generations=2"]})
    new = folder / "new"
    cases = {name: [*base, f"--workdir={new}", *changed] for name, (changed, _) in REFUSED.items()}
    return folder, first | again | outcomes("launch.evolve", cases)


def test_it_writes_a_rule_and_continues(ended):
    folder, found = ended
    made = folder / "made"
    for name, generations in (("one", 1), ("two", 2)):
        status, output = found[name]
        assert status == 0, output
        assert f"Generation {generations} of {generations}" in output
    assert {path.name for path in (made / "generations").iterdir()} == {"0000.json", "0001.json"}
    assert len((made / "evolution.csv").read_text().splitlines()) == 3
    assert (made / "evolution.png").read_bytes().startswith(b"\x89PNG")
    assert disco.load(made / "rule.npz").sizes == rule().sizes
    provenance = disco.load_header(made / "rule.npz")["provenance"]
    assert provenance["evolution"]["generations"] == 2
    assert provenance["evolution"]["environment_steps"] == 2 * 4 * 2_560
    assert "probe_score" not in provenance
    assert provenance["agent"]["learning_rate"] > 0.0


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_an_agent_learns(ended, name):
    folder, found = ended
    status, output = found[name]
    assert REFUSED[name][1] in output
    assert "Traceback" not in output
    assert status in (1, 2)  # 1 where absl refuses a flag.
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_a_stop_while_a_generation_is_compiled_is_in_time(tmp_path):
    """Nothing of it could be saved."""
    file, workdir = tmp_path / "start.npz", tmp_path / "run"
    disco.save(rule(), file)
    arguments = [f"--rule={file}", *SMALL, f"--workdir={workdir}"]
    process = start("launch.evolve", *arguments, JAX_ENABLE_COMPILATION_CACHE="false")
    wait_until(process, lambda: (workdir / "generations").exists())
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    status, output = outcome(process)
    assert (status, "Traceback" in output) == (143, False), output
    assert time.monotonic() - began < stopping.SECONDS + 4.0
