import json
import pathlib

from evaluation import storage
from evaluation.report.drawing import Curve
from evaluation.report.run_files import agent_metrics
from evaluation.report.stored import merge
from tests.evaluation.common import TASKS, write_evaluation

CONTENDER = "grid57"
TOKENS = [
    {
        "tokenizer/loss": 2.0 / step,
        "tokenizer/loss/reconstruction": 1.0 / step,
        "tokenizer/codes_used": 10.0 * step,
        "tokenizer/codes_perplexity": 5.0 * step,
        "tokenizer/codes_dead": 100.0 - step,
        "tokenizer/gradient_norm": 1.0,
        "world_model/loss/next_token": None if step == 1 else 3.0,
        "environment_steps": 100 * step,
    }
    for step in (1, 2, 3)
]
HELD_OUT = {"held_out/reward_rmse": 0.25, "held_out/token_loss": 1.5, "environment_steps": 300}


def _log(folder, lines, task=TASKS[0], seed=0):
    path = storage.run_path(pathlib.Path(folder), CONTENDER, task, seed) / "metrics.jsonl"
    path.write_text("".join(x if isinstance(x, str) else json.dumps(x) + "\n" for x in lines))


def _found(tmp_path, *lines):
    one = write_evaluation(tmp_path / "one")
    _log(tmp_path / "one", lines)
    [merged] = merge([one])
    return agent_metrics(merged, CONTENDER)


def test_losses_and_the_use_of_codes_are_shown_of_each_kind_of_updates(tmp_path):
    found = _found(tmp_path, *TOKENS, HELD_OUT)
    assert list(found.curves) == [
        "tokenizer/loss",
        "tokenizer/loss/reconstruction",
        "tokenizer/codes_used",
        "tokenizer/codes_perplexity",
        "tokenizer/codes_dead",
        "world_model/loss/next_token",
    ]
    used = Curve([100, 200, 300], [10.0, 20.0, 30.0])
    assert found.curves["tokenizer/codes_used"] == {TASKS[0]: used}
    next_token = Curve([200, 300], [3.0, 3.0])
    assert found.curves["world_model/loss/next_token"] == {TASKS[0]: next_token}
    assert found.held_out == [{"task": TASKS[0], "reward rmse": "0.25", "token loss": "1.5"}]


def test_names_without_a_kind_are_shown_too(tmp_path):
    line = {"loss": 1.0, "loss/decoder/image": 0.5, "value_loss": 0.1, "kl": 2.0, "updates": 3.0}
    found = _found(tmp_path, {**line, "environment_steps": 5})
    assert list(found.curves) == ["loss", "loss/decoder/image", "value_loss", "kl"]


def test_long_curves_are_thinned_out_between_their_ends(tmp_path):
    lines = ({"loss": float(i), "environment_steps": i} for i in range(1, 5001))
    steps, values, *_ = _found(tmp_path, *lines).curves["loss"][TASKS[0]]
    assert len(steps) == 100
    assert (steps[0], steps[-1], values[-1]) == (1, 5000, 5000.0)


def test_what_is_damaged_or_no_number_is_left_out(tmp_path, caplog):
    lines = [
        '{"loss": 1.0, "environ\n',
        '{"loss": Infinity, "environment_steps": 1}\n',
        {"loss": True, "environment_steps": 2},
        {"loss": "3", "environment_steps": 3},
        {"loss": 4.0},
        {"loss": 5.0, "environment_steps": 5},
    ]
    assert _found(tmp_path, *lines).curves == {"loss": {TASKS[0]: Curve([5], [5.0])}}
    assert "Line 1 of" in caplog.text


def test_each_task_has_a_curve_of_the_first_run_that_logged_something(tmp_path):
    one = write_evaluation(tmp_path / "one")
    _log(tmp_path / "one", [{"loss": 2.0, "kl": 3.0, "environment_steps": 5}], TASKS[0])
    _log(tmp_path / "one", [{"loss": 1.0, "environment_steps": 7}], TASKS[1], seed=1)
    [merged] = merge([one])
    found = agent_metrics(merged, CONTENDER).curves
    assert found["loss"] == {TASKS[0]: Curve([5], [2.0]), TASKS[1]: Curve([7], [1.0])}
    assert list(found["kl"]) == [TASKS[0]]
    assert agent_metrics(merged, "random").curves == {}
