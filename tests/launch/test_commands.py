"""What a command does with an error: a sentence and a status, or a traceback if it is ours."""

import os
import signal
import subprocess
import sys

import jax
import pytest

from launch.support import commands
from tests.launch.common import REPOSITORY, outcome, outcomes, start
from tests.launch.failing import ERRORS

# The exit status, and what is said.
EXPECTED = {
    "accelerator": (
        2,
        "tests.launch.failing: There is not enough memory on cpu (RESOURCE_EXHAUSTED: Out of memory"
        " while trying to allocate 3.50GiB). Shrink some of these, those first save most:"
        " --config.meta.agents_at_once or --config.runs_at_once, --config.agent.batch_size,",
    ),
    "cpu": (2, "Out of memory allocating 192000000000 bytes). Shrink some of these"),
    "host": (2, "There is not enough memory on cpu (MemoryError). Shrink"),
    "job": (
        3,
        "1 of 2 jobs failed:\n  tiny on catch/5x5: RESOURCE_EXHAUSTED: Out of memory\nOthers.\n"
        "Shrink some of these, those first save most: --config.meta.agents_at_once or ",
    ),
    "bug": (1, "Traceback"),
}


@pytest.fixture(scope="module")
def failures():
    return outcomes("tests.launch.failing", {name: [name] for name in ERRORS})


@pytest.mark.parametrize("name", ERRORS)
def test_error(failures, name):
    status, output = failures[name]
    expected_status, sentence = EXPECTED[name]
    assert status == expected_status, output
    assert sentence in output
    assert ("Traceback" in output) == (name == "bug")


def test_compiled_programs_are_kept_in_the_users_cache(tmp_path):
    environment = {
        "XDG_CACHE_HOME": str(tmp_path),
        "DISCO_CACHE_DIR": "",
        "JAX_COMPILATION_CACHE_DIR": "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    status, output = outcome(
        start(
            "launch.evaluate",
            "--suite=catch/4x3",
            "--baselines=",
            "--config.seeds=1",
            "--config.budget=256",
            f"--workdir={tmp_path / 'run'}",
            **environment,
        )
    )
    assert status == 0, output
    assert list(tmp_path.glob("disco/xla-*/*-cache"))


def test_without_the_platform_a_command_says_how_to_install_it(tmp_path):
    code = (
        "import runpy, sys; sys.modules['haiku'] = None;"
        " runpy.run_module('launch.report', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, f"--output={tmp_path}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True)
    assert done.returncode == 2
    said = done.stderr.decode()
    assert "'disco-update-rules[platform]'" in said
    assert "Traceback" not in said


def test_a_program_that_has_computed_keeps_its_devices(monkeypatch):
    before = jax.devices("cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    commands.use_all_cores()
    assert jax.devices("cpu") == before
    assert "XLA_FLAGS" not in os.environ


@pytest.mark.parametrize("command", [["launch.evaluate"], ["launch", "discover"]])
def test_an_interrupt_within_the_imports_ends_a_command_at_once(tmp_path, command):
    module, *rest = command
    # A program that is started in the background ignores the signal, and so do its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = start(module, *rest, f"--workdir={tmp_path / 'run'}")
    signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    first = process.stderr.readline()  # Before the imports.
    process.send_signal(signal.SIGINT)
    assert outcome(process) == (-signal.SIGINT, ""), first
