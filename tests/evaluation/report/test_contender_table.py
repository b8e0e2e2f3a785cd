"""Learning rates as agents used them, and what they computed."""

import dataclasses

import pytest

from evaluation.contenders import GRADIENT_STEPS, PARAMETERS, make_contenders, rule_contenders
from evaluation.report.tables import compute, settings_as_used
from tests.evaluation import common
from tests.evaluation.common import CONFIG

EVERYONE = dataclasses.replace(CONFIG, baselines=("actor_critic", "ppo"))


def shown(config=EVERYONE, agents=(), tuned=None):
    rules = rule_contenders(["grid57", "three_families"], config)
    made = make_contenders(rules, config, agents, tuned)
    return {x.name: settings_as_used(x)["learning rate"] for x in made}


def test_a_rule_has_that_of_its_file():
    found = shown()
    assert found["grid57"] == "0.005 (the rule file)"
    assert found["three_families"] == "0.02 (the rule file)"
    assert found["actor_critic"] == "0.003"
    assert found["ppo"] == "0.0003"
    assert shown(agents=["ppo/cleanrl"])["ppo_cleanrl"] == "0.00025"
    assert found["random"] == ""


@pytest.mark.parametrize(("of", "name"), [("grid57", "grid57"), ("ppo", "ppo_tuned")])
def test_tuned_settings_replace_it(of, name):
    config = dataclasses.replace(CONFIG, baselines=("ppo_tuned",))
    tuned = common.tuned(config, {"ppo": {}, of: {"learning_rate": 0.007}})
    assert shown(config, tuned=tuned)[name] == "0.007 (tuned)"


def test_an_agent_that_needs_no_rule_has_its_own():
    assert shown(agents=["ppo/learning_rate=0.004"])["ppo_learning_rate=0.004"] == "0.004"


def test_compute_is_said_where_it_is_known():
    ppo = next(x for x in make_contenders((), EVERYONE) if x.name == "ppo")
    assert compute(ppo, 1024) == {"gradient steps": "", "parameters": ""}
    known = dataclasses.replace(ppo, source={GRADIENT_STEPS: 0.125, PARAMETERS: [931, 1964]})
    assert compute(known, 16_384) == {"gradient steps": "2,048", "parameters": "931 to 1,964"}
    same = dataclasses.replace(ppo, source={GRADIENT_STEPS: 0.0, PARAMETERS: [931, 931]})
    assert compute(same, 1024) == {"gradient steps": "0", "parameters": "931"}
