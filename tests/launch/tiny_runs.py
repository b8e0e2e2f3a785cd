"""Discovery runs of seconds (`discover_tiny`), as a user starts them, looked at from outside."""

import functools
import json
import pathlib
import subprocess
import time

from disco_common.checkpoints import Checkpoints
from evaluation.evaluate import tasks_of
from launch.support.command_flags import split_values
from launch.support.discovery_config import DiscoveryRunConfig, make_rule
from meta.estimators.meta_gradient import MetaGradient
from meta.population import DiscoveryState
from meta.run import restore
from tests.launch.common import TINY, start
from tests.launch.discover_tiny import META_STEPS, get_settings

TIMINGS = {
    "seconds",
    "meta_steps_per_second",
    "environment_steps_per_second",
    "memory_gib",
}


def start_tiny(
    workdir: pathlib.Path, *arguments: object, compiled: pathlib.Path
) -> subprocess.Popen[str]:
    """Starts a discovery on two devices; of those that share `compiled`, the first one compiles."""
    return start("launch.discover", f"--workdir={workdir}", TINY, *arguments, **quickly(compiled))


def quickly(compiled: pathlib.Path, num_devices: int = 2) -> dict[str, str]:
    """Environment variables for commands that compute little: what is compiled is kept."""
    return {
        "JAX_NUM_CPU_DEVICES": str(num_devices),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@functools.cache
def tiny_discovery() -> MetaGradient:
    return discovery_of(get_settings())


def discovery_of(settings: DiscoveryRunConfig) -> MetaGradient:
    """The discovery run of some settings. Nothing is compiled."""
    return MetaGradient(settings, tasks_of(split_values(settings.suite)), make_rule(settings))


def final_state(
    workdir: pathlib.Path, discovery: MetaGradient | None = None
) -> tuple[int, DiscoveryState]:
    """Meta-step and state of the newest good checkpoint; damaged ones are moved aside."""
    checkpoints = Checkpoints(workdir / "checkpoints")
    restored = restore(discovery or tiny_discovery(), checkpoints)
    checkpoints.close()
    assert restored is not None
    return restored


def metrics(workdir: pathlib.Path) -> list[dict]:
    """What was logged, which is JSON as others read it: it has no NaN."""

    def refuse(constant: str):
        raise AssertionError(f"{workdir / 'metrics.jsonl'} has {constant}")

    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def steps_logged(workdir: pathlib.Path) -> int:
    file = workdir / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def unfinished_checkpoints(workdir: pathlib.Path) -> set[int]:
    """Folders that Orbax has not renamed yet, by inode: a killed run leaves its own behind."""
    return {
        path.stat().st_ino for path in (workdir / "checkpoints").glob("*.orbax-checkpoint-tmp*")
    }


def wait_until(process, condition) -> None:
    """Polls often: a checkpoint is written in a tenth of a second."""
    end = time.monotonic() + 900
    while not condition():
        time.sleep(0.005)
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{process.args} hangs"


def without_timings(workdir: pathlib.Path) -> list[dict]:
    lines = metrics(workdir)
    steps = [line["meta_step"] for line in lines]
    assert steps == list(range(1, META_STEPS + 1)), f"{workdir} has metrics of {steps}"
    assert all(set(line) > TIMINGS for line in lines)
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in lines]
