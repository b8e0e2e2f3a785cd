"""Folders of runs: their settings and metrics."""

import dataclasses
import json
import pathlib

import pytest

from launch.support import workdirs
from launch.support.discovery_config import DiscoveryRunConfig
from launch.support.workdirs import require_same_settings


@dataclasses.dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...] = (1, 2)
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = 10
    inner: Inner = Inner()


def open_workdir(workdir, settings, changeable=(), **sources: str) -> pathlib.Path:
    """Opened, and closed again."""
    with workdirs.opened(workdir, settings, changeable, sources) as folder:
        return folder


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
    assert {x.name for x in tmp_path.iterdir()} == {".lock", "config.json", "version.txt"}


def test_of_another_version_of_the_code_goes_on_with_a_warning(tmp_path, monkeypatch, caplog):
    for version in ("1", "1"):
        monkeypatch.setattr(workdirs, "code_version", lambda version=version: version)
        open_workdir(tmp_path, Settings())
    assert not caplog.text
    monkeypatch.setattr(workdirs, "code_version", lambda: "2")
    open_workdir(tmp_path, Settings())
    assert f"{tmp_path} was made by version 1 of the code so far, and continues" in caplog.text
    assert (tmp_path / "version.txt").read_text() == "2\n"


def test_of_older_code_may_be_continued_with_the_defaults_of_what_it_did_not_know(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"inner": {"sizes": [1, 2]}}))
    open_workdir(tmp_path, Settings())
    (tmp_path / "config.json").write_text(json.dumps({"steps": 10}))
    with pytest.raises(ValueError, match=r"config: inner.rate is None there and 0.5 here"):
        open_workdir(tmp_path, Settings(inner=Inner(rate=0.5)))
    open_workdir(tmp_path, Settings())
    assert json.loads((tmp_path / "config.json").read_text())["inner"]["rate"] is None


DAMAGED = {
    "empty": (b"", "Expecting value"),
    "cut off": (b"{", "Expecting property name"),
    "a list": (b"[]", "it has a list; expected an object"),
    "a number": (b"7", "it has a int; expected an object"),
    "null": (b"null", "it has a NoneType; expected an object"),
    "not UTF-8": (b'{"steps": "\xff"}', "byte 11 is not UTF-8"),
    "nested deeply": (b"[" * 100_000, "it is nested too deeply"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_config_is_refused_in_a_sentence_that_names_it(tmp_path, name):
    content, reason = DAMAGED[name]
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"^Workdir '.*' cannot be used: .*\.$") as caught:
        open_workdir(tmp_path, Settings())
    assert f"{tmp_path / 'config.json'} is damaged: {reason}" in str(caught.value)
    assert (tmp_path / "config.json").read_bytes() == content


def test_config_with_a_number_that_no_float_can_hold_is_refused(tmp_path):
    content = b'{"steps": ' + b"1" * 10_000 + b"}"
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"another config: steps is inf there and 10 here.*\.$"):
        open_workdir(tmp_path, Settings())
    assert (tmp_path / "config.json").read_bytes() == content


@pytest.mark.parametrize("depth", [600, 950, 5000])
def test_settings_that_are_nested_deeply_are_refused_in_a_sentence(tmp_path, depth):
    """What JSON's parser allows may be too deep for others."""
    for nested in ("[" * depth + "]" * depth, '{"x":' * depth + "0" + "}" * depth):
        (tmp_path / "config.json").write_text(f'{{"steps": 10, "inner": {nested}}}')
        with pytest.raises(ValueError, match=r"^Workdir .*(inner.*there|too deeply)") as caught:
            open_workdir(tmp_path, Settings())
        assert len(str(caught.value)) < 20_000


def test_workdir_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for use in (open_workdir, require_same_settings):
        with pytest.raises(ValueError, match=r"^Workdir '.*' cannot be used: "):
            use(tmp_path / "file", Settings())


def test_config_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ValueError, match=r"cannot be used: .*Is a directory: '.*config\.json'\.$"):
        open_workdir(tmp_path, Settings())


def test_version_that_cannot_be_read_is_told_and_written_anew(tmp_path, caplog):
    version = tmp_path / "version.txt"
    version.write_bytes(b"\xff")
    open_workdir(tmp_path, Settings())
    assert "was made by version (unknown: 'utf-8' codec can't decode byte 0xff" in caplog.text
    assert version.read_text() == f"{workdirs.code_version()}\n"
    caplog.clear()
    version.write_text("\x1b[2J" + "1" * 10_000)
    open_workdir(tmp_path, Settings())
    assert "was made by version \\x1b[2J111" in caplog.text
    assert len(caplog.text) < 1000
    version.unlink()
    version.mkdir()
    with pytest.raises(ValueError, match=r"cannot be used: .*version\.txt"):
        open_workdir(tmp_path, Settings())


# Files that tasks are read from.


def test_files_of_tasks_may_not_change(tmp_path):
    open_workdir(tmp_path, Settings())
    assert not (tmp_path / "sources.json").exists()  # As of a run of older code.
    for _ in range(2):
        open_workdir(tmp_path, Settings(), a="1", b="2")
    with pytest.raises(ValueError, match=r"since the run .*: b is '2' there and '3' here\. Choose"):
        open_workdir(tmp_path, Settings(), a="1", b="3")
    with pytest.raises(ValueError, match="b is '2' there and None here"):
        open_workdir(tmp_path, Settings(), a="1")
    with pytest.raises(ValueError, match="with another config: steps is"):
        open_workdir(tmp_path, Settings(steps=1), a="1")
    require_same_settings(tmp_path, Settings())  # Of whoever does not know the files.
    (tmp_path / "sources.json").write_text("[")
    with pytest.raises(ValueError, match=r"sources\.json is damaged"):
        open_workdir(tmp_path, Settings(), a="1")


def test_a_discovery_whose_learning_rate_fell_is_not_continued_at_a_constant_one(tmp_path):
    settings = DiscoveryRunConfig()
    stored = dataclasses.asdict(settings)
    for steps in (0, 500):
        stored["meta"] |= {"learning_rate_decay_steps": steps, "end_learning_rate": 0.1}
        (tmp_path / "config.json").write_text(json.dumps(stored))
        if not steps:
            require_same_settings(tmp_path, settings)
    with pytest.raises(ValueError, match=r"learning_rate_decay_steps is 500, .*; expected 0"):
        require_same_settings(tmp_path, settings)
