"""The command that discovers with several seeds at once."""

import pytest

import disco
from tests.launch.common import TINY, outcomes


@pytest.mark.thorough
def test_each_seed_has_a_rule_and_a_second_call_keeps_them(tmp_path):
    arguments = [TINY, "--config.meta_steps=2", "--seeds=2", f"--output={tmp_path}", "--name=a"]
    made = outcomes("benchmarks.discover_seeds", {"first": arguments})
    assert made["first"][0] == 0, made
    files = [tmp_path / "a-0.npz", tmp_path / "a-1.npz"]
    for seed, file in enumerate(files):
        provenance = disco.load_header(file)["provenance"]
        assert provenance["seed"] == seed
        assert provenance["meta_steps"] == 2
        assert sum(provenance["tasks"].values()) == provenance["environment_steps"]
        disco.load(file)
    before = [file.read_bytes() for file in files]
    assert before[0] != before[1]
    status, output = outcomes("benchmarks.discover_seeds", {"again": arguments})["again"]
    assert status == 0
    assert "are there" in output
    assert [file.read_bytes() for file in files] == before
