"""Contenders: what a rule's file recommends for its agents, and rules of other packages."""

import dataclasses
import importlib
import json
import re
import sys
from typing import Any

import numpy as np
import pytest

import disco
import environments
from disco_common import json_lines
from evaluation.config import EvaluationConfig
from evaluation.contenders import DISCOVERED, RULE, make_contenders, rule_contenders, tuned_rule
from evaluation.evaluate import Experiment
from evaluation.report.drawing import contender_styles
from evaluation.report.tables import aggregate_rows
from evaluation.results import LearningCurves
from evaluation.scoring.references import Reference
from launch.support import evaluations as command
from tests.evaluation import common
from tests.evaluation.common import BASELINES
from tests.launch.common import evaluate_flags
from tests.meta.common import small_rule

CONFIG = EvaluationConfig(baselines=())


def write(path, provenance) -> str:
    """A rule file of any provenance, also such as `disco.save` would refuse."""
    disco.save(small_rule(), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["header"][()]))
    if provenance is ...:
        del header["provenance"]
    else:
        header["provenance"] = provenance
    arrays["header"] = np.array(json.dumps(header))
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("provenance", "learning_rate"),
    [
        ({"agent": {"learning_rate": 0.5}}, 0.5),
        ({"agent": {"learning_rate": 1}}, 1.0),
        ({"agent": {}}, None),
        ({}, None),
        (..., None),
    ],
)
def test_recommended_learning_rate(tmp_path, provenance, learning_rate):
    (contender,) = rule_contenders([write(tmp_path / "a.npz", provenance)], CONFIG)
    found, origin = contender.agent.learning_rate, contender.source["learning_rate_from"]
    if learning_rate is None:
        assert (found, origin) == (CONFIG.agent.learning_rate, "config.agent.learning_rate")
    else:
        assert (found, origin) == (learning_rate, "the rule file")


@pytest.mark.parametrize(
    "found",
    [
        *(float("nan"), -0.1, 0, 0.0, float("inf"), -float("inf")),
        *("0.1", True, False, None, [], [0.1], {}, pytest.param(10**400, id="huge")),
    ],
)
def test_recommendation_that_is_no_learning_rate(tmp_path, found):
    file = write(tmp_path / "a.npz", {"agent": {"learning_rate": found}})
    read = json_lines.loads(json.dumps(found))
    message = (
        f"{file}: the header's provenance.agent.learning_rate is {read!r:.100}; expected a posit"
    )
    with pytest.raises(disco.RuleFileError, match=re.escape(message)):
        make_contenders(rule_contenders([file], CONFIG), CONFIG)
    # Who chooses another does not need it.
    config = dataclasses.replace(CONFIG, rule_learning_rate=0.5)
    assert rule_contenders([file], config)[-1].agent.learning_rate == 0.5


def with_torso(*units: int) -> EvaluationConfig:
    network = dataclasses.replace(CONFIG.agent.network, torso=units)
    return dataclasses.replace(CONFIG, agent=dataclasses.replace(CONFIG.agent, network=network))


def test_wider_agents_have_a_smaller_learning_rate(tmp_path):
    agent = {"learning_rate": 0.5, "network": {"torso": [64, 32]}}
    file = write(tmp_path / "a.npz", {"agent": agent})

    def made(*units: int):
        contender = rule_contenders([file], with_torso(*units))[-1]
        return contender.agent.learning_rate, contender.source["learning_rate_from"]

    assert made(32) == (0.5, "the rule file")
    assert made(8) == (0.5, "the rule file")
    assert made() == (0.5, "the rule file")
    assert made(32, 128) == (0.125, "the rule file's, for 128 units instead of 32")
    config = dataclasses.replace(with_torso(128), rule_learning_rate=0.5)
    assert rule_contenders([file], config)[-1].agent.learning_rate == 0.5
    for wrong in (["a"], [0], 7):
        file = write(tmp_path / "a.npz", {"agent": agent | {"network": {"torso": wrong}}})
        with pytest.raises(disco.RuleFileError, match=r"network\.torso is .*; expected pos"):
            made(32)


