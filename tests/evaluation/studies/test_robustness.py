import csv
import dataclasses
import json

import pytest

import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    make_contenders,
    rule_contenders,
)
from evaluation.evaluate import Experiment
from evaluation.report.html_report import write_report
from evaluation.report.stored import merge, read_manifest
from evaluation.studies import robustness
from evaluation.studies.robustness import OPTIMIZER, REPLAY, SIZE, Variation, variations
from tests.evaluation import common

CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(8,), channels=(), model=4, head=(8,)),
        learning_rate=3e-3,
        num_environments=2,
        unroll_length=8,
        batch_size=2,
        replay_ratio=0.0,
        replay_capacity=40,
    ),
    seeds=2,
    budget=64,
    num_points=2,
    baselines=("hand_set", "ppo"),
)


def agent_of(variation: Variation) -> RuleAgentConfig:
    return variation.contender.configured.config.agent


def test_each_setting_is_varied_alone():
    found = variations(make_contenders(rule_contenders(["grid57"], CONFIG), CONFIG))
    assert len(found) == 2 * (5 + 5 + 36)
    # Each contender's own settings are on all three axes.
    assert len({x.contender.name for x in found}) == len(found) - 2 * 2
    assert len({(x.of, agent_of(x)) for x in found}) == len(found) - 2 * 2
    assert {x.of for x in found} == {"grid57", "hand_set"}
    rule = [x for x in found if x.of == "grid57"]
    own = agent_of(rule[2])  # Width x1.
    assert (own.learning_rate, own.network) == (5e-3, CONFIG.agent.network)
    networks = {x.place: agent_of(x).network for x in rule if x.axis == SIZE}
    assert [x.torso for x in networks.values()] == [(2,), (4,), (8,), (16,), (32,)]
    assert [x.model for x in networks.values()] == [1, 2, 4, 8, 16]
    assert networks[4.0].channels == ()
    replays = {x.place: agent_of(x) for x in rule if x.axis == REPLAY}
    assert [round(place, 2) for place in replays] == [0.0, 0.33, 0.5, 0.75, 0.9]
    for place, x in replays.items():
        assert x.num_replayed / x.batch_size == place
        assert x.batch_size - x.num_replayed == CONFIG.agent.num_environments
        assert dataclasses.replace(x, replay_ratio=0.0, batch_size=2) == own
    optimizers = [agent_of(x) for x in rule if x.axis == OPTIMIZER]
    assert {x.optimizer_kind for x in optimizers} == {"adam", "rmsprop"}
    assert {x.network for x in optimizers} == {own.network}
    assert max(x.learning_rate for x in optimizers) == pytest.approx(1.5e-2)
    assert own in optimizers


def test_the_grid_is_around_the_tuned_settings():
    config = dataclasses.replace(CONFIG, baselines=("actor_critic_tuned", "hand_set"))
    tuned = common.tuned(config, {"actor_critic": {"learning_rate": 9e-3, "replay_ratio": 0.5}})
    found = variations(make_contenders(rule_contenders(["grid57"], config), config, tuned=tuned))
    rates = {
        agent_of(x).learning_rate
        for x in found
        if (x.of, x.axis) == ("actor_critic_tuned", OPTIMIZER)
    }
    assert sorted(rates) == pytest.approx([3e-3, 9e-3, 2.7e-2])
    assert list(dict.fromkeys(x.of for x in found)) == ["grid57", "hand_set", "actor_critic_tuned"]


@pytest.mark.thorough
def test_all_settings_are_in_the_report(tmp_path, monkeypatch):
    """With fewer of them, as each is a program to compile."""
    monkeypatch.setattr(robustness, "WIDTHS", (2.0,))
    monkeypatch.setattr(robustness, "REPLAY_RATIOS", (0.5,))
    monkeypatch.setattr(robustness, "LEARNING_RATES", (1.0,))
    monkeypatch.setattr(robustness, "WEIGHT_DECAYS", (0.0,))
    monkeypatch.setattr(robustness, "GRADIENT_NORMS", (1.0,))
    tasks = [environments.make("catch/5x5")]
    made = make_contenders(rule_contenders(["grid57"], CONFIG), CONFIG)
    experiment = Experiment(tasks, CONFIG, tmp_path, {"code_version": "1"})
    files = robustness.robustness(experiment, made)
    plots = {
        f"catch_5x5_{x}.{y}" for x in ("sizes", "replay", "optimizers") for y in ("png", "svg")
    }
    assert {path.name for path in files} == {"index.html", "robustness.csv", *plots}
    with (tmp_path / "robustness.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (1 + 1 + 2)
    assert {row["runs"] for row in rows} == {"2"}
    assert {row["not finite"] for row in rows} == {"0"}
    assert all(-1 <= float(row["score"]) <= 1 for row in rows)
    text = (tmp_path / "index.html").read_text()
    for heading in ("Network size", "Replay", "Optimisers", "Robustness of grid57"):
        assert heading in text
    assert "2 combinations of optimiser" in text
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    contenders = [entry["name"] for entry in manifest["contenders"]]
    assert contenders[-1] == "random"
    assert len(contenders) == len(rows) + 1
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/result.json"))
    assert len(before) == 2 * len(contenders)
    robustness.robustness(experiment, made)
    again = merge([read_manifest(tmp_path)])
    write_report(tmp_path / "report", again)
    after = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/result.json"))
    assert after == before
