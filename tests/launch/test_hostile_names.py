"""Names of nothing, and of things that are not what a flag wants, are refused in one sentence."""

import os
import random

import pytest

import disco
import environments
from agents import registry as agents
from disco_common import terminal
from disco_common.plugins import PluginError
from environments import registry
from evaluation import contenders
from evaluation.evaluate import tasks_of
from launch.support.command_flags import listed_paths
from tests.common import at_once
from tests.disco.common import small_rule
from tests.evaluation.common import CONFIG
from tests.fuzz import names
from tests.launch.common import after_start, outcomes_of

LONG = "-" * 20_000
MODULE = """
import dataclasses
import disco
import environments
from agents.registry import Algorithm

CALLED = []

def other(parameters="") -> dict:
    CALLED.append("other")

def few():
    CALLED.append("few")

def many(parameters, more):
    CALLED.append("many")

def unsaid(parameters=""):
    return 7

def ending(parameters=""):
    raise SystemExit(0)

def failing(parameters=""):
    return {}["x"]

def refusing(parameters=""):
    raise ValueError("not so large")

def make(parameters):
    return environments.make("catch/5x5")

def annotated() -> "disco.Rule":
    return disco.ActorCritic()

class Own(disco.ActorCritic):
    pass

@dataclasses.dataclass(frozen=True)
class NoSettings:
    pass

def train(config, task, seed, num_steps, folder, checkpoint_seconds):
    pass

algorithm = Algorithm("mine", "", {"default": NoSettings()}, train=train)

class Endless:
    def __getattr__(self, name):
        return Endless()

endless = Endless()

number = 7
"""
# Of a group of functions: what makes something of a name.
MAKE = {
    "environment": lambda name: environments.make(f"{name}/4"),
    "rule": lambda name: contenders.rule_contenders([name], CONFIG)[-1].rule,
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_things.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import my_things  # pyright: ignore[reportMissingImports]

    my_things.CALLED.clear()
    return my_things


# Of a name, a part of what is said.
NEVER_CALLED = {
    "os:system": "which comes with Python",
    "json:loads": "which comes with Python",
    "builtins:print": "which comes with Python",
    "antigravity:fly": "which comes with Python",
    "my_things:number": "is a value of type int",
    "my_things:CALLED": "is a value of type list",
    "my_things:disco": "is a value of type module",
    "my_things:endless": "is a value of type Endless",
    "numpy:zeros": "is a value of type builtin_function_or_method",
    "numpy:float64": "is of an installed package",
    "optax:adam": "is of an installed package",
    "my_things:absent": "cannot be imported: AttributeError",
    "no_such_module:make": "cannot be imported: ModuleNotFoundError",
}


@pytest.mark.parametrize("group", MAKE)
@pytest.mark.parametrize("name", NEVER_CALLED)
def test_what_is_of_another_kind_is_not_called(module, monkeypatch, group, name):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("It was called."))
    with pytest.raises(PluginError) as caught:
        MAKE[group](name)
    assert repr(name) in str(caught.value)
    assert NEVER_CALLED[name] in str(caught.value)
    assert not module.CALLED


@pytest.mark.parametrize("group", MAKE)
def test_what_turns_out_to_be_of_another_kind_is_refused(module, group):
    for name, said in (
        ("unsaid", r"returns a value of type int; expected [A-Z]"),
        ("other", r"returns a value of type NoneType; expected [A-Z]"),
        ("many", r"fails: TypeError: many\(\) missing"),
        ("ending", "fails: SystemExit: 0"),
        ("failing", r"fails: KeyError: 'x' \(.*my_things\.py, line 25\)"),
    ):
        with pytest.raises(PluginError, match=f"^'my_things:{name}' {said}"):
            MAKE[group](f"my_things:{name}")
    with pytest.raises(ValueError, match=r"^'my_things:refusing': not so large$"):
        MAKE[group]("my_things:refusing")


def test_functions_of_the_right_kind_are_plugins(module):
    assert environments.make("my_things:make/4").name == "my_things:make/4"
    assert isinstance(MAKE["rule"]("my_things:annotated"), disco.ActorCritic)
    assert isinstance(MAKE["rule"]("my_things:Own"), module.Own)
    assert agents.find("my_things:algorithm") is module.algorithm
    with pytest.raises(PluginError, match="TypeError: few\\(\\) takes 0"):
        MAKE["environment"]("my_things:few")


@pytest.mark.parametrize("name", ["other", "many", "failing", "number", "CALLED", "Own", "absent"])
def test_what_is_no_algorithm_is_not_called(module, name):
    said = "cannot be imported" if name == "absent" else "is a value of type .*; expected Algorithm"
    with pytest.raises(PluginError, match=f"'my_things:{name}' {said}"):
        agents.configured(f"my_things:{name}/4")
    assert not module.CALLED