def test_a_learning_rate_falls_over_the_lifetime_of_the_discovery(tmp_path):
    steps = CONFIG.agent.steps_per_update
    agent = {"end_learning_rate": 0.25, "lifetime": 3 * steps}
    file = write(tmp_path / "a.npz", {"agent": agent})

    def length(updates: int, **settings: Any) -> int:
        config = dataclasses.replace(CONFIG, budget=updates * steps, **settings)
        return rule_contenders([file], config)[-1].agent.lifetime

    assert length(30) == 3 * steps
    assert length(2) == 2 * steps
    own = dataclasses.replace(CONFIG.agent, end_learning_rate=0.5)
    assert length(30, agent=own) == 30 * steps
    config = dataclasses.replace(CONFIG, budget=30 * steps)
    (own,) = rule_contenders([file], config)
    tuned = tuned_rule(own, config, {"end_learning_rate": 0.1})
    assert tuned.agent.lifetime == 30 * steps


def test_a_rule_whose_agents_learning_rate_fell_has_such_agents(tmp_path):
    """Unless the evaluation's own falls."""
    file = write(tmp_path / "a.npz", {"agent": {"end_learning_rate": 0.25}})

    def made(config, **tuned):
        contender = tuned_rule(rule_contenders([file], config)[0], config, tuned)
        agent = contender.agent
        assert agent.lifetime == config.budget
        return agent.end_learning_rate, contender.source["end_learning_rate_from"]

    assert made(CONFIG) == (0.25, "the rule file")
    assert made(CONFIG, end_learning_rate=0.5) == (0.5, "tuned settings")
    falls = dataclasses.replace(CONFIG.agent, end_learning_rate=0.0)
    config = dataclasses.replace(CONFIG, agent=falls)
    assert made(config) == (0.0, "config.agent.end_learning_rate")
    file = write(tmp_path / "a.npz", {"agent": {"end_learning_rate": -1}})
    with pytest.raises(disco.RuleFileError, match=r"end_learning_rate is -1; expected 0 to 1"):
        made(CONFIG)


def test_a_rule_that_was_discovered_with_replay_has_it(tmp_path):
    file = write(tmp_path / "a.npz", {"agent": {"replay_ratio": 0.75}})

    def made(config):
        contender = rule_contenders([file], config)[-1]
        agent = contender.agent
        return agent.replay_ratio, agent.batch_size, contender.source["replay_ratio_from"]

    number, without = (
        CONFIG.agent.num_environments,
        dataclasses.replace(
            CONFIG.agent, replay_ratio=0.0, batch_size=CONFIG.agent.num_environments
        ),
    )
    config = dataclasses.replace(CONFIG, agent=without)
    assert made(config) == (0.75, 4 * number, "the rule file")
    own = dataclasses.replace(config, rule_replay_ratio=0.5)
    assert made(own) == (0.5, 2 * number, "config.rule_replay_ratio")
    half = dataclasses.replace(without, replay_ratio=0.5, batch_size=2 * number)
    config = dataclasses.replace(config, agent=half)
    assert made(config) == (0.5, 2 * number, "config.agent.replay_ratio")
    file = write(tmp_path / "a.npz", {"agent": {"replay_ratio": 1.5}})
    with pytest.raises(disco.RuleFileError, match=r"agent.replay_ratio is 1.5; expected 0 to 1"):
        made(config)


def test_agents_of_rules_can_have_fewer_environments_and_another_lifetime(tmp_path):
    """Which makes more updates of as many environment steps."""
    header = {"agent": {"end_learning_rate": 0.25, "lifetime": 7, "replay_ratio": 0.5}}
    file = write(tmp_path / "a.npz", header)
    agent = dataclasses.replace(CONFIG.agent, num_environments=4, batch_size=4)
    config = dataclasses.replace(CONFIG, agent=agent)

    def made(**settings):
        (rule,) = rule_contenders([file], dataclasses.replace(config, **settings))
        return rule.agent.num_environments, rule.agent.batch_size, rule.agent.lifetime

    assert made() == (4, 8, 7)
    assert made(rule_num_environments=2, rule_replay_ratio=0.75) == (2, 8, 7)
    assert made(rule_lifetime=11) == (4, 8, 11)
    assert made(rule_lifetime=0) == (4, 8, config.budget)
    for wrong in (0, 3, 8):
        with pytest.raises(
            ValueError, match=f"rule_num_environments is {wrong}; expected a divisor of .*, 4"
        ):
            made(rule_num_environments=wrong)


