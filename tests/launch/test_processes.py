"""Several processes that make one run: the result is one process's, and none outlives another."""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import types

import jax
import numpy as np
import psutil
import pytest
from absl import flags

from disco_common.checkpoints import Checkpoints
from disco_common.configuration import from_json
from launch.support import processes
from launch.support.discovery_config import DiscoveryRunConfig
from meta.run import restore
from tests.launch.common import TINY, free_port, outcome, outcomes, start
from tests.launch.discover_tiny import get_settings
from tests.launch.tiny_runs import discovery_of, metrics, quickly, steps_logged, wait_until

NUM_DEVICES = 4
META_STEPS = 60
FLAGS = (TINY, f"--config.meta_steps={META_STEPS}", "--config.population.size=6")


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Starts a run on four devices that some processes share; compiles for each number once.

    In float64, as `tests.meta.devices`.
    """
    cache = tmp_path_factory.mktemp("compiled")

    def launch(workdir: pathlib.Path, num_processes: int, *changes: str) -> list[subprocess.Popen]:
        environment = quickly(cache, NUM_DEVICES // num_processes) | {"JAX_ENABLE_X64": "1"}
        flags = [f"--workdir={workdir}", *FLAGS, *changes]
        if num_processes == 1:
            return [start("launch.discover", *flags, **environment)]
        flags += [f"--coordinator=localhost:{free_port()}", f"--num_processes={num_processes}"]
        return [
            start("launch.discover", *flags, f"--process_id={i}", **environment)
            for i in range(num_processes)
        ]

    return launch


def wait_for_steps(processes: list[subprocess.Popen], workdir: pathlib.Path, number: int) -> None:
    wait_until(processes[0], lambda: steps_logged(workdir) >= number)


def final_rule(workdir: pathlib.Path) -> tuple[int, np.ndarray]:
    """The meta-step of the newest checkpoint, and its meta-parameters in one vector."""
    settings = from_json(DiscoveryRunConfig, json.loads((workdir / "config.json").read_text()))
    with jax.enable_x64(True):
        checkpoints = Checkpoints(workdir / "checkpoints")
        restored = restore(discovery_of(settings), checkpoints)
        checkpoints.close()
    assert restored is not None
    step, state = restored
    return step, np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(state.rule)])


@pytest.mark.thorough
def test_result_is_one_processs_whoever_dies_on_the_way(launch, tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    (process,) = launch(alone, 1)
    status, output = outcome(process, 600)
    assert status == 0, output

    two = launch(shared, 2)
    wait_for_steps(two, shared, 5)
    two[1].send_signal(signal.SIGTERM)
    outcomes = [outcome(process) for process in two]
    assert [status for status, _ in outcomes] == [143, 143], outcomes
    assert "a checkpoint is written" in outcomes[0][1]
    stopped_at = steps_logged(shared)
    assert (shared / "checkpoints" / str(stopped_at)).exists()

    two = launch(shared, 2)
    wait_for_steps(two, shared, stopped_at + 5)
    two[1].kill()
    killed = time.monotonic()
    (status, output), _ = (outcome(process, 60) for process in two)
    assert time.monotonic() - killed < 60
    assert status not in (0, 143)
    assert "Terminating process because the JAX distributed service detected" in output

    (process,) = launch(shared, 1)  # What two processes began, one ends.
    status, output = outcome(process, 600)
    assert status == 0, output
    assert [line["meta_step"] for line in metrics(shared)] == list(range(1, META_STEPS + 1))
    (step, rule), (expected_step, expected) = final_rule(shared), final_rule(alone)
    assert step == expected_step == META_STEPS
    assert np.max(np.abs(rule - expected)) < 1e-10 * np.max(np.abs(expected))


@pytest.mark.thorough
def test_host_environments_of_two_processes_give_one_processs_result(launch, tmp_path):
    """Three agents of each kind on four devices, of which one has padding only."""
    pytest.importorskip("bsuite")
    changes = ("--config.suite=bsuite/catch/0,catch/4x3", "--config.meta_steps=7")
    rules = []
    for number in (1, 2):
        workdir = tmp_path / str(number)
        outcomes = [outcome(process, 600) for process in launch(workdir, number, *changes)]
        assert [status for status, _ in outcomes] == [0] * number, outcomes
        assert sum(line["num_resets"] for line in metrics(workdir)) > 0
        step, rule = final_rule(workdir)
        assert step == 7
        rules.append(rule)
    assert np.max(np.abs(rules[1] - rules[0])) < 1e-10 * np.max(np.abs(rules[0]))


# Refused before anything is compiled.
REFUSED = {
    "nobody there": (
        ["--coordinator=localhost:1", "--num_processes=2", "--process_id=1"],
        os.EX_TEMPFAIL,
        "The processes of --coordinator=localhost:1 did not find each other within 2 s",
    ),
    "no others": (
        ["--coordinator=localhost:{port}", "--num_processes=2", "--process_id=0"],
        os.EX_TEMPFAIL,
        "The processes of --coordinator=localhost:{port} did not find each other within 2 s",
    ),
    "no number": (
        ["--coordinator=localhost:1", "--process_id=0"],
        2,
        "--num_processes is None and --process_id 0; with --coordinator=localhost:1 expected both",
    ),
    "no coordinator": (
        ["--num_processes=2", "--process_id=0"],
        2,
        "--num_processes and --process_id need --coordinator=HOST:PORT",
    ),
    "no port": (["--coordinator=somewhere"], 2, "--coordinator is 'somewhere'; expected HOST:PORT"),
}


def test_refused_in_a_sentence(tmp_path):
    port = free_port()
    cases = {
        name: [
            f"--workdir={tmp_path / name}",
            "--coordinator_timeout=2",
            TINY,
            *(argument.format(port=port) for argument in arguments),
        ]
        for name, (arguments, *_) in REFUSED.items()
    }
    for name, (status, output) in outcomes("launch.discover", cases).items():
        _, expected, sentence = REFUSED[name]
        assert status == expected, output
        assert sentence.format(port=port) in output
        assert "Traceback" not in output
        assert not (tmp_path / name).exists()


def test_devices_that_cannot_share_an_agent_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is 3; expected a divisor of the number of devices of"):
        discovery_of(dataclasses.replace(get_settings(), devices_per_agent=3))
    flags = [f"--workdir={tmp_path / 'run'}", TINY, "--config.devices_per_agent=4"]
    status, output = outcome(start("launch.discover", *flags, JAX_NUM_CPU_DEVICES="4"))
    assert status == 2, output
    assert "meta.validation_trajectories is 2; expected a multiple of devices_per_agent" in output


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            ([], ["--config.seed=1"]),
            "Processes [1] have another config than process 0",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (["--config.population.size=1"],) * 2,
            "population.size is 1; expected at least one agent for each of the 2",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_processes_that_are_not_of_one_mind_are_refused(tmp_path, changes, sentence):
    address = f"--coordinator=localhost:{free_port()}"
    flags = [f"--workdir={tmp_path / 'run'}", TINY, address, "--num_processes=2"]
    started = [
        start("launch.discover", *flags, f"--process_id={i}", *own) for i, own in enumerate(changes)
    ]
    (status, output), (other_status, _) = map(outcome, started)
    assert status == 2, output
    assert sentence in output
    # With the first one goes what the processes are held together by, at any moment.
    assert other_status in (2, -signal.SIGABRT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x3),2"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "11"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)", "JAX_LOCAL_DEVICE_IDS": "0,1"}, False),
        ({}, False),
    ],
)
def test_a_process_alone_on_its_machine_has_all_of_its_devices(variables, expected, monkeypatch):
    for name in (*processes.LAUNCHERS.values(), "JAX_LOCAL_DEVICE_IDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: given.update(arguments))
    values = types.SimpleNamespace(
        coordinator="auto", coordinator_timeout=1, num_processes=None, process_id=None
    )
    monkeypatch.setattr(flags, "FLAGS", values)
    processes.join()
    assert (given.get("local_device_ids") == ()) == expected


def addresses_listened_at(port: int) -> set[str]:
    """Of the processes of this machine."""
    found = psutil.net_connections("tcp")
    addresses = (x.laddr for x in found if x.status == psutil.CONN_LISTEN)
    return {address.ip for address in addresses if address and address.port == port}


@pytest.mark.slow
def test_the_coordinator_listens_at_its_address_only(tmp_path):
    port = free_port()
    process = start(
        "launch.discover",
        f"--workdir={tmp_path / 'run'}",
        TINY,
        f"--coordinator=localhost:{port}",
        "--num_processes=2",
        "--process_id=0",
        JAX_NUM_CPU_DEVICES="1",
    )
    try:
        wait_until(process, lambda: addresses_listened_at(port))
        assert addresses_listened_at(port) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1", True),
        ("0.0.0.0", True),
        ("localhost", True),
        ("198.51.100.7", False),  # Kept for documents: nobody's.
        ("nowhere.invalid", False),
    ],
)
def test_process_0_listens_where_it_can(monkeypatch, caplog, host, is_own):
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    found = processes._listening_address(f"{host}:1", host)
    assert found == (f"{host}:1" if is_own else None)
    assert ("listens at all addresses" in caplog.text) != is_own
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "[::]:2")
    assert processes._listening_address(f"{host}:1", host) is None


def test_a_machine_whose_name_is_its_loopback_listens_everywhere_and_says_so(monkeypatch, caplog):
    """As on Debian: other machines know it by another address."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert processes._listening_address("mine:1", "mine") is None
    assert "mine of --coordinator is its loopback here" in caplog.text
    found[0] = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("0.0.0.0", 0))
    assert processes._listening_address("mine:1", "mine") == "mine:1"
