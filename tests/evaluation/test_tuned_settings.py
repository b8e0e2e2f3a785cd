"""Files of tuned settings: read as they were written, and refused where they do not fit."""

import dataclasses
import json

import pytest

from evaluation import tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.tuned_settings import Tuned, TunedSettings

CONFIG = EvaluationConfig()
SETTINGS = {"learning_rate": 0.0025, "num_epochs": 4}
TUNED = TunedSettings(
    tasks=["catch/5x5"],
    budget=CONFIG.num_steps,
    **tuned_settings.common_settings(CONFIG),
    seed=0,
    contenders={
        "ppo": Tuned(SETTINGS, 0.75, ["num_epochs"], [{"settings": SETTINGS, "score": 0.75}]),
        "mine": Tuned({"replay_ratio": 0.5}, 0.5, [], [], "abc"),
    },
)
PPO = dataclasses.replace(CONFIG, baselines=("ppo_tuned",))


def test_read_as_written(tmp_path):
    path = tmp_path / "tuned.json"
    tuned_settings.write(path, TUNED)
    assert tuned_settings.read(path) == TUNED
    assert tuned_settings.read(path).path == path
    found = TUNED.chosen(PPO, {"mine": "abc", "another": "def"})
    assert found == {"ppo": SETTINGS, "mine": {"replay_ratio": 0.5}}


def test_settings_that_an_older_version_did_not_know_have_their_defaults():
    agent = {**TUNED.agent, "network": dict(TUNED.agent["network"])}
    del agent["frame_stack"], agent["network"]["activation"]
    assert dataclasses.replace(TUNED, agent=agent).chosen(PPO, {}) == {"ppo": SETTINGS}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule_discount": 0.5}, r"for config.rule_discount None; expected 0.5, "),
        ({"budget": 50_000}, "for config.budget 99968; expected 49920"),
        (
            {"agent": dataclasses.replace(CONFIG.agent, unroll_length=8)},
            r"for config.agent.unroll_length 16; expected 8, ",
        ),
        (
            {
                "agent": dataclasses.replace(
                    CONFIG.agent, network=dataclasses.replace(CONFIG.agent.network, torso=(9,))
                )
            },
            r"for config.agent.network .*'torso': \[32\].* expected .*'torso': \[9\]",
        ),
    ],
)
def test_other_budgets_and_agents_are_refused(tmp_path, change, message):
    config = dataclasses.replace(PPO, **change)
    tuned = TUNED
    if "budget" not in change:
        tuned = dataclasses.replace(TUNED, budget=config.num_steps)
    path = tmp_path / "tuned.json"
    tuned_settings.write(path, tuned)
    found = tuned_settings.find(str(path), tmp_path / "run")
    assert found is not None
    with pytest.raises(ValueError, match=f"tuned.json is {message}"):
        found.chosen(config, {})
    with pytest.raises(ValueError, match=f"tuned.json is {message}"):
        found.chosen(dataclasses.replace(config, baselines=()), {"mine": "abc"})


def test_a_baseline_that_was_not_tuned_is_named():
    config = dataclasses.replace(CONFIG, baselines=("ppo_tuned", "dpo_tuned"))
    with pytest.raises(ValueError, match=r"no settings for \['dpo'\]; it has some for \['mine'"):
        TUNED.chosen(config, {})


def test_settings_of_another_rule_of_the_same_name_do_not_fit():
    message = r"for another rule 'mine' \(parameters_sha256 'abc'\); expected 'def'"
    with pytest.raises(ValueError, match=message):
        TUNED.chosen(PPO, {"mine": "def"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2; expected 1"),
        ({"format": ...}, "has format None; expected 1"),
        ({"budget": "x"}, "no file of tuned settings: 'budget' is 'x'; expected int"),
        ({"budget": True}, "'budget' is True; expected int"),
        ({"tasks": ...}, "it lacks 'tasks'"),
        ({"contenders": {"ppo": 7}}, "it lacks 'settings'"),
        (
            {
                "contenders": {
                    "ppo": {
                        "settings": {"num_epochs": "x"},
                        "score": 1.0,
                        "at_the_edge": [],
                        "trials": [],
                    }
                }
            },
            "the setting 'num_epochs' is 'x'; expected a number",
        ),
        ({"contenders": {"ppo": {"settings": {}, "score": None}}}, "'score' is None; expected fl"),
    ],
)
def test_damaged_files_are_refused_in_a_sentence_that_names_them(tmp_path, change, message):
    path = tmp_path / "tuned.json"
    tuned_settings.write(path, TUNED)
    found = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({name: x for name, x in found.items() if x is not ...}))
    with pytest.raises(ValueError, match=f"tuned.json .*{message}"):
        tuned_settings.read(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_files_that_are_no_json_object_are_refused(tmp_path, content):
    path = tmp_path / "tuned.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tuned\.json"):
        tuned_settings.read(path)
