"""Folders of runs: their settings and metrics."""

import dataclasses
import json

import pytest

from launch import workdirs
from launch.workdirs import MetricsLog, open_workdir


@dataclasses.dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...] = (1, 2)
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = 10
    inner: Inner = Inner()


def test_opened_again_with_the_same_settings(tmp_path):
    folder = open_workdir(tmp_path / "a" / "b", Settings())
    assert json.loads((folder / "config.json").read_text()) == {
        "steps": 10,
        "inner": {"sizes": [1, 2], "rate": None},
    }
    open_workdir(folder, Settings())
    open_workdir(folder, Settings(steps=20), changeable=("steps",))
    assert json.loads((folder / "config.json").read_text())["steps"] == 20
    other = Settings(steps=20, inner=Inner(rate=0.5))
    open_workdir(folder, other, changeable=("inner.rate",))
    assert json.loads((folder / "config.json").read_text())["inner"]["rate"] == 0.5


def test_of_other_settings_is_refused_and_left_alone(tmp_path):
    open_workdir(tmp_path, Settings())
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"inner.rate is None there and 0.5 here; inner.sizes is"):
        open_workdir(tmp_path, Settings(inner=Inner(sizes=(1,), rate=0.5)))
    with pytest.raises(ValueError, match="steps is 10 there and 20 here"):
        open_workdir(tmp_path, Settings(steps=20))
    assert (tmp_path / "config.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "version.txt"}


def test_of_another_version_of_the_code_goes_on_with_a_warning(tmp_path, monkeypatch, caplog):
    for version in ("1", "1"):
        monkeypatch.setattr(workdirs, "code_version", lambda version=version: version)
        open_workdir(tmp_path, Settings())
    assert not caplog.text
    monkeypatch.setattr(workdirs, "code_version", lambda: "2")
    open_workdir(tmp_path, Settings())
    assert f"{tmp_path} was made by version 1 of the code so far, and goes on by 2." in caplog.text
    assert (tmp_path / "version.txt").read_text() == "2\n"


def test_of_older_code_may_be_continued_with_the_defaults_of_what_it_did_not_know(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"inner": {"sizes": [1, 2]}}))
    open_workdir(tmp_path, Settings())
    (tmp_path / "config.json").write_text(json.dumps({"steps": 10}))
    with pytest.raises(ValueError, match=r"config: inner.rate is None there and 0.5 here"):
        open_workdir(tmp_path, Settings(inner=Inner(rate=0.5)))
    open_workdir(tmp_path, Settings())
    assert json.loads((tmp_path / "config.json").read_text())["inner"]["rate"] is None


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_damaged_config_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="Workdir"):
        open_workdir(tmp_path, Settings())
    assert (tmp_path / "config.json").read_text() == content


def log(folder, first: int, last: int, *, resume_at: int = 0) -> None:
    with MetricsLog(folder) as metrics:
        metrics.continue_from(resume_at)
        for step in range(first, last + 1):
            metrics.write(step, {"meta_step": step, "loss": step / 2, "agents": {"task": ["x"]}})


def steps(folder) -> list[int]:
    return [
        json.loads(line)["meta_step"]
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def test_later_steps_are_dropped_when_a_run_goes_on(tmp_path):
    log(tmp_path, 1, 5)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    log(tmp_path, 4, 6, resume_at=3)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert len(list((tmp_path / "tensorboard").iterdir())) >= 1


@pytest.mark.parametrize("missing", [1, 2, 20])
def test_line_that_was_cut_off_is_dropped(tmp_path, missing):
    """By a kill while it was written: even if but the end of the line is missing."""
    log(tmp_path, 1, 3)
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-missing])
    log(tmp_path, 3, 4, resume_at=3)
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_metrics_that_cannot_be_written(tmp_path):
    with MetricsLog(tmp_path) as metrics:
        metrics.continue_from(0)
        (tmp_path / "metrics.jsonl").mkdir()
        with pytest.raises(OSError, match=f"Cannot write metrics in {tmp_path}: "):
            metrics.write(1, {"meta_step": 1})
