"""A rule as a formula: what is fitted, its rule file, and its loss in plain JAX."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

import disco
import environments
from disco.anchored import AGENT_FEATURES
from evaluation.config import EvaluationConfig
from evaluation.contenders import rule_contenders
from evaluation.evaluate import Experiment
from evaluation.studies import formula_files, formula_rule, formulas
from evaluation.studies.analysis import AnalysisConfig, analyse
from evaluation.studies.formula_rule import ADDED, OUTPUTS, FormulaRule
from evaluation.studies.formulas import Samples
from tests.disco.common import EXTENDED_SIZES, random_outputs, random_trajectory, small_rule
from tests.evaluation.studies.test_analysis import CONFIG

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"
SIZES = dataclasses.replace(EXTENDED_SIZES, prior_outputs=4, agent_features=7)


def formula_of_all() -> FormulaRule:
    """A formula that has every feature, and products of them."""
    rng = np.random.default_rng(0)
    names = formula_rule.feature_names(SIZES)
    terms = ["1", *names, "age*td", "log_ratio*log_ratio"]
    sums = {
        name: {
            term: float(x) for term, x in zip(terms, rng.normal(0.0, 0.3, len(terms)), strict=True)
        }
        for name in (*OUTPUTS, *ADDED)
    }
    settings = {"policy_prior": 0.9, "advantage_weight": 2.0, "action_advantage_weight": 0.3}
    rule = small_rule(0, SIZES, **settings)
    assert isinstance(rule, disco.AnchoredRule)
    return FormulaRule.like(rule, sums)


def of_example() -> FormulaRule:
    rule = formula_rule.load(EXAMPLES / "three_families_formula.npz")
    assert isinstance(rule, FormulaRule)
    return rule


RULES = {
    "all": formula_of_all,
    "three_families": of_example,  # Its advantages are not normalised, and its moments are masked.
}


@pytest.mark.parametrize("name", RULES)
def test_the_loss_in_plain_jax_has_the_rules_gradient(name):
    rule, module = RULES[name](), {}
    exec(formula_files.loss_source(name, rule), module)

    @jax.jit
    def of_rule(outputs, target_outputs, trajectory, state):
        targets, after = rule.targets(outputs, target_outputs, trajectory, state)
        compute = jax.value_and_grad(rule.output_loss, has_aux=True)
        (loss, _), gradient = compute(outputs, targets, trajectory)
        return loss, gradient, after, rule.step(targets)

    @jax.jit
    def of_file(outputs, target_outputs, trajectory, memory):
        compute = jax.value_and_grad(module["loss"], argnums=(0, 1), has_aux=True)
        batch = {name: x for name, x in vars(trajectory).items() if name != "observation"}
        own = outputs["logits"], outputs["q"], target_outputs["q"], batch, memory
        return compute(*own)

    state = disco.RuleState(target_params=None, memory=rule.init_memory())
    memory = module["MEMORY"]
    for seed in range(3):  # Memory matters from the second batch on.
        trajectory = random_trajectory(seed)
        outputs, target = (random_outputs(rule, trajectory, 10 * seed + i) for i in (1, 2))
        with jax.numpy_dtype_promotion("standard"):
            (loss, (memory, step)), gradient = of_file(outputs, target, trajectory, memory)
        expected, expected_gradient, state, expected_step = of_rule(
            outputs, target, trajectory, state
        )
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
        for found, output in zip(gradient, ("logits", "q"), strict=True):
            np.testing.assert_allclose(found, expected_gradient[output], rtol=2e-3, atol=2e-6)
        np.testing.assert_allclose(step, 1.0 if expected_step is None else expected_step, rtol=1e-5)


def test_the_example_is_that_of_its_rule_file_and_short():
    source = (EXAMPLES / "three_families_loss.py").read_text()
    assert source == formula_files.loss_source("three_families", of_example())
    code = "".join(source.split('"""')[::2])  # Without docstrings.
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 40
    imports = [line for line in code.splitlines() if "import" in line]
    assert imports == ["import jax", "import jax.numpy as jnp"]


def made_up(seed: int, rows: int = 2000) -> Samples:
    """Of a rule with one output and f_η of known terms, and a little noise."""
    rng = np.random.default_rng(seed)
    features = {name: rng.normal(size=rows) for name in (*AGENT_FEATURES[:2], "td")}
    added = {name: rng.normal(size=(rows, 3)) for name in ADDED}
    added = {name: x - x.mean(axis=1, keepdims=True) for name, x in added.items()}
    logits = 0.7 * added["taken"] * features["td"][:, None]
    policy = rng.normal(size=(rows, 3))
    output = 1.5 + 2.0 * features["age"] - 0.5 * features["age"] * features["td"]
    return Samples(
        features=features,
        added=added,
        outputs={"log_k": output + rng.normal(0.0, 0.01, rows)},
        logits=logits,
        target=policy + logits,
        policy=policy,
    )


def test_known_terms_are_found():
    training, test = [made_up(i) for i in range(3)], [made_up(3)]
    terms, r2 = formulas._fit_output("log_k", training, test)
    assert terms == pytest.approx({"1": 1.5, "age": 2.0, "age*td": -0.5}, abs=2e-3)
    assert r2 > 0.999
    assert formulas._fit_logits(training, test) == {"taken": {"td": pytest.approx(0.7)}}


def test_a_rule_file_keeps_the_formula(tmp_path):
    rule, path = formula_of_all(), tmp_path / "own.npz"
    disco.save(rule, path, {"agent": {"learning_rate": 0.5}})
    found = formula_rule.load(path)
    assert isinstance(found, FormulaRule)
    assert found.terms == rule.terms
    (contender,) = rule_contenders([str(path)], EvaluationConfig())
    assert contender.agent.learning_rate == 0.5
    with pytest.raises(disco.RuleFileError, match="formula"):
        disco.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("[]", "sums of terms"),
        ('{"log_odds_c": {"1": "x"}}', "sums of terms"),
        ('{"log_odds_c": {"1": 1.0}}', "expected .*log_k"),
        (json.dumps({x: {"age*weather": 1.0} for x in OUTPUTS}), "known are"),
    ],
)
def test_a_malformed_formula_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(formula_of_all(), formula=text)


@pytest.mark.slow
def test_from_a_rule_to_its_formula_and_their_scores(tmp_path):
    config = EvaluationConfig(agent=CONFIG, seeds=1, budget=320, num_points=2, resamples=10)
    (contender,) = rule_contenders(["three_families"], config)
    tasks = [environments.make(f"catch/{size}") for size in ("5x5", "6x5", "7x5", "8x5")]
    settings = AnalysisConfig(steps=60, environments=4, horizon=3)
    files = analyse(Experiment(tasks[:1], config, tmp_path), contender, settings, tasks)
    assert {path.name for path in files} >= {
        f"three_families_formula{x}" for x in (".md", "_loss.py", ".npz")
    }
    numbers = disco_numbers(tmp_path / "three_families_formula.npz")
    assert numbers["held_out"] == ["catch/8x5"]
    assert min(numbers["r2"].values()) > 0.5
    divergence = numbers["divergence"]
    assert divergence["formula"] < 0.05 * divergence["policy"]
    assert "three_families_formula" in (tmp_path / "index.html").read_text()


def disco_numbers(path: pathlib.Path) -> dict[str, Any]:
    return formula_rule.read(path)[1]["provenance"]["formula"]
