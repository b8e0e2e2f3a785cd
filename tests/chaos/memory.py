"""A device without enough memory."""

import resource
import subprocess

from tests.chaos.bench import Bench, Outcome, newest_good, outcome, refused

# More than a run of this size maps, and less than the run below would need.
_ADDRESS_SPACE = 16 << 30
_MANY = 2**30
_SHRINK = "those first save most: --config.meta.agents_at_once or --config.runs_at_once, "


def out_of_memory(bench: Bench) -> Outcome:
    """Exhaust memory at the first meta-step of a discovery, and at the start of an evaluation.

    It limits the address space on a CPU. It was not tested on an accelerator.
    """
    workdir = bench.new("memory_discover")
    process = bench.discover(workdir, f"--config.meta.validation_length={_MANY}")
    _limit(process)
    output = refused(
        process,
        "launch.discover: There is not enough memory on cpu (",
        "ut of memory allocating",
        _SHRINK,
        "validation_length",
    )
    assert newest_good(workdir) == 0, output

    workdir = bench.new("memory_evaluate")
    process = bench.disturbed(
        "nothing",
        "launch.evaluate",
        f"--workdir={workdir}",
        "--suite=catch/4x3",
        "--config.baselines=('hand_set',)",
        f"--config.agent.unroll_length={_MANY}",
        f"--config.budget={8 * _MANY}",
    )
    _limit(process)
    status, output = outcome(process)  # With the traceback of the first failure.
    assert status == 3, output
    last = output.partition(" jobs failed:")[2]
    assert "Traceback (" not in last, output
    assert "ut of memory allocating" in last, output
    assert _SHRINK in last, output
    assert not (workdir / "results.json").exists()
    return Outcome(
        "status 2, “There is not enough memory on cpu (…). Shrink some of these, those first save"
        " most: --config.meta.agents_at_once or …”",
        "nothing",
    )


def _limit(process: subprocess.Popen[str]) -> None:
    resource.prlimit(process.pid, resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
