"""A discovery's metrics on disk, some of them damaged."""

import json
import re

import pytest

from evaluation.report.discoveries import read_metrics
from tests.evaluation.common import DISCOVERY

GOOD = [dict(report) for report in DISCOVERY.metrics]
WHOLE = "a whole number as meta_step, numbers or null as validation_reward, policy_entropy, "


def write(folder, *lines: str) -> None:
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))


def test_metrics_are_read(tmp_path):
    assert read_metrics(tmp_path) == ([], [])
    write(tmp_path, *map(json.dumps, GOOD))
    assert read_metrics(tmp_path) == (GOOD, [])


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [
        ('{"meta_step": 20, "agents": {"ta', "a JSON object, found "),
        ("7", "a JSON object, found '7'"),
        ("{}", WHOLE),
        (GOOD[1] | {"meta_step": "20"}, WHOLE),
        ({k: x for k, x in GOOD[1].items() if k != "target_kl"}, WHOLE),
        (GOOD[1] | {"validation_reward": "high"}, WHOLE),
        (GOOD[1] | {"agents": None}, WHOLE),
        (GOOD[1] | {"agents": GOOD[1]["agents"] | {"task": []}}, WHOLE),
        (GOOD[1] | {"agents": GOOD[1]["agents"] | {"steps_since_reset": [1, None]}}, WHOLE),
    ],
)
def test_a_damaged_line_is_named_and_left_out(tmp_path, damaged, expected):
    line = damaged if isinstance(damaged, str) else json.dumps(damaged)
    write(tmp_path, json.dumps(GOOD[0]), line, json.dumps(GOOD[2]))
    metrics, [problem] = read_metrics(tmp_path)
    assert metrics == [GOOD[0], GOOD[2]]
    file = re.escape(str(tmp_path / "metrics.jsonl"))
    assert re.match(rf"Line 2 of {file} is damaged: expected {re.escape(expected)}", problem)


def test_names_of_earlier_versions_are_read(tmp_path):
    agents = dict(GOOD[0]["agents"])
    agents["meta_return"] = agents.pop("validation_reward")
    agents["life_steps"] = agents.pop("steps_since_reset")
    old = {**GOOD[0], "meta_return": GOOD[0]["validation_reward"], "agents": agents}
    old["reborn_agents"] = old.pop("num_resets")
    del old["validation_reward"]
    write(tmp_path, json.dumps(old))
    assert read_metrics(tmp_path) == ([GOOD[0]], [])
