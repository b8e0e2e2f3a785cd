"""Values of flags that name nothing, or something of another kind, and what refuses them."""

import json
import pathlib
import random
from typing import Any

# What is there and is not what any flag wants: it must not be called.
_THINGS = (
    "os:system", "os:getcwd", "os:_exit", "os:environ", "sys:exit", "sys:version", "builtins:print",
    "builtins:int", "builtins:exit", "builtins:breakpoint", "builtins:input", "json:loads",
    "time:sleep", "shutil:rmtree", "subprocess:run", "antigravity:fly", "this:s", "typing:Any",
    "functools:partial", "test.support:verbose", "numpy:zeros", "numpy:pi", "numpy:save",
    "jax:devices", "jax.numpy:zeros", "haiku:transform", "optax:adam", "rich:print", "pytest:main",
    "matplotlib.pyplot:show", "absl.app:run", "disco:zoo", "disco:Rule", "disco:save",
    "environments:suites", "environments:Environment", "environments.registry:PLUGINS",
    "agents.registry:Algorithm", "launch.support.commands:version", "launch.watch:main",
    "tests.fuzz.names:raising", "tests.fuzz.names:ending", "tests.fuzz.names:none", "no_module:x",
    "tests.fuzz:names", "__main__:main", "os:", ":x", "a..b:c", "..a:b",
)  # fmt: skip
_CONTROLS = ("\0", "\x1b[31m", "\x1b]0;x\x07", "\r", "\n", "\u2028", "\u202e", "\udcff", "\x9b2J")
_DEEP = ("(", "[", "{", "((", "-", "not ", "[[", "{1:", "a.", "1+", "../", "x,", "%28", '["', "'")
_NUMBERS = ("9" * 5_000, "-1" + 50 * "0", "1e999", "nan", "inf", "-inf", "0x" + "f" * 999, "1" * 50)
_PLACES = ("/dev/zero", "/dev/tty", "/dev/stdin", "/proc/self/mem", "/", ".", "~", "~nobody/x")
_FIELDS = ("seed", "meta_steps", "meta.learning_rate", "agent.network.torso", "agent.batch_size")
# Of each flag, what may stand before such a value.
_FLAGS = {
    "--suite": (
        *("", "catch/", "deep_sea/", "grid57/", "pixels/", "pixels/catch/", "bsuite/", "no/"),
        *("gymnasium/", "gymnasium/CartPole-v1?x=", "gymnasium/CartPole-v1?render_mode="),
        *("gymnasium/no_module:", "gymnasium/os:", "sokoban/", "sokoban/file:", "lpg/", "control/"),
    ),
    "--rule": ("", "hf:", "hf:x/", "no/"),
    "--agent": ("", "dreamer/", "iris/", "muzero/no,", "no/"),
    "--config": ("", "no.py:", "grid57_laptop:"),
    "--config.": tuple(f"{field}=" for field in _FIELDS),
    "--env_kwargs": ("", '{"x": ', '{"render_mode": ', '{"'),
    "--runs": ("", "no/"),
    "--run": ("", "no/runs/ppo/catch/seed_"),
    "--vary": ("", "config.seed=", "config.no=", "config."),
    "disco.load": ("", "no/"),
}


def raising(*arguments: str) -> Any:
    """Fails as no plugin should."""
    raise KeyError(arguments)


def ending(*arguments: str) -> Any:
    """Would end the process."""
    raise SystemExit(0)


def none(*arguments: str) -> Any:
    """Makes nothing."""


def hostile(rng: random.Random) -> tuple[str, str]:
    """Returns a flag and a value that it must refuse."""
    flag = rng.choice(list(_FLAGS))
    before = rng.choice(_FLAGS[flag])
    kind = rng.choice(["thing", "control", "deep", "long", "number", "place"])
    value = {
        "thing": rng.choice(_THINGS) + rng.choice(["", "", "/x", "/"]),
        "control": f"x{rng.choice(_CONTROLS)}y",
        "deep": rng.choice(_DEEP) * rng.choice([50, 1_000, 20_000]),
        "long": rng.choice(["a", "a ", "é", "🎉", "a/", "0"]) * 10_000,
        "number": rng.choice(_NUMBERS),
        "place": rng.choice(_PLACES),
    }[kind]
    after = rng.choice(["", "}", '"}']) if flag == "--env_kwargs" else ""
    return flag, before + value + after


def read(flag: str, value: str, folder: pathlib.Path) -> str:
    """Does with a value what commands do with it before anything starts; returns what it made."""
    import disco
    from agents import registry
    from disco_common.configuration import from_config
    from evaluation import contenders, loading
    from evaluation.evaluate import tasks_of
    from launch import report
    from launch.support import evaluation_flags, sweeps
    from launch.support.command_flags import listed_paths, parse_config
    from launch.support.discovery_config import DiscoveryRunConfig
    from tests.evaluation.common import CONFIG

    if flag == "--suite":
        made: Any = [task.name for task in tasks_of(evaluation_flags.listed(value))]
    elif flag == "--env_kwargs":
        made = [
            x.name for x in tasks_of(evaluation_flags.suites_of("gymnasium/CartPole-v1", value))
        ]
    elif flag == "--rule":
        rules = listed_paths([value])
        made = [
            x.name
            for x in contenders.make_contenders(contenders.rule_contenders(rules, CONFIG), CONFIG)
        ]
    elif flag == "--agent":
        made = registry.configured(value)
    elif flag == "--config":
        made = from_config(DiscoveryRunConfig, parse_config([f"--config={value}"]))
    elif flag == "--config.":
        config = parse_config(["--config=grid57_laptop", f"--config.{value}"])
        made = from_config(DiscoveryRunConfig, config)
    elif flag == "--runs":
        made = report.write(listed_paths([value]), str(folder / "report"), "title")
    elif flag == "--run":
        made = loading.load_agent(value)
    elif flag == "--vary":
        made = sweeps.make_points(["--config=grid57_laptop"], [value])
    else:
        made = disco.load(value)
    return json.dumps(made, default=repr)
