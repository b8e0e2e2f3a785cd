"""Names of rules: published weights in the user's cache, and a hub on the loopback."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import disco
from disco import rule_sources
from disco_common import files
from tests.disco import hub
from tests.disco.common import small_rule
from tests.golden import WEIGHTS


@pytest.fixture(scope="module")
def rule_bytes(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("rule") / "rule.npz"
    disco.save(small_rule(), path, {"seed": 7})
    return path.read_bytes()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Hashes.


def test_a_pinned_hash_is_required(tmp_path, rule_bytes):
    path = tmp_path / "rule.npz"
    path.write_bytes(rule_bytes)
    right = sha256(rule_bytes)
    assert rule_sources.sha256_of(path) == right
    assert disco.load(path, sha256=right).sizes == small_rule().sizes
    assert disco.load(path, sha256=right.upper()).sizes == small_rule().sizes
    wrong = "0" * 64
    message = f"{path} has the SHA-256 {right}; expected {wrong}."
    with pytest.raises(disco.RuleFileError, match=re.escape(message)):
        disco.load(path, sha256=wrong)
    with pytest.raises(disco.RuleFileError, match=f"expected {wrong}"):
        disco.load("three_families", sha256=wrong)


@pytest.mark.parametrize("hash_", ["", "123", "g" * 64])
def test_a_hash_that_is_none_is_refused(hash_):
    with pytest.raises(ValueError, match=f"sha256 is {hash_!r}; expected 64 hexadecimal digits"):
        disco.load("three_families", sha256=hash_)


# Published weights in the user's cache folder.


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"DISCO_CACHE_DIR": "here", "XDG_CACHE_HOME": "other"}, "here"),
        ({"XDG_CACHE_HOME": "other"}, "other/disco"),
        ({}, ".cache/disco"),
    ],
)
def test_the_cache_folder(tmp_path, monkeypatch, variables, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DISCO_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    assert files.user_cache() == tmp_path / folder


def test_published_weights_that_are_absent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCO_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError) as error:
        disco.load("disco_103")
    message = str(error.value)
    origin = "github.com/google-deepmind/disco_rl, disco_rl/update_rules/weights/disco_103.npz"
    for part in (origin, str(tmp_path / "cache/disco_103.npz"), "DISCO_CACHE_DIR", "SHA-256 must"):
        assert part in message


def test_other_weights_of_the_published_name_are_refused(tmp_path, monkeypatch, rule_bytes):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCO_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "cache/disco_103.npz"
    path.parent.mkdir()
    path.write_bytes(rule_bytes)
    message = rf"disco_103: {path} has the SHA-256 {sha256(rule_bytes)}; expected dac840a1"
    with pytest.raises(disco.RuleFileError, match=message):
        disco.load("disco_103")


def test_published_weights_are_loaded_by_name(tmp_path, monkeypatch):
    if not WEIGHTS.is_file():
        pytest.skip(f"no published weights at {WEIGHTS} (set DISCO103_WEIGHTS)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCO_CACHE_DIR", str(tmp_path))
    shutil.copyfile(WEIGHTS, tmp_path / "disco_103.npz")
    assert disco.load("disco_103").sizes == disco.MetaNetworkSizes()


# The hub.


@pytest.mark.parametrize(
    ("name", "short", "longer"),
    [
        ("runs/mine/rule.npz", "rule", "mine_rule"),
        ("hf:owner/name", "name", "owner_name"),
        ("hf:owner/na.me@v1", "na.me", "owner_na.me_v1"),
        ("hf:owner/name/more/grid57.npz", "grid57", "owner_name_grid57"),
    ],
)
def test_short_names(name, short, longer):
    assert rule_sources.short_names(name) == (short, longer)


@pytest.mark.parametrize(
    "name", ["hf:", "hf:name", "hf:owner/", "hf:a/b/rule.txt", "hf:a/b/../rule.npz", "hf:a/b@"]
)
def test_malformed_names_are_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' is no name of a rule of the hub; expected"):
        disco.load(name)


_LOADING = """
import json, sys
import disco
for name, sha256 in json.load(sys.stdin):
    try:
        rule, kind, text = disco.load(name, sha256=sha256), "rule", ""
        text = str(rule.sizes.prediction)
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    print(json.dumps([kind, text]))
"""


def loaded(names, environment) -> list[list[str]]:
    """Each name's kind of outcome, "rule" or the error's, and a text, of a process of its own."""
    pairs = [name if isinstance(name, tuple) else (name, None) for name in names]
    done = subprocess.run(
        [sys.executable, "-c", _LOADING],
        input=json.dumps(pairs),
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def outcomes(rule_bytes, tmp_path_factory):
    """What names give, by name; and what two of them give later, without a network."""
    files = {
        "rule.npz": rule_bytes,
        "more/other.npz": rule_bytes,
        "README.md": b"#",
        "damaged.npz": b"not a rule",
    }
    names = [
        "hf:someone/rules",
        "hf:someone/rules@v1",
        f"hf:someone/rules/more/other.npz@{hub.COMMIT}",
        ("hf:someone/rules", sha256(rule_bytes)),
        ("hf:someone/rules", "0" * 64),
        "hf:someone/rules/damaged.npz",
        "hf:someone/rules/missing.npz",
        "hf:someone/rules@v2",
        "hf:someone/else",
        "hf:someone/empty",
        "hf:someone/gated",
    ]
    home = {"HF_HOME": str(tmp_path_factory.mktemp("home"))}
    with hub.serving({"someone/rules": files, "someone/empty": {}, "someone/gated": {}}) as (
        environment,
        requests,
    ):
        found = dict(zip(map(str, names), loaded(names, environment | home), strict=True))
    assert any(x.startswith("GET /someone/rules/resolve/main/rule.npz") for x in requests)
    later = ["hf:someone/rules", "hf:someone/rules/new.npz"]
    # Refused connections give the same, after some tries of the hub's package.
    offline = environment | home | {"HF_HUB_OFFLINE": "1"}
    return found, dict(zip(later, loaded(later, offline), strict=True))


@pytest.mark.parametrize(
    "name",
    [
        "hf:someone/rules",
        "hf:someone/rules@v1",
        f"hf:someone/rules/more/other.npz@{hub.COMMIT}",
    ],
)
def test_rules_of_the_hub_are_loaded(outcomes, name):
    assert outcomes[0][name] == ["rule", str(small_rule().sizes.prediction)]


def test_a_pinned_hash_is_required_of_the_hub(outcomes, rule_bytes):
    right, wrong = sha256(rule_bytes), "0" * 64
    assert outcomes[0][str(("hf:someone/rules", right))][0] == "rule"
    kind, message = outcomes[0][str(("hf:someone/rules", wrong))]
    assert kind == "RuleFileError"
    assert message.startswith("hf:someone/rules: ")
    assert f"has the SHA-256 {right}; expected {wrong}." in message


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("hf:someone/rules/damaged.npz", "RuleFileError", "is not an npz archive"),
        (
            "hf:someone/rules/missing.npz",
            "FileNotFoundError",
            "no file 'missing.npz' of revision 'main' of the repository 'someone/rules'",
        ),
        ("hf:someone/empty", "FileNotFoundError", "no file 'rule.npz' of revision 'main'"),
        ("hf:someone/rules@v2", "FileNotFoundError", "no file 'rule.npz' of revision 'v2' of"),
        ("hf:someone/gated", "PermissionError", "the repository is gated; accept its terms"),
        ("hf:someone/else", "FileNotFoundError", "of the repository 'someone/else', or"),
    ],
)
def test_what_the_hub_lacks_is_said_in_a_sentence(outcomes, name, kind, message):
    assert outcomes[0][name][0] == kind
    assert message in outcomes[0][name][1]


def test_without_the_hub_its_cache_is_used(outcomes):
    assert outcomes[1]["hf:someone/rules"][0] == "rule"
    kind, message = outcomes[1]["hf:someone/rules/new.npz"]
    assert kind == "FileNotFoundError"
    assert message.startswith("hf:someone/rules/new.npz: it was not downloaded before, and now it")
    assert len(message.splitlines()) == 1


def test_without_the_package_a_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'disco-update-rules\[hub\]'"):
        disco.load("hf:someone/rules")
