"""Jobs, in turn and on a Ray cluster of this machine."""

import os
import pathlib
import socket
import time

import numpy as np
import pytest

from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from evaluation.evaluate import Experiment, evaluate, tasks_of
from evaluation.executors import ATTEMPTS, Job, JobsFailedError, LocalExecutor, RayExecutor, silent
from tests.evaluation import common

CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(8,), model=4, head=()),
        learning_rate=1e-2,
        num_environments=2,
        unroll_length=5,
        batch_size=2,
        replay_ratio=0.0,
    ),
    seeds=2,
    budget=10 * 30,
    baselines=("actor_critic",),
    num_points=4,
    resamples=50,
    updates_per_call=5,
)
TASKS = ("deep_sea/4", "delayed_chain/short")


@pytest.mark.slow
def test_jobs_that_no_machine_could_do_are_refused():
    """First, as a process can be of one cluster at a time."""
    with pytest.raises(ValueError, match=r"--ray_cpus_per_job=64 .* they have 2 CPUs and 0 GPUs"):
        RayExecutor(num_cpus=2, cpus_per_job=64, gpus_per_job=0.0).__enter__()


@pytest.fixture(scope="module")
def executors():
    with RayExecutor(num_cpus=2) as ray:
        yield {"local": LocalExecutor(), "ray": ray}


def _note(folder: pathlib.Path, name: str) -> int:
    """One attempt more; how many there were before."""
    number = len(list(folder.glob(f"{name}.*")))
    (folder / f"{name}.{number}").touch()
    return number


def _fails_at_first(folder, name, times, report):
    report(1, {"loss": 0.5})
    number = _note(folder, name)
    if number < times:
        raise OSError(f"not yet {number}\n{name}")


def _has_a_bug(folder, name, times, report):
    del times, report
    _note(folder, name)
    raise TypeError("a bug of the agent")


def _dies_at_first(folder, name, times, report):
    if _note(folder, name) < times:
        os.kill(os.getpid(), 9)


def _job(function, folder, name, times) -> Job:
    def work(report):
        function(folder, name, times, report)

    return Job(name, work, units=2)


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_job_that_fails_is_tried_again_and_the_others_go_on(
    executors, executor, tmp_path, caplog
):
    jobs = [
        _job(_fails_at_first, tmp_path, "always", 100),
        _job(_has_a_bug, tmp_path, "bug", 100),
        _job(_fails_at_first, tmp_path, "once", 1),
        _job(_fails_at_first, tmp_path, "good", 0),
    ]
    errors = executors[executor].run_jobs("test", jobs, silent)
    assert errors == ["OSError: not yet 2", "TypeError: a bug of the agent", "", ""]
    attempts = {job.name: len(list(tmp_path.glob(f"{job.name}.*"))) for job in jobs}
    assert attempts == {"always": ATTEMPTS, "bug": 1, "once": 2, "good": 1}
    assert "in _has_a_bug" in caplog.text


def test_an_error_that_returns_is_shown_once_and_ends_the_job(tmp_path, caplog):
    def work(report):
        _note(tmp_path, "same")
        raise OSError("the disk is full")

    with LocalExecutor() as executor:
        errors = executor.run_jobs("test", [Job("same", work, units=1)], silent)
    assert errors == ["OSError: the disk is full"]
    assert len(list(tmp_path.iterdir())) == 2
    assert caplog.text.count("Traceback") == 1


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(executors, tmp_path):
    jobs = [_job(_dies_at_first, tmp_path, "twice", 2), _job(_dies_at_first, tmp_path, "ever", 9)]
    twice, ever = executors["ray"].run_jobs("test", jobs, silent)
    assert twice == ""
    assert "WorkerCrashedError" in ever
    assert len(list(tmp_path.glob("twice.*"))) == 3


@pytest.mark.slow
def test_ray_makes_the_same_results_and_only_those_that_are_missing(executors, tmp_path):
    tasks, contenders = tasks_of(TASKS[:1]), make_contenders([], CONFIG)
    there, here = tmp_path / "ray", tmp_path / "local"
    there.mkdir()
    here.mkdir()
    evaluate(Experiment(tasks, CONFIG, here), contenders)
    evaluate(
        Experiment(tasks, CONFIG, there, executor=executors["ray"], runs_per_job=1), contenders
    )
    files = {path: path.stat().st_ino for path in there.glob("runs/*/*/*/result.json")}
    assert len(files) == 4
    for contender in contenders:
        ours = common.load(here, tasks, contender, CONFIG)
        theirs = common.load(there, tasks, contender, CONFIG)
        np.testing.assert_array_equal(ours.curve, theirs.curve)
        np.testing.assert_array_equal(ours.window, theirs.window)
        assert theirs.train_seconds > 0.0
    lost = next(path for path in files if "actor_critic" in str(path))
    lost.unlink()
    said = []
    evaluate(
        Experiment(tasks, CONFIG, there, executor=executors["ray"], announce=said.append),
        contenders,
    )
    assert said == ["3 of 4 runs are finished."]
    again = {path: path.stat().st_ino for path in there.glob("runs/*/*/*/result.json")}
    assert {path for path in files if again[path] != files[path]} <= {lost}
    assert set(again) == set(files)


@pytest.mark.slow
def test_runs_that_cannot_be_kept_are_named_and_the_others_are_made(tmp_path):
    tasks, contenders = tasks_of(TASKS), make_contenders([], CONFIG)
    blocked = tmp_path / "runs" / "random" / "deep_sea_4"
    blocked.mkdir(parents=True)
    (blocked / "seed_1").touch()  # Where a folder should be.
    with pytest.raises(JobsFailedError, match="1 of 4 jobs failed") as caught:
        evaluate(Experiment(tasks, CONFIG, tmp_path), contenders)
    assert "random on deep_sea/4, seed 0 and 1 more: " in str(caught.value)
    assert len(list(tmp_path.glob("runs/*/*/*/result.json"))) == 6
    assert not (tmp_path / "results.json").exists()
    (blocked / "seed_1").unlink()
    evaluate(Experiment(tasks, CONFIG, tmp_path), contenders)
    assert (tmp_path / "results.json").exists()


def test_an_address_without_a_cluster_is_refused_quickly():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        addresses = {
            f"127.0.0.1:{unused.getsockname()[1]}": "Connection refused",
            "nowhere": "it is not of the form host:port",
        }
        for address, reason in addresses.items():
            started = time.monotonic()
            message = f"--ray_address={address} .*tried {address} .*{reason}"
            with pytest.raises(ConnectionError, match=message):
                RayExecutor(address, num_cpus=1).__enter__()
            assert time.monotonic() - started < 15.0
