"""The rules that come with the package: each has a card, and agents learn by it."""

import numpy as np
import pytest

import disco
import environments
from disco.rule_sources import ZOO
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders, rule_contenders
from tests.evaluation import common


def test_there_is_a_rule():
    assert "grid57" in disco.zoo()


@pytest.mark.parametrize("name", disco.zoo())
def test_card_says_how_it_was_found(name):
    provenance = disco.load_header(name)["provenance"]
    card = (ZOO / f"{name}.md").read_text()
    for fact in ("meta_steps", "environment_steps", "seed"):
        assert f"{provenance[fact]:,}" in card
    assert provenance["environments"] in card


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow if x == "three_families" else pytest.mark.thorough)
        for x in disco.zoo()
    ],
)
def test_fresh_agents_learn_by_it(name, tmp_path):
    """Catch, which it was not discovered on: 1 is a caught ball, -1 a missed one."""
    config = EvaluationConfig(seeds=3, budget=300 * EvaluationConfig().agent.steps_per_update)
    (contender,) = (
        c
        for c in make_contenders(rule_contenders([name], config), config)
        if c.kind == "discovered"
    )
    history = common.train([environments.make("catch/5x5")], contender, config, tmp_path)
    assert np.all(history.is_finite)
    assert np.mean(history.window.mean_return) > 0.6
