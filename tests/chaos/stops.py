"""A process that is killed, or asked to stop."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.chaos.bench import (
    Bench,
    Outcome,
    assert_continues,
    assert_same,
    finished,
    lost_steps,
    newest_good,
)
from tests.launch.common import outcome
from tests.launch.discover_tiny import META_STEPS
from tests.launch.tiny_runs import steps_logged, unfinished_checkpoints, wait_until

_START_SECONDS = 8.0  # About the time to import, restore and trace.


def sigkill(bench: Bench) -> Outcome:
    """Send SIGKILL between meta-steps, during the start, and while a checkpoint is written."""
    workdir, lost = bench.new("sigkill"), []
    moments = (_between, _starting, _between, _writing, _between)
    for wait_for_moment in moments:
        process = bench.discover(workdir)
        wait_for_moment(bench, process, workdir)
        process.kill()
        status, output = outcome(process)
        assert status == -signal.SIGKILL, output
        lost.append(lost_steps(workdir))
    assert_continues(bench, workdir)
    return Outcome(
        f"status 137, {len(moments)} times at random moments; the same final state",
        f"{', '.join(map(str, lost))} of {META_STEPS} meta-steps",
    )


def sigterm(bench: Bench) -> Outcome:
    """Send SIGTERM between meta-steps, and during the start."""
    return _stopped(bench, signal.SIGTERM)


def sigint(bench: Bench) -> Outcome:
    """Send SIGINT between meta-steps, and during the start."""
    return _stopped(bench, signal.SIGINT)


def _stopped(bench: Bench, number: signal.Signals) -> Outcome:
    workdir = bench.new(number.name)
    for _ in range(2):
        process = bench.discover(workdir)
        _between(bench, process, workdir)
        process.send_signal(number)
        status, output = outcome(process)
        assert status == 128 + number, f"exit status {status}, expected {128 + number}: {output}"
        assert "Traceback" not in output, output
        assert lost_steps(workdir) == 0, output

    before = newest_good(workdir)
    process = bench.discover(workdir)
    _starting(bench, process, workdir)
    process.send_signal(number)
    status, output = outcome(process)
    # Before the command has its signal handler, the signal itself ends it.
    assert status in (128 + number, -number), f"exit status {status}: {output}"
    assert newest_good(workdir) >= before
    assert lost_steps(workdir) == 0
    assert_continues(bench, workdir)
    return Outcome(f"status {128 + number} with a checkpoint; the same final state", "nothing")


def process_of_two_killed(bench: Bench) -> Outcome:
    """Kill one of the two processes of a run, twice."""
    undisturbed, workdir = bench.new("together"), bench.new("process_killed")
    for process in bench.discover_together(undisturbed):
        finished(process)
    lost, seconds = [], []
    for victim in (1, 0):  # Process 0 is the coordinator.
        processes = bench.discover_together(workdir)
        _between(bench, processes[0], workdir)
        processes[victim].kill()
        killed = time.monotonic()
        status, output = outcome(processes[1 - victim], 60)
        seconds.append(time.monotonic() - killed)
        # JAX ends it, or the message to the dead process does.
        assert status in (-signal.SIGABRT, os.EX_TEMPFAIL), f"exit status {status}: {output}"
        assert "another task died" in output or "has died, it seems" in output, output
        lost.append(lost_steps(workdir))
    for process in bench.discover_together(workdir):
        finished(process)
    assert_same(bench, workdir, undisturbed)
    return Outcome(
        f"the other one ends with status 134 or 75 within {max(seconds):.0f} s; the same state in"
        " the end",
        f"{', '.join(map(str, lost))} of {META_STEPS} meta-steps",
    )


def sigkill_evaluation(bench: Bench) -> Outcome:
    """Kill an evaluation in a host environment during its second run of two."""
    workdir = bench.new("sigkill_evaluation")
    first, second = (
        workdir / "runs" / "hand_set" / "corridor_well" / f"seed_{seed}" for seed in (0, 1)
    )
    arguments = (
        "--suite=corridor/well",
        "--config.seeds=2",
        "--config.budget=20000",
        "--config.checkpoint_seconds=0.0",
    )
    process = bench.evaluate(workdir, *arguments)
    wait_until(process, lambda: _checkpoints(second))
    time.sleep(bench.rng.uniform(0.0, 1.0))
    process.kill()
    status, output = outcome(process)
    assert status == -signal.SIGKILL, output
    per_update = _steps_per_update(workdir)
    newest, made = max(_checkpoints(second)), _steps(second)[-1] // per_update
    assert newest <= made <= newest + 2, f"{made} updates were made, the checkpoint has {newest}"
    done = {file: file.read_bytes() for file in first.glob("*.json*")}

    output = finished(bench.evaluate(workdir, *arguments))
    assert f"continues at step {newest * per_update}" in output, (newest, output)
    assert {file: file.read_bytes() for file in first.glob("*.json*")} == done
    steps = _steps(second)
    assert steps == sorted(steps), f"{second} has episodes twice"
    assert json.loads((workdir / "results.json").read_text())
    return Outcome(
        "status 137; the finished run is not repeated, the other continues",
        f"{made - newest} of {steps[-1] // per_update} updates",
    )


_TOGETHER = (  # Flags of an evaluation whose runs are trained together.
    "--suite=catch/5x5,catch/4x3",
    "--config.seeds=2",
    "--config.budget=40000",
    "--config.updates_per_call=10",
)


def _results(workdir: Path) -> dict[Path, dict[str, Any]]:
    """Return the finished runs' results without times, by file."""
    return {
        file.relative_to(workdir): {
            k: x
            for k, x in json.loads(file.read_text()).items()
            if k not in ("start_seconds", "train_seconds", "crc32")
        }
        for file in workdir.glob("runs/*/*/*/result.json")
    }


