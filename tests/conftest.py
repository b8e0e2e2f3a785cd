"""Settings of every test run. Read before JAX is imported.

Child processes of tests inherit them as environment variables.
"""

import collections
import functools
import gc
import os
import pathlib
import platform
import shutil

os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import jax
import optax
import pytest

from tests import annotations

annotations.check()  # Before the first import of ours.

from disco_common import compilation  # noqa: E402
from environments.errors import NoReleaseError  # noqa: E402

# Traces consist of many small objects: by default a quarter of all time is the collector's.
gc.set_threshold(50_000, 20, 50)
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def _promote(module, name):
    """Lets a function of another package mix dtypes."""
    function = getattr(module, name)

    @functools.wraps(function)
    def promoting(*args, **kwargs):
        with jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    setattr(module, name, promoting)


_promote(optax.tree, "bias_correction")

# A minute or more each. They go first, so that no worker is left with one of them at the end.
_LONGEST = """test_docs.py evaluation/test_baselines.py launch/test_discover.py
    evaluation/test_gymnasium.py agents/dreamer/test_agent.py meta/test_host_groups.py
    meta/test_evolution.py meta/test_discovery.py evaluation/studies/test_analysis.py
    evaluation/test_executors.py launch/test_watch.py launch/test_probes.py disco/test_golden.py
    agents/dreamer/test_golden.py launch/test_processes.py launch/test_sweep.py
    disco/test_gradient.py test_zoo.py""".split()
_TESTS = pathlib.Path(__file__).parent
# Compiled programs, which may use what this machine's processor has and another's has not.
_CACHE = _TESTS.parent / ".jax_cache" / platform.node()
_LARGEST_CACHE = 2 * 2**30  # In bytes.
# Not yet: Dreamer's and IRIS' networks, and environments and evaluations with other packages.
_STRICT_RANKS = (
    "disco/",
    "meta/",
    "training/",
    "agents/dice/",
    "agents/muesli/",
    "agents/muzero/",
    "agents/ppo/",
    "agents/test_rule_agent.py",
)


def pytest_configure(config):
    """Tests compile more than they compute: fast, and each program once, also for later runs."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # It has inherited all of it.
        return
    flags = [
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
    if getattr(config.option, "numprocesses", None):  # As many processes as processors.
        flags.append(compilation.ONE_THREAD)
    os.environ["XLA_FLAGS"] = compilation.xla_flags(*flags)
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        if sum(x.stat().st_size for x in _CACHE.glob("*")) > _LARGEST_CACHE:
            shutil.rmtree(_CACHE, ignore_errors=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_CACHE)
        jax.config.update("jax_compilation_cache_dir", str(_CACHE))


def pytest_collection_modifyitems(items):
    """Whole modules stay together (`--dist loadfile`), and with them what their tests share."""
    places = {_TESTS / name: i for i, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    return (yield from _skipping_engines_without_release())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    return (yield from _skipping_engines_without_release())


def _skipping_engines_without_release():
    """Skips a test that asks for an engine which has no release for this Python."""
    try:
        return (yield)
    except NoReleaseError as error:
        pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter):
    """Says of all that was skipped why, each reason once."""
    reasons = collections.Counter()
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped, and why")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:5} {reason}")


@pytest.fixture(autouse=True, scope="module")
def _limit_programs():
    """After each module."""
    yield
    compilation.limit_programs()


@pytest.fixture(autouse=True, scope="module")
def _strict_ranks(request):
    """No array is broadcast to more axes implicitly, in the tests of what strict users call."""
    place = request.path.relative_to(_TESTS).as_posix()
    with jax.numpy_rank_promotion("raise" if place.startswith(_STRICT_RANKS) else "allow"):
        yield
