"""Other packages' entry points that fail, as if their packages were installed."""

import re

import pytest

import environments
from agents import registry as agent_registry
from disco_common import plugins
from environments import registry
from evaluation import contenders, rules
from evaluation.config import EvaluationConfig
from tests.launch.common import outcomes_of

MODULE = """
def value(parameters=""):
    raise ValueError(f"no size {parameters!r}")

def key(*parameters):
    return {}["x"]

def package(*parameters):
    import no_such_package

nothing = None
number = 7
"""
# Of each: what it stands for, what happens, and the reason.
ENTRIES = {
    "gone": ("no_such_module:make", "cannot be imported", "ModuleNotFoundError: No module named"),
    "broken": ("broken_lamps:make", "cannot be imported", "ImportError: no lamp here"),
    "crash": ("crashing_lamps:make", "cannot be imported", "ZeroDivisionError: division by zero"),
    "nameless": ("my_bad_lamps:absent", "cannot be imported", "AttributeError: module"),
    "key": ("my_bad_lamps:key", "fails", "KeyError: 'x'"),
    "package": ("my_bad_lamps:package", "fails", "No module named 'no_such_package'"),
    "uncallable": ("my_bad_lamps:nothing", "fails", "TypeError: 'NoneType' object is not callable"),
}
MAKE = {  # Of functions.
    registry.PLUGINS: lambda name: environments.make(f"{name}/4"),
    rules.PLUGINS: lambda name: contenders.make_contenders(
        contenders.rule_contenders([name], EvaluationConfig()), EvaluationConfig()
    ),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "my_bad_lamps.py").write_text(MODULE)
    (tmp_path / "broken_lamps.py").write_text("raise ImportError('no lamp here')")
    (tmp_path / "crashing_lamps.py").write_text("1 / 0")
    about = tmp_path / "my_bad_lamps-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: my-bad-lamps\nVersion: 0.1\n")
    lines = []
    for group in MAKE:
        lines += [f"[{group}]", "refusing = my_bad_lamps:value"]
        lines += [f"{name} = {what}" for name, (what, *_) in ENTRIES.items()]
    lines += [f"[{agent_registry.PLUGINS}]", "crash_agent = crashing_lamps:make"]
    lines += ["number_agent = my_bad_lamps:number"]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("group", MAKE)
@pytest.mark.parametrize("name", ENTRIES)
def test_a_failing_plugin_is_named_with_its_package_and_the_reason(package, group, name):
    what, happens, reason = ENTRIES[name]
    sentence = f"{name!r} of my-bad-lamps 0.1 (entry point {what!r} of the group {group!r}) "
    expected = f"{re.escape(sentence + happens)}.*: .*{re.escape(reason)}"
    with pytest.raises(plugins.PluginError, match=expected) as caught:
        MAKE[group](name)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("group", MAKE)
def test_what_a_plugin_refuses_remains_a_value_error(package, group):
    with pytest.raises(ValueError, match=r"^'refusing' of my-bad-lamps 0\.1: no size '4?'$"):
        MAKE[group]("refusing")


def test_a_value_that_is_no_algorithm_is_refused(package):
    with pytest.raises(plugins.PluginError, match=r"my-bad-lamps .* cannot be imported: ZeroDiv"):
        agent_registry.configured("crash_agent")
    with pytest.raises(plugins.PluginError, match=r"is a value of type int; expected Algorithm"):
        agent_registry.configured("number_agent")


def test_what_is_no_plugin_is_not_there(package):
    assert plugins.find(registry.PLUGINS, "lantern") is None
    assert set(ENTRIES) <= set(plugins.names(registry.PLUGINS))


def test_a_command_ends_by_it_in_a_sentence(package):
    """Also where it is looked up to define flags, as that of `--suite` is."""
    workdir = f"--workdir={package / 'run'}"
    cases = {
        "environment": ("launch.evaluate", "--suite=crash/4", workdir),
        "rule": ("launch.evaluate", "--rule=crash", "--suite=catch/5x5", workdir),
        "agent": ("launch.evaluate", "--agent=crash_agent", "--suite=catch/5x5", workdir),
        "task": ("launch.evaluate", "--suite=key/4", workdir),
        "traceback": ("launch.evaluate", "--suite=crash/4", workdir, "--verbosity=1"),
    }
    found = outcomes_of(cases, path=[str(package)])
    for name, (status, output) in found.items():
        assert status == 2, output
        assert f"{cases[name][0]}: '" in output
        assert "of my-bad-lamps 0.1 (entry point" in output
        assert ("Traceback" in output) == (name == "traceback")
        assert ("ZeroDivisionError: division by zero" in output) == (name != "task")
    assert not (package / "run").exists()
