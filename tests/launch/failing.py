"""A command that fails, with the error of this name: `python -m tests.launch.failing NAME`."""

import sys

import jax
from absl import flags

from evaluation.executors import JobsFailedError
from launch.support import commands
from launch.support.flag_parsing import define_config

ERRORS = {
    "accelerator": jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.50GiB.\nMore of it."
    ),
    "cpu": jax.errors.JaxRuntimeError(
        "INTERNAL: Error dispatching computation: Out of memory allocating 192000000000 bytes."
    ),
    "host": MemoryError(),
    "job": JobsFailedError(["tiny on catch/5x5: RESOURCE_EXHAUSTED: Out of memory"], 2, "Others."),
    "job on Ray": JobsFailedError(["tiny on catch/5x5: Out of memory"], 2, "Others."),
    "bug": jax.errors.JaxRuntimeError("INTERNAL: it is broken"),
    "Ctrl-C": KeyboardInterrupt(),
}


# The first is None, which is one on a CPU, where it cannot be any less.
SHRINK = ("config.meta.agents_at_once", "config.agent.batch_size", "config.agent.network.torso")


def main() -> None:
    raise ERRORS[name]


if __name__ == "__main__":
    name = sys.argv.pop(1)
    define_config("tests/launch/discover_tiny.py")
    flags.DEFINE_string("executor", "ray" if name == "job on Ray" else "local", "See launch.")
    commands.run(main, shrink=SHRINK)
