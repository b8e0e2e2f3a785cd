"""Rules of a hub and published weights, by name, in commands."""

import json
import shutil

import pytest

import disco
from disco.rule_sources import sha256_of
from evaluation.config import EvaluationConfig
from evaluation.contenders import rule_contenders
from evaluation.rules import FILE_SHA256
from tests.disco import hub
from tests.golden import WEIGHTS
from tests.launch.common import outcomes_of
from tests.meta.common import small_rule

EVALUATION = ("--suite=catch/4x3", "--config.budget=256", "--config.seeds=1", "--baselines=")


@pytest.mark.slow
def test_a_rule_of_the_hub_is_evaluated_and_goes_on_without_the_hub(tmp_path):
    file, workdir = tmp_path / "rule.npz", tmp_path / "workdir"
    disco.save(small_rule(), file)
    command = ("launch.evaluate", "--rule=hf:someone/catcher@v1", f"--workdir={workdir}")
    with hub.serving({"someone/catcher": {"rule.npz": file.read_bytes()}}) as (environment, _):
        home = {"HF_HOME": str(tmp_path / "home")}
        cases = {"": (*command, *EVALUATION)}
        status, output = outcomes_of(cases, environment=environment | home)[""]
    assert status == 0, output
    manifest = json.loads((workdir / "manifest.json").read_text())
    (source,) = [x["source"] for x in manifest["contenders"] if x["name"] == "catcher"]
    assert source["file"] == "hf:someone/catcher@v1"
    assert source[FILE_SHA256] == sha256_of(file)
    assert (workdir / "rules/catcher.npz").read_bytes() == file.read_bytes()
    assert (workdir / "runs/catcher/catch_4x3/seed_0/result.json").exists()
    offline = {**environment, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "elsewhere")}
    status, output = outcomes_of(cases, environment=offline)[""]
    assert status == 0, output
    assert "2 of 2 runs are finished." in output
    assert f"copy {workdir / 'rules/catcher.npz'} is used." in output


def test_published_weights_are_a_contender_by_name(tmp_path, monkeypatch):
    if not WEIGHTS.is_file():
        pytest.skip(f"no published weights at {WEIGHTS} (set DISCO103_WEIGHTS)")
    monkeypatch.setenv("DISCO_CACHE_DIR", str(tmp_path))
    shutil.copyfile(WEIGHTS, tmp_path / "disco_103.npz")
    (contender,) = rule_contenders(["disco_103"], EvaluationConfig())
    assert contender.name == "disco_103"
    assert contender.source[FILE_SHA256] == sha256_of(WEIGHTS)


def test_rules_of_the_hub_that_would_be_called_alike_are_refused():
    with pytest.raises(ValueError, match="another rule that would also be called 'a_b_v1'"):
        rule_contenders(["hf:a/b@v1", "hf:a/b@v1"], EvaluationConfig())