def test_scale_of_the_rewards_of_rules(tmp_path):
    """The config's, unless the discovery had another and the config has not."""

    def made(file, **settings):
        (contender,) = rule_contenders([file], dataclasses.replace(CONFIG, **settings))
        return contender.agent.reward_scale

    plain = write(tmp_path / "a.npz", {})
    scaled = write(tmp_path / "b.npz", {"agent": {"reward_scale": 0.5}})
    agent = dataclasses.replace(CONFIG.agent, reward_scale=0.25)
    assert (made(plain), made(plain, agent=agent)) == (1.0, 0.25)
    assert (made(scaled), made(scaled, agent=agent)) == (0.5, 0.25)
    assert made(scaled, agent=agent, rule_reward_scale=2.0) == 2.0
    with pytest.raises(ValueError, match=r"rule_reward_scale is 0.*; expected a positive number"):
        made(plain, rule_reward_scale=0.0)


def test_agents_adapt_to_scales_as_in_the_discovery(tmp_path):
    agent = {"adapts_steps": True, "learning_rate": 0.5, "network": {"torso": [32]}}
    contender = rule_contenders([write(tmp_path / "a.npz", {"agent": agent})], with_torso(128))[-1]
    assert (contender.agent.adapts_steps, contender.agent.adapts_rewards) == (True, False)
    assert contender.agent.learning_rate == 0.5  # Steps fall with the width already.
    wrong = write(tmp_path / "b.npz", {"agent": {"adapts_rewards": 1}})
    with pytest.raises(disco.RuleFileError, match=r"adapts_rewards is 1; expected true or false"):
        rule_contenders([wrong], CONFIG)


@pytest.mark.parametrize("name", ["reward_scale", "lifetime"])
@pytest.mark.parametrize("found", [-1.0, float("inf"), "1"])
def test_settings_of_the_discovery_that_are_out_of_range(tmp_path, name, found):
    file = write(tmp_path / "a.npz", {"agent": {name: found, "end_learning_rate": 0.5}})
    message = f"{file}: the header's provenance.agent.{name} is {found!r}; expected"
    with pytest.raises(disco.RuleFileError, match=re.escape(message)):
        make_contenders(rule_contenders([file], CONFIG), CONFIG)


@pytest.mark.parametrize(
    ("agent", "model"),
    [({"network": {"model": 0}}, 0), ({"network": {"model": 3}}, None), ({}, None)],
)
def test_agents_of_a_rule_that_was_discovered_without_the_lstm_have_none(tmp_path, agent, model):
    """Its other sizes are those of the evaluation, as of all contenders."""
    contender = rule_contenders([write(tmp_path / "a.npz", {"agent": agent})], CONFIG)[-1]
    network = CONFIG.agent.network
    model = network.model if model is None else model
    assert network.model > 0
    assert contender.agent.network == dataclasses.replace(network, model=model)


def test_a_number_of_units_that_is_none_is_refused(tmp_path):
    file = write(tmp_path / "a.npz", {"agent": {"network": {"model": "0"}}})
    with pytest.raises(
        disco.RuleFileError, match=r"agent\.network\.model is '0'; expected at least"
    ):
        make_contenders(rule_contenders([file], CONFIG), CONFIG)


@pytest.mark.parametrize("found", [None, [], ["learning_rate"], "learning_rate", 7, True])
@pytest.mark.parametrize("name", ["provenance", "agent"])
def test_provenance_of_another_form(tmp_path, name, found):
    provenance = found if name == "provenance" else {"agent": found}
    file = write(tmp_path / "a.npz", provenance)
    path = {"provenance": "provenance", "agent": "provenance.agent"}[name]
    message = f"{file}: the header's {path} is {found!r}; expected names."
    with pytest.raises(disco.RuleFileError, match=re.escape(message)):
        make_contenders(rule_contenders([file], CONFIG), CONFIG)


