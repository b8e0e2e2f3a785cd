"""Fault injection: disturb running commands, and check that they recover.

    python -m tests.chaos                          # all
    python -m tests.chaos --only=sigkill,sigterm --seed=3

Commands run as users start them, on tiny configurations. After each fault the test checks that

- no work is lost but that after the last checkpoint;
- every checkpoint in place can be read;
- the same command continues from the newest one, and ends with the result of an undisturbed run,
  bit for bit;
- the exit status is one of `launch.support.commands`, for schedulers.

The test prints what was lost. Its exit status is 1 if a check failed.
"""

import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback

from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from launch.support import commands
from tests.chaos import disks, in_time, memory, non_finite, simulators, stops
from tests.chaos.bench import Bench, Fault, Outcome

FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        stops.sigkill,
        stops.sigterm,
        stops.sigint,
        stops.process_of_two_killed,
        stops.sigkill_evaluation,
        stops.sigkill_packed_evaluation,
        stops.sigterm_evaluation,
        stops.sigkill_dreamer,
        disks.full_disk,
        disks.almost_full_disk,
        disks.damaged_checkpoint,
        simulators.simulator_killed,
        simulators.simulators_killed_again,
        in_time.evaluation_stopped_in_time,
        in_time.workers_end_with_evaluation,
        non_finite.nan_in_an_agent,
        non_finite.nan_from_a_simulator,
        non_finite.nan_in_an_evaluation,
        non_finite.jumping_clock,
        memory.out_of_memory,
    )
}

_ONLY = flags.DEFINE_list("only", list(FAULTS), "Faults, by name.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the times of the faults.")


def main(argv: list[str]) -> None:
    """Run the command."""
    unknown = [*argv[1:], *(name for name in _ONLY.value if name not in FAULTS)]
    if unknown:
        raise app.UsageError(f"Unknown {unknown}; expected some of {', '.join(FAULTS)}.")
    # A shell that starts this in the background has it and its children ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    commands.silence_libraries()
    logging.set_verbosity(logging.FATAL)  # Without the warnings of damaged checkpoints.
    console = Console()
    table = Table("fault", "what happened", "what was lost", "seconds", show_lines=True)
    if not console.is_terminal:
        console.width = 150  # A log has no width of its own.
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
        bench = Bench(pathlib.Path(folder))
        for number, name in enumerate(_ONLY.value, 1):
            print(f"[{number}/{len(_ONLY.value)}] {name} ...", flush=True)
            # The times of a fault do not depend on the other faults.
            bench.rng = random.Random(f"{_SEED.value} {name}")
            started = time.monotonic()
            try:
                outcome = FAULTS[name](bench)
            except Exception as error:  # The other faults run all the same.
                num_failed += 1
                traceback.print_exc()
                outcome = Outcome(f"FAILED: {type(error).__name__}: {str(error)[:500]}", "?")
            finally:
                bench.end_processes()
            seconds = time.monotonic() - started
            table.add_row(name, *outcome, f"{seconds:.0f}")
            print(f"    {outcome.happened}; lost: {outcome.lost} ({seconds:.0f} s)", flush=True)
    console.print(table)
    print(f"{len(_ONLY.value) - num_failed} of {len(_ONLY.value)} faults were survived.")
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    app.run(main)