def sigterm_evaluation(bench: Bench) -> Outcome:
    """Send SIGTERM to an evaluation that trains runs in JAX environments together."""
    undisturbed, workdir = (bench.new(f"sigterm_together_{x}") for x in ("undisturbed", "stopped"))
    finished(bench.evaluate(undisturbed, *_TOGETHER))
    process = bench.evaluate(workdir, *_TOGETHER)

    def steps() -> int:
        """Return the steps of actor-critic's first run; its runs follow the random policy's."""
        [*files] = workdir.glob("runs/hand_set*/catch_5x5/seed_0/metrics.jsonl")
        lines = [json.loads(line) for file in files for line in _whole_lines(file)]
        return lines[-1]["environment_steps"] if lines else 0

    wait_until(process, lambda: steps() > 0)
    process.send_signal(signal.SIGTERM)
    status, output = outcome(process)
    assert status == 128 + signal.SIGTERM, output
    saved = _newest(workdir, "unfinished/*") * _steps_per_update(workdir)
    assert saved == steps() > 0, f"the checkpoint has {saved} steps, the records {steps()}"
    finished(bench.evaluate(workdir, *_TOGETHER))
    assert _results(workdir) == _results(undisturbed)
    return Outcome(
        "status 143 with a checkpoint; the same final scores and curves, bit for bit",
        "nothing",
    )


def sigkill_packed_evaluation(bench: Bench) -> Outcome:
    """Kill an evaluation that trains runs in JAX environments together."""
    arguments = (*_TOGETHER, "--config.checkpoint_seconds=0.0")
    undisturbed, workdir = (bench.new(f"sigkill_together_{x}") for x in ("undisturbed", "killed"))
    finished(bench.evaluate(undisturbed, *arguments))

    def saved() -> int:
        return _newest(workdir, "unfinished/*")

    # The random policy's runs come first; those of actor-critic follow.
    process = bench.evaluate(workdir, *arguments)
    wait_until(process, lambda: len(_results(workdir)) == 4 and not saved())
    wait_until(process, lambda: saved() > 30)
    time.sleep(bench.rng.uniform(0.0, 0.5))
    process.kill()
    status, output = outcome(process)
    assert status == -signal.SIGKILL, output
    newest, there = saved(), _results(workdir)
    assert len(there) == 4, f"{len(there)} of 8 runs are finished, expected the random policy's 4"
    finished(bench.evaluate(workdir, *arguments))
    assert _results(workdir) == _results(undisturbed)
    assert not (workdir / "unfinished").exists()
    return Outcome(
        "status 137; the same final scores and curves, bit for bit",
        f"updates after {newest} of 312",
    )


