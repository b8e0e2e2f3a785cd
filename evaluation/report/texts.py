"""Numbers and names in the texts and file names of a report."""

import numpy as np

from evaluation.scoring.over_tasks import FEWEST_TASKS


def format_number(value: float) -> str:
    """Return a number with four significant digits; empty if it is not finite."""
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def file_name(name: str) -> str:
    """Return a name with underscores for characters that not every file name may have."""
    return "".join(x if x.isalnum() or x in "-_." else "_" for x in name)


def number_of(what: str, count: int) -> str:
    """Return "one seed", or "5 seeds"."""
    return f"one {what}" if count == 1 else f"{count} {what}s"


def over_seeds(seeds: int) -> str:
    """Return what follows "mean" where means over seeds are shown, with errors if there are any."""
    return f"{' of' if seeds == 1 else ' ± standard error over'} {number_of('seed', seeds)}"


def interval_legend(tasks: int, confidence: float, mark: str, discoveries: bool) -> str:
    """Return what intervals are over.

    Args:
      tasks: number that the statistics are over.
      confidence: of the intervals.
      mark: by which a reader finds the intervals over tasks.
      discoveries: whether some contender is several discoveries.
    """
    nested = "seeds (of several discoveries, over discoveries)" if discoveries else "seeds"
    found = f"{confidence:.0%} intervals over {nested} with these tasks"
    if tasks < FEWEST_TASKS:
        return f"{found}; {number_of('task', tasks)}: too few for an interval over tasks"
    return f'{found}; after "{mark}": over tasks and seeds'
