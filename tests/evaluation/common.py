"""Training without an evaluation around it."""

import pathlib
from collections.abc import Sequence

import environments
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.results import History
from evaluation.training import Report, Run, train_on_device, train_on_host


def train(
    tasks: Sequence[environments.Environment],
    contender: Contender,
    config: EvaluationConfig,
    folder: pathlib.Path,
    report: Report = lambda *_: None,
) -> History:
    """A contender's history on tasks that are all outside JAX, or all of equal dynamics."""
    runs = [[Run(contender, task, seed) for seed in range(config.seeds)] for task in tasks]
    if tasks[0].is_host:
        results = [
            [train_on_host(run, config, storage.run_folder(folder, run), report) for run in row]
            for row in runs
        ]
    else:
        flat = train_on_device([run for row in runs for run in row], config, report)
        results = [flat[i : i + config.seeds] for i in range(0, len(flat), config.seeds)]
    return History.of(results, config)


def load(
    folder: pathlib.Path,
    tasks: Sequence[environments.Environment],
    contender: Contender,
    config: EvaluationConfig,
) -> History:
    """A contender's history, from the results that an evaluation kept."""
    results = [
        [storage.load(folder, Run(contender, task, seed)) for seed in range(config.seeds)]
        for task in tasks
    ]
    return History.of([[x for x in row if x is not None] for row in results], config)