def sigkill_dreamer(bench: Bench) -> Outcome:
    """Kill an evaluation of Dreamer in a JAX environment."""
    settings = "deterministic=32,units=16,latents=4,horizon=4,imagine_last=3"
    arguments = (
        f"--agent=dreamer/{settings},num_environments=2,batch_size=2,prefill=8,replay_ratio=8",
        "--suite=catch/5x5",
        "--config.seeds=1",
        "--config.budget=2048",
        "--config.checkpoint_seconds=0.0",
    )
    undisturbed, workdir = (bench.new(f"sigkill_dreamer_{x}") for x in ("undisturbed", "killed"))
    finished(bench.evaluate(undisturbed, *arguments))

    def files(workdir: Path) -> tuple[list[str], list[dict[str, float]]]:
        [run] = workdir.glob("runs/dreamer*/*/seed_0")
        metrics = [json.loads(line) for line in _whole_lines(run / "metrics.jsonl")]
        return _whole_lines(run / "episodes.jsonl"), [
            {k: x for k, x in line.items() if k != "environment_steps_per_second"}
            for line in metrics
        ]

    def saved() -> int:
        return _newest(workdir, "unfinished/*") if len(_results(workdir)) == 2 else 0

    # The runs of the random policy and of actor-critic come first.
    process = bench.evaluate(workdir, *arguments)
    wait_until(process, lambda: saved() > 150)
    time.sleep(bench.rng.uniform(0.0, 1.0))
    process.kill()
    status, output = outcome(process)
    assert status == -signal.SIGKILL, output
    newest, made = 2 * saved(), files(workdir)[1][-1]["environment_steps"]
    finished(bench.evaluate(workdir, *arguments))
    assert files(workdir) == files(undisturbed)
    return Outcome(
        "status 137; the same final episodes and losses, bit for bit",
        f"{made - newest:.0f} of 2048 environment steps",
    )


def _steps(run: Path) -> list[int]:
    """Return the step at which each episode ended; an incomplete last line does not count."""
    return [json.loads(line)["environment_steps"] for line in _whole_lines(run / "episodes.jsonl")]


def _steps_per_update(workdir: Path) -> int:
    agent = json.loads((workdir / "manifest.json").read_text())["config"]["agent"]
    return agent["num_environments"] * agent["unroll_length"]


def _whole_lines(file: Path) -> list[str]:
    return file.read_text().rpartition("\n")[0].splitlines()


def _newest(workdir: Path, runs: str) -> int:
    """Return the last checkpoint of all runs in folders of a pattern; 0 if there is none."""
    return max((step for run in workdir.glob(runs) for step in _checkpoints(run)), default=0)


def _checkpoints(run: Path) -> set[int]:
    return {int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()}


# Functions that wait for a moment to disturb the command.


def _between(bench: Bench, process: subprocess.Popen[str], workdir: Path) -> None:
    target = steps_logged(workdir) + bench.rng.randint(1, 4)
    wait_until(process, lambda: steps_logged(workdir) >= target)
    time.sleep(bench.rng.uniform(0.0, 0.1))


def _starting(bench: Bench, process: subprocess.Popen[str], workdir: Path) -> None:
    del process, workdir
    time.sleep(bench.rng.uniform(0.0, _START_SECONDS))


def _writing(bench: Bench, process: subprocess.Popen[str], workdir: Path) -> None:
    del bench
    left_behind = unfinished_checkpoints(workdir)
    wait_until(process, lambda: unfinished_checkpoints(workdir) - left_behind)
