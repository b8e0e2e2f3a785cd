"""The fuzzer: what it damages is noticed, and what is wrong is told."""

import dataclasses
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

from tests.fuzz import damage
from tests.fuzz.__main__ import run_case
from tests.fuzz.reading import Reader
from tests.fuzz.targets import TARGETS, WRITTEN

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_nothing_is_wrong_with_some_cases():
    command = [sys.executable, "-m", "tests.fuzz", "--seconds=8", "--seed=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert " rule, " in done.stdout


class Answering(Reader):
    """A reader that answers what it is told to."""

    def __init__(self, *answer):
        super().__init__()
        self._answer = answer

    def ask(self, request, name, folder, seconds):
        del request, name, seconds
        return tuple(x.format(folder=folder) if isinstance(x, str) else x for x in self._answer)


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (("refused", "{folder}/rule.npz is damaged.", 0), ""),
        (("value", "good", 0), ""),
        (("value", "other", 0), "another value: other"),
        (("refused", "it is damaged", 0), "no file is named: it is damaged"),
        (("refused", "{folder} is\ndamaged", 0), "no sentence"),
        (("traceback", "KeyError", 0), "traceback: KeyError"),
        (("hangs", "for more than 20 s", 0), "hangs: for more than 20 s"),
        (("refused", "{folder}/rule.npz is damaged.", 2 << 30), "2.0 GiB of memory"),
    ],
)
def test_what_is_wrong_is_told(tmp_path, monkeypatch, answer, wrong):
    original = tmp_path / "rule" / WRITTEN
    original.mkdir(parents=True)
    np.savez(original / "rule.npz", x=np.zeros(3))
    cut = dataclasses.replace(
        TARGETS["rule"],
        damage=lambda rng, folder: (damage.truncated(rng, folder / "rule.npz"), False),
    )
    monkeypatch.setitem(TARGETS, "rule", cut)
    done, found = run_case(Answering(*answer), "rule", 0, 0, tmp_path, "good")
    assert "truncated to" in done
    assert found.startswith(wrong) if wrong else found == ""
    assert (original / "rule.npz").stat().st_size > 0


@pytest.mark.parametrize("name", ["truncated", "flipped", "overwritten", "replaced"])
def test_the_same_seed_does_the_same_damage(tmp_path, name):
    for seed in range(5):
        results = []
        for _ in range(2):
            path = tmp_path / "file"
            path.write_bytes(bytes(range(256)))
            said = getattr(damage, name)(random.Random(seed), path)
            results.append((said, path.read_bytes() if path.is_file() else path.is_dir()))
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        assert results[0] == results[1]
