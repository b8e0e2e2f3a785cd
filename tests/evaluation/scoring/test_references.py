"""Reference scores: what fits an evaluation, and what is refused."""

import dataclasses
import json

import pytest

import environments
from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, make_contenders
from evaluation.evaluate import Experiment, evaluate
from evaluation.scoring import references, statistics
from evaluation.scoring.references import Reference, fingerprint, of_tasks, require_fit

CATCH, SEA = environments.make("catch/5x5"), environments.make("deep_sea/5")


def reference(task, **changes) -> Reference:
    return dataclasses.replace(
        Reference(fingerprint(task), -0.6, 1.0, None, "by hand", 0.01, 0.0), **changes
    )


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = {"catch/5x5": reference(CATCH), "deep_sea/5": reference(SEA, budget=1_000)}
    references.write(tmp_path / "table.json", table)
    assert references.read(tmp_path / "table.json") == table


def test_every_task_has_its_own_fingerprint():
    tasks = environments.suite("grid_heldout")
    assert len({fingerprint(task) for task in tasks}) == len(tasks)
    assert fingerprint(environments.make("catch/5x5")) == fingerprint(CATCH)
    for name in ("catch/5x6", "catch/\udcff"):
        assert fingerprint(dataclasses.replace(CATCH, name=name)) != fingerprint(CATCH)
    changed = dataclasses.replace(SEA, params=environments.make("deep_sea/6").params)
    assert fingerprint(changed) != fingerprint(SEA)


def test_what_does_not_fit_has_a_reason():
    table = {"catch/5x5": reference(CATCH), "deep_sea/5": reference(CATCH)}
    found, reasons = of_tasks([CATCH, SEA, environments.make("catch")], 500, table)
    assert list(found) == ["catch/5x5"]
    assert reasons["deep_sea/5"].startswith("the reference score is of another version of the task")
    assert reasons["catch"] == "there is no reference score (launch.references makes them)"
    for_long = {"catch/5x5": reference(CATCH, budget=5_000)}
    _, reasons = of_tasks([CATCH], 500, for_long)
    assert "for a budget of 5,000 environment steps, expected 500" in reasons["catch/5x5"]
    assert of_tasks([CATCH], 5_000, for_long)[1] == {}


def test_a_given_table_of_another_budget_or_version_is_refused(tmp_path):
    path = tmp_path / "table.json"
    require_fit([CATCH, SEA], 500, {"catch/5x5": reference(CATCH)}, path)  # SEA has none.
    for changes in ({"budget": 5_000}, {"fingerprint": "0" * 64}):
        with pytest.raises(ValueError, match=r"table\.json: on catch/5x5, the reference"):
            require_fit([CATCH], 500, {"catch/5x5": reference(CATCH, **changes)}, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.update(format=2), "has format 2; expected 1"),
        (lambda x: x.update(tasks=[]), "'tasks' is \\[\\]; expected references by task"),
        (lambda x: x["tasks"]["catch/5x5"].pop("origin"), "catch/5x5: .*missing .*'origin'"),
        (
            lambda x: x["tasks"]["catch/5x5"].update(random="0"),
            "random is '0'; expected float",
        ),
        (lambda x: x["tasks"]["catch/5x5"].update(reference=10**400), "reference is inf; expected"),
        (lambda x: x["tasks"]["catch/5x5"].update(budget=10**59), "budget is 1e\\+59; expected"),
        (lambda x: x["tasks"]["catch/5x5"].update(reference=True), "reference is True; expected"),
        (lambda x: x["tasks"]["catch/5x5"].update(random=2.0), "reference is 1; expected more"),
        (lambda x: x["tasks"]["catch/5x5"].update(budget="all"), "budget is 'all'; expected"),
        (lambda x: x["tasks"]["catch/5x5"].update(origin=3), "origin is 3; expected str"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, change, message):
    path = tmp_path / "table.json"
    references.write(path, {"catch/5x5": reference(CATCH)})
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=message) as error:
        references.read(path)
    assert str(path) in str(error.value)


def test_the_shipped_optima_are_of_these_tasks():
    """At least 15 held-out tasks are solved; those of this version are among them."""
    tasks = environments.suite("grid_heldout")
    found, reasons = of_tasks(tasks, 99_968, references.shipped())
    assert not any("another version" in reason for reason in reasons.values())
    assert sum(x.budget is None for x in found.values()) >= 15
    assert all(x.random_error == 0.0 for x in found.values() if x.budget is None)


@pytest.mark.thorough
def test_nobody_is_above_the_optimum_and_random_has_its_score(tmp_path):
    """On all solved held-out tasks, within the errors of the means."""
    config = EvaluationConfig(seeds=2, budget=6_000, baselines=("actor_critic",), score_window=0.6)
    shipped = references.shipped()
    tasks = [task for task in environments.suite("grid_heldout") if task.name in shipped]
    assert len(tasks) >= 15
    found = evaluate(Experiment(tasks, config, tmp_path), make_contenders([], config)).evaluation
    assert set(found.references) == {task.name for task in tasks}
    for name, scores in found.scores.items():
        means, errors = statistics.mean(scores), statistics.standard_error(scores)
        for i, task in enumerate(tasks):
            one = shipped[task.name]
            if one.budget is None:
                assert means[i] <= one.reference + 3.0 * errors[i] + 1e-4, (name, task.name)
                if name == RANDOM:
                    # With two runs the standard error itself is rough.
                    slack = 6.0 * errors[i] + 0.05 * (one.reference - one.random)
                    assert abs(means[i] - one.random) <= slack, task.name
    assert found.by_references is not None
    aggregates = found.by_references.aggregates
    assert aggregates["actor_critic"]["mean"].value > 0.1
    assert aggregates[RANDOM]["mean"].value == pytest.approx(0.0, abs=0.05)
