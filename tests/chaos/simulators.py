"""Simulator processes that are killed."""

import contextlib
import subprocess
import time

import psutil

from tests.chaos.bench import Bench, Outcome, assert_finite, finished, newest_good, refused
from tests.chaos.non_finite import mixed, mixed_discovery
from tests.launch.tiny_runs import final_state, metrics, steps_logged, wait_until

_SUITE = "corridor/well,catch/4x3"


def simulator_killed(bench: Bench) -> Outcome:
    """Kill one simulator process."""
    workdir, meta_steps = bench.new("simulator"), 60
    process = bench.disturbed(
        "nothing", "launch.discover", f"--workdir={workdir}", *mixed(_SUITE, meta_steps)
    )
    moment = bench.rng.randint(3, 12)
    wait_until(process, lambda: steps_logged(workdir) >= moment)
    bench.rng.choice(_simulators(process)).kill()
    output = finished(process)
    assert "it is started again, and their episodes are cut" in output, output
    discovery = mixed_discovery(_SUITE)
    assert newest_good(workdir, discovery) == meta_steps
    assert_finite(final_state(workdir, discovery)[1])
    restarts = [line["simulator_restarts"] for line in metrics(workdir)]
    assert restarts[-1] == 1, f"simulator_restarts is {restarts[-1]}, expected 1"
    return Outcome("status 0, one restart counted, all numbers are finite", "its episode")


def simulators_killed_again(bench: Bench) -> Outcome:
    """Kill simulator processes until the run fails; then continue it undisturbed."""
    workdir, meta_steps = bench.new("simulators"), 60
    arguments = (f"--workdir={workdir}", *mixed(_SUITE, meta_steps))
    process = bench.disturbed("nothing", "launch.discover", *arguments)
    wait_until(process, lambda: steps_logged(workdir) >= 5)
    while process.poll() is None:
        for simulator in _simulators(process):
            with contextlib.suppress(psutil.NoSuchProcess):
                simulator.kill()
        time.sleep(0.05)  # Too little for progress in between.
    refused(process, "launch.discover: A worker process with simulators", "had been replaced")
    discovery = mixed_discovery(_SUITE)
    made, newest = steps_logged(workdir), newest_good(workdir, discovery)
    output = finished(bench.disturbed("nothing", "launch.discover", *arguments))
    assert f"discover: {newest}/{meta_steps}, compiling" in output, (newest, output)
    assert newest_good(workdir, discovery) == meta_steps
    assert_finite(final_state(workdir, discovery)[1])
    return Outcome(
        "status 2, “A worker process with simulators … died …”; then it continues to the end",
        f"{made - newest} of {meta_steps} meta-steps",
    )


def _simulators(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        # Forked from a child (on Linux), or children themselves.
        children = psutil.Process(process.pid).children(recursive=True)
        forking = [x for x in children if "forkserver" in " ".join(x.cmdline())]
        server = {x.pid for x in forking if x.ppid() == process.pid}
        spawned = [x for x in children if "spawn_main" in " ".join(x.cmdline())]
        return spawned + [x for x in forking if x.ppid() in server]
    return []