SUITES = {
    "os:system": "which comes with Python",
    "os:getcwd": "which comes with Python",
    "builtins:print/x": "which comes with Python",
    "json:loads": "which comes with Python",
    f"gymnasium/CartPole-v1?x={LONG}1": "characters; expected at most",
    f"gymnasium/CartPole-v1?x={LONG[:4_000]}1": "nested too deeply",
    "gymnasium/CartPole-v1?render_mode=human2": "'human2'; expected one of ['human', 'rgb_array']",
    "gymnasium/os:system": "which comes with Python",
    "catch/100000x100000": "1 to 1000 columns",
    "deep_sea/1000000000": "at most 1000",
    "pixels/pixels/catch/5x5": "'pixels/' once",
    "sokoban/file:/dev/zero": "is a device; expected a regular file",
    "sokoban/file:\0": "embedded null byte",
}


@pytest.mark.parametrize("name", SUITES)
def test_an_environment_that_cannot_be_is_refused_at_once(name):
    if name.startswith("gymnasium/"):
        pytest.importorskip("gymnasium")
    with at_once(), pytest.raises((ValueError, ImportError)) as caught:
        tasks_of([name])
    assert SUITES[name] in str(caught.value)


def test_all_names_are_looked_up_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(registry, "make", lambda name: pytest.fail(f"{name} was made."))
    with pytest.raises(PluginError, match="'os:system'"):
        tasks_of(["catch/5x5", "os:system"])
    with pytest.raises(ValueError, match="no suite or environment 'nothing'"):
        tasks_of(["catch/5x5", "nothing"])
    for rules, others in ((["json:loads"], ()), ([], ["os:system"]), (["/dev/zero"], ())):
        with pytest.raises((PluginError, FileNotFoundError)):
            contenders.make_contenders(contenders.rule_contenders(rules, CONFIG), CONFIG, others)


def test_some_hundred_hostile_values_are_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rng = random.Random(0)
    for _ in range(200):
        flag, value = names.hostile(rng)
        with pytest.raises((ValueError, OSError, ImportError)) as caught, at_once():
            names.read(flag, value, tmp_path)
        shown = terminal.message(caught.value)
        assert shown.isprintable(), (flag, value[:100])
        assert 0 < len(shown) <= 2_000


def test_commands_end_in_a_sentence(tmp_path):
    """As whole processes, with status 2."""
    workdir = f"--workdir={tmp_path / 'run'}"
    cases = {
        name: ("launch.evaluate", "--rule=grid57", f"--suite={name}", workdir)
        for name in ("os:system", "json:loads", "gymnasium/CartPole-v1?render_mode=human2")
    } | {
        "long": ("launch.evaluate", f"--suite=gymnasium/CartPole-v1?x={LONG}1", workdir),
        "rule": ("launch.evaluate", "--rule=json:loads", "--suite=catch/5x5", workdir),
        "load": ("launch.evaluate", "--rule=disco:load", "--suite=catch/5x5", workdir),
        "agent": ("launch.evaluate", "--agent=os:system", "--suite=catch/5x5", workdir),
        "escape": ("launch.evaluate", "--rule=x\x1b[31m\n.npz", "--suite=catch/5x5", workdir),
        "task": ("launch.evaluate", "--suite=os:system", "--workdir=nowhere"),
        "discovery": ("launch.discover", "--config.suite=grid57,os:system", workdir),
        "start": ("launch.discover", "--config.rule.start=/dev/zero", workdir),
        "output": ("launch.report", f"--runs={tmp_path}", "--output=/dev/null/\x1b[31m\nx"),
    }
    for name, (status, output) in outcomes_of(cases).items():
        assert status == 2, (name, output)
        output = after_start(output)
        assert output.strip().isprintable(), (name, output)  # One line, without escapes.
        assert len(output) < 2_500, name
    assert not (tmp_path / "run").exists()


def test_a_home_folder_is_named_by_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    disco.save(small_rule(), "~/mine.npz")
    assert (tmp_path / "mine.npz").is_file()
    assert disco.load("~/mine.npz").sizes == small_rule().sizes
    assert listed_paths(["~/a,~/b", "~/c"]) == [f"{tmp_path}/{x}" for x in "abc"]


def test_a_path_may_have_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1,2").mkdir()
    assert listed_paths(["a,b", " c "]) == ["a", "b", "c"]
    assert listed_paths(["lr=1,2", "x"]) == ["lr=1,2", "x"]
