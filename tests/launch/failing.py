"""A command that fails, with the error of this name: `python -m tests.launch.failing NAME`."""

import sys

import jax

from evaluation.executors import JobsFailedError
from launch.support import commands
from launch.support.command_flags import define_config

ERRORS = {
    "accelerator": jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.50GiB.\nMore of it."
    ),
    "cpu": jax.errors.JaxRuntimeError(
        "INTERNAL: Error dispatching computation: Out of memory allocating 192000000000 bytes."
    ),
    "host": MemoryError(),
    "job": JobsFailedError(["tiny on catch/5x5: RESOURCE_EXHAUSTED: Out of memory"], 2, "Others."),
    "bug": jax.errors.JaxRuntimeError("INTERNAL: it is broken"),
}


def main() -> None:
    raise ERRORS[name]


if __name__ == "__main__":
    name = sys.argv.pop(1)
    define_config("tests/launch/discover_tiny.py")
    commands.run(main)
