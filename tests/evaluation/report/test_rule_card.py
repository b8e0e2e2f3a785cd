import pathlib

import pytest

import disco
from evaluation.report.rule_card import rule_card
from evaluation.report.stored import merge
from evaluation.rules import fingerprint
from tests.evaluation.common import TASKS, write_evaluation

PROVENANCE = {
    "environments": "grid57",
    "meta_steps": 1000,
    "environment_steps": 43_776_000,
    "seed": 0,
    "code_version": "0.1.0+abc",
    "jax_version": "0.10.2",
    "population": {"size": 20},
    "meta": {"num_updates": 6},
    "agent": {
        "network": {"torso": [32], "model": 32, "head": [32]},
        "num_environments": 8,
        "unroll_length": 16,
        "replay_ratio": 0.0,
        "learning_rate": 5e-3,
    },
}


@pytest.fixture(scope="module")
def own():
    found = fingerprint(disco.load("grid57"))
    # By which evaluations on disk know it: code that changes it forgets them.
    assert found.startswith("c5bffc6546f4")
    return found


def test_a_card_says_where_from_how_good_and_how_bad(tmp_path, own):
    missing = {("random", "catch/8x8", 1)}
    merged = merge([write_evaluation(tmp_path / "held_out", skip=missing)])
    text = rule_card("mine", own, PROVENANCE, merged)
    assert text.startswith("# mine\n")
    assert "1,000 meta-steps of K = 6 updates; 43,776,000 environment steps" in text
    assert "## held_out\n\n2 tasks, 2 seeds. Score: mean undiscounted return" in text
    assert "1 runs are missing." in text
    rows = [line for line in text.splitlines() if line.startswith(("| catch/", "| grid57 |"))]
    assert len(rows) == 3
    assert "±" in rows[-1]
    assert "Where it fails: nothing was found." in text
    assert "2 tasks: too few for an interval over tasks" in text
    assert "On 2 tasks with 2 seeds, grid57 is " in text


def test_failures_are_named(tmp_path, own):
    """The evaluation's levels turned round: the rule is below all others."""
    one = write_evaluation(tmp_path / "one")
    for path in (tmp_path / "one" / "runs").rglob("result.json"):
        if "grid57" in str(path):
            other = pathlib.Path(str(path).replace("grid57", "random"))
            mine, theirs = path.read_text(), other.read_text()
            path.write_text(theirs)
            other.write_text(mine)
    text = rule_card("mine", own, PROVENANCE, merge([one]))
    failures = text.partition("Where it fails: ")[2]
    assert all(task in failures for task in TASKS)
    assert "grid57 is ahead" not in text
    assert "Where it fails: catch/5x5 (0." in text or "Where it fails: catch/5x5 (-0." in text


def test_another_rules_evaluation_is_refused(tmp_path):
    merged = merge([write_evaluation(tmp_path / "one")])
    with pytest.raises(ValueError, match=r"one is not an evaluation of this rule; .*'grid57'"):
        rule_card("mine", "other", PROVENANCE, merged)
