import json
import pathlib

from evaluation import storage
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


def test_each_kind_of_updates_has_its_losses_and_the_codebook_beside_them(tmp_path):
    found = _found(tmp_path, *TOKENS, HELD_OUT)
    [panels] = found.tasks.values()
    assert {title: list(curves) for title, curves in panels.items()} == {
        "tokenizer: losses": ["loss", "loss/reconstruction"],
        "tokenizer: use of the codebook": ["codes_used", "codes_perplexity", "codes_dead"],
        "world model: losses": ["loss/next_token"],
    }
    assert panels["tokenizer: use of the codebook"]["codes_used"] == (
        [100, 200, 300],
        [10.0, 20.0, 30.0],
    )
    assert panels["world model: losses"]["loss/next_token"] == ([200, 300], [3.0, 3.0])
    assert list(found.captions) == ["losses", "use of the codebook"]
    assert found.held_out == [{"task": TASKS[0], "reward rmse": "0.25", "token loss": "1.5"}]


def test_names_without_a_kind_are_grouped_too(tmp_path):
    line = {"loss": 1.0, "loss/decoder/image": 0.5, "value_loss": 0.1, "kl": 2.0, "updates": 3.0}
    [panels] = _found(tmp_path, {**line, "environment_steps": 5}).tasks.values()
    assert {title: list(curves) for title, curves in panels.items()} == {
        "losses": ["loss", "loss/decoder/image", "value_loss"],
        "use of the latents": ["kl"],
    }


def test_long_curves_are_thinned_out_between_their_ends(tmp_path):
    [panels] = _found(
        tmp_path, *({"loss": float(i), "environment_steps": i} for i in range(1, 5001))
    ).tasks.values()
    steps, values = panels["losses"]["loss"]
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
    [panels] = _found(tmp_path, *lines).tasks.values()
    assert panels == {"losses": {"loss": ([5], [5.0])}}
    assert "Line 1 of" in caplog.text


def test_the_first_run_that_logged_something_counts(tmp_path):
    one = write_evaluation(tmp_path / "one")
    _log(tmp_path / "one", [{"loss": 1.0, "environment_steps": 7}], TASKS[1], seed=1)
    [merged] = merge([one])
    assert list(agent_metrics(merged, CONTENDER).tasks) == [TASKS[1]]
    assert agent_metrics(merged, "random").tasks == {}