RULES = """
import dataclasses

import disco

LAMBDA = 0.5


def short_traces():
    return disco.ActorCritic(lambda_=LAMBDA)


def learned():
    return disco.load("grid57")


@dataclasses.dataclass(frozen=True)
class Undiscounted(disco.Rule):
    def output_shapes(self, num_actions):
        return {"logits": (num_actions,)}

    def init_memory(self):
        return None

    def targets(self, outputs, target_outputs, trajectory, state):
        raise NotImplementedError

    def transition_losses(self, outputs, targets, trajectory):
        raise NotImplementedError
"""


@pytest.fixture
def package(tmp_path_factory, monkeypatch):
    """Another package's rules, as if it were installed; returns its module."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "my_rules.py").write_text(RULES)
    about = folder / "my_rules-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: my-rules\nVersion: 0.1\n")
    names = {"short_traces": "short_traces", "learned": "learned", "undiscounted": "Undiscounted"}
    lines = [f"{name} = my_rules:{what}" for name, what in names.items()]
    (about / "entry_points.txt").write_text("\n".join(["[disco.rules]", *lines]) + "\n")
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("my_rules")
    del sys.modules["my_rules"]


@pytest.mark.usefixtures("package")
def test_a_discount_for_a_rule_without_one_is_refused():
    config = dataclasses.replace(CONFIG, rule_discount=0.9)
    message = "rule_discount is 0.9, but the rule 'undiscounted' has no discount to set; expected"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make_contenders(rule_contenders(["undiscounted"], config), config)
    for name in ("learned", "short_traces"):
        rule: Any = rule_contenders([name], config)[-1].rule
        assert rule.discount == 0.9


@pytest.mark.usefixtures("package")
def test_only_a_discovered_rule_of_another_package_is_called_so():
    """Another one is neither that nor a baseline, yet it is evaluated: it has differences."""
    contenders = make_contenders(
        rule_contenders(["learned", "short_traces"], common.CONFIG), common.CONFIG
    )
    kinds = {x.name: x.kind for x in contenders}
    assert (kinds["learned"], kinds["short_traces"]) == (DISCOVERED, RULE)
    curves = {
        x.name: LearningCurves.of(
            [[common.result(level + 0.1 * seed) for seed in range(2)]], common.CONFIG
        )
        for level, x in enumerate(contenders)
    }
    references = {"catch/5x5": Reference("", -0.6, 1.0, None, "optimum")}
    evaluation = common.evaluation(["catch/5x5"], contenders, curves, common.CONFIG, references)
    [rows] = [aggregate_rows(evaluation, x) for x in evaluation.comparisons]
    better = {x["contender"]: x["P(better than actor_critic)"] for x in rows}
    assert better["short_traces"]
    assert not better["policy_gradient"]
    assert evaluation.best_baseline == pytest.approx(2.05)  # Policy gradient's.
    shown = evaluation.ordered
    names = [x.name for x in shown]
    assert (names[0], names[-1]) == ("learned", "random")
    assert "short_traces" in names
    warm, other = contender_styles(shown, ("learned", "short_traces")).values()
    [cold] = contender_styles(contenders, ["actor_critic"]).values()
    assert warm != other == cold


def test_all_baselines_differ_in_colour():
    config = dataclasses.replace(common.CONFIG, baselines=BASELINES)
    made = make_contenders((), config)
    colours = [x.color for x in contender_styles(made, [x.name for x in made]).values()]
    assert len(set(colours)) == len(colours) == len(BASELINES) + 1  # And random.


def test_an_evaluation_of_another_rule_of_the_same_name_is_not_continued(
    package, monkeypatch, tmp_path
):
    config = dataclasses.replace(CONFIG, seeds=1, budget=128, num_points=1, resamples=10)
    experiment = Experiment([environments.make("catch/5x5")], config, tmp_path)
    values = evaluate_flags("short_traces")
    command.run_evaluation(values, experiment)
    monkeypatch.setattr(package, "LAMBDA", 0.7)
    with pytest.raises(ValueError, match="short_traces"):
        command.run_evaluation(values, experiment)
