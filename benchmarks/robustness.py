"""Whether encodings, scales of rewards and widths of networks change what agents learn.

    for width in 32 128; do python -m launch.evaluate --suite=robustness --rule=RULE \
        "--config.agent.network.torso=($width,)" --workdir=runs/robustness_$width; done
    python -m benchmarks.robustness runs/robustness_32/scores.csv runs/robustness_128/scores.csv

Prints a table in Markdown: for each contender the interquartile mean of the normalised scores in
all runs, in those of each encoding, each scale and each evaluation (by the name of its folder),
and the difference of the best and the worst of these columns.
"""

import csv
import pathlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from absl import app

from environments.suites import robustness
from evaluation.scoring.statistics import interquartile_mean

_NORMALIZED = "Normalised by the reference"  # The scale of scores.csv.
_ALL = "all"


def levels(files: Sequence[pathlib.Path]) -> pd.DataFrame:
    """Return the columns contender, level and score: a row for each run and each of its levels.

    Raises:
      ValueError: if a file has no normalised score of the suite.
    """
    rows = []
    for file in files:
        with file.open(newline="") as lines:
            runs = [run for run in csv.DictReader(lines) if run["scale"] == _NORMALIZED]
        names = robustness.SUITES["robustness"]
        runs = [run for run in runs if run["task"] in names and run["score"]]
        if not runs:
            raise ValueError(
                f"{file} has no score on the scale {_NORMALIZED!r} of a task of the suite"
                " robustness; expected the scores.csv of its evaluation."
            )
        for run in runs:
            _, *own_levels = robustness.parts(run["task"])
            own = {"contender": run["contender"], "score": float(run["score"])}
            rows += [own | {"level": level} for level in (_ALL, *own_levels, file.parent.name)]
    return pd.DataFrame(rows)


def table(scores: pd.DataFrame) -> str:
    """Return the table of `levels`' scores in Markdown, the highest interquartile mean first."""
    means = scores.pivot_table("score", "contender", "level", aggfunc=_iqm, sort=False)
    spread = means.max(axis=1) - means.min(axis=1)
    means = means.assign(**{"best - worst": spread}).sort_values(_ALL, ascending=False)
    rows = [["contender", *means.columns], ["---"] * (1 + len(means.columns))]
    rows += [[f"`{name}`", *(f"{x:.2f}" for x in row)] for name, row in means.iterrows()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _iqm(scores: pd.Series) -> float:
    return float(interquartile_mean(scores.to_numpy(np.float64)[None]))


def main(argv: Sequence[str]) -> None:
    """Print the table of the files that are given."""
    if len(argv) < 2:
        raise app.UsageError("No file is given; expected the scores.csv of evaluations.")
    print(table(levels([pathlib.Path(name) for name in argv[1:]])))


if __name__ == "__main__":
    app.run(main)
