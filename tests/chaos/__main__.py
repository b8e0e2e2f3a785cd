"""Breaks running commands in every way that we promise to survive, and tells what was lost.

    python -m tests.chaos                          # all
    python -m tests.chaos --only=sigkill,sigterm --seed=3

Commands run as a user starts them, on tiny configurations. After each fault: nothing that was
finished is lost beyond the last checkpoint, every checkpoint that counts as one can be read, the
same command goes on from it and ends as if nobody had disturbed it, bit for bit, and the exit
status is one that a scheduler understands (see `launch.commands`). The exit status is 1 if one
of these promises was broken.
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

from launch import commands
from tests.chaos import disks, memory, sickness, simulators, stops
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
        sickness.nan_in_an_agent,
        sickness.nan_from_a_simulator,
        sickness.nan_in_an_evaluation,
        sickness.jumping_clock,
        memory.out_of_memory,
    )
}

_ONLY = flags.DEFINE_list("only", list(FAULTS), "Faults, by name.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments at which faults happen.")


def main(argv: list[str]) -> None:
    """The command."""
    unknown = [*argv[1:], *(name for name in _ONLY.value if name not in FAULTS)]
    if unknown:
        raise app.UsageError(f"Unknown {unknown}; expected some of {', '.join(FAULTS)}.")
    # A shell may have started this in the background, deaf to Ctrl-C as all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    commands.silence_libraries()
    logging.set_verbosity(logging.FATAL)  # Damaged checkpoints are no news here.
    console = Console()
    table = Table("fault", "what happened", "what was lost", "seconds", show_lines=True)
    if not console.is_terminal:
        console.width = 150  # A log has no width to fit.
    num_broken = 0
    with tempfile.TemporaryDirectory(prefix="chaos_") as folder:
        bench = Bench(pathlib.Path(folder))
        for number, name in enumerate(_ONLY.value, 1):
            print(f"[{number}/{len(_ONLY.value)}] {name} ...", flush=True)
            # Each has moments of its own, whichever others run.
            bench.rng = random.Random(f"{_SEED.value} {name}")
            started = time.monotonic()
            try:
                outcome = FAULTS[name](bench)
            except Exception as error:  # The others are to be seen too.
                num_broken += 1
                traceback.print_exc()
                outcome = Outcome(f"BROKEN: {type(error).__name__}: {str(error)[:500]}", "?")
            finally:
                bench.end_processes()
            seconds = time.monotonic() - started
            table.add_row(name, *outcome, f"{seconds:.0f}")
            print(f"    {outcome.happened}; lost: {outcome.lost} ({seconds:.0f} s)", flush=True)
    console.print(table)
    print(f"{len(_ONLY.value) - num_broken} of {len(_ONLY.value)} faults were survived.")
    sys.exit(1 if num_broken else 0)


if __name__ == "__main__":
    app.run(main)
