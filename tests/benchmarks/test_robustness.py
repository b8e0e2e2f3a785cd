"""The table of the suite `robustness`."""

import pandas as pd
import pytest

from benchmarks.robustness import levels, table
from environments.suites import robustness

NAMES = robustness.SUITES["robustness"]


def written(folder, name, score_of, scale="Normalised by the reference"):
    """The scores.csv of an evaluation of one seed."""
    file = folder / name / "scores.csv"
    file.parent.mkdir()
    rows = [
        {"task": task, "contender": one, "seed": 0, "scale": scale, "score": score_of(one, task)}
        for one in ("rule", "ppo")
        for task in NAMES
    ]
    pd.DataFrame(rows).to_csv(file, index=False)
    return file


def test_columns_are_means_of_their_runs(tmp_path):
    def narrow(contender, task):
        return 0.25 if contender == "rule" and "_wide_" in task else 0.75

    files = [
        written(tmp_path, "narrow", narrow),
        written(tmp_path, "large", lambda contender, task: 0.5 if contender == "rule" else 0.75),
    ]
    lines = table(levels(files)).split("\n")
    header, _, first, second = [[cell.strip() for cell in x.split("|")[1:-1]] for x in lines]
    assert first[0] == "`ppo`"
    assert {*first[1:-1]} == {"0.75"}
    assert first[-1] == "0.00"
    found = dict(zip(header, second, strict=True))
    assert found["wide"] == "0.38"  # Half of them 0.25, half 0.5.
    assert found["given"] == "0.62"
    assert found["x1"] == "0.58"  # The middle half: 48 of 0.5 and 24 of 0.75.
    assert found["narrow"] == "0.75"
    assert found["large"] == "0.50"
    assert found["best - worst"] == "0.38"


def test_a_file_without_normalised_scores_is_refused(tmp_path):
    file = written(tmp_path, "raw", lambda contender, task: 1.0, scale="return")
    with pytest.raises(ValueError, match="has no score on the scale 'Normalised by the reference'"):
        levels([file])
