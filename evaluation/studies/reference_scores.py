"""Reference scores of tasks: the optimum, or the best of long runs of the baselines.

A task with few states is solved (`environments.exact_returns`); of some others the optimum is known
(`known_optima`), and the random policy's score is measured. On each other one, the config's
baselines and the random policy are trained for `LONGER` times the budget with `SEEDS` seeds; the
best baseline's mean score is the reference. So a score of 1 on such a task is what the best
baseline has after ten times the experience. All runs are stored and continued like those of an
evaluation.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

import environments
from environments.exact_returns import expected_returns, finite_mdp
from environments.known_optima import OPTIMA
from evaluation.config import EvaluationConfig
from evaluation.contenders import RANDOM, make_contenders
from evaluation.evaluate import Experiment, make_runs
from evaluation.scoring import references, statistics
from evaluation.scoring.references import Reference
from evaluation.tuned_settings import TunedSettings

LONGER = 10
SEEDS = 5
_CLEARLY = 3.0  # Standard errors by which a reference must be above the random policy.


def reference_scores(
    experiment: Experiment, tuned: TunedSettings | None, *, trains: bool
) -> tuple[dict[str, Reference], dict[str, str]]:
    """Return the reference scores of tasks.

    The config is that of the evaluations that the references are for, as are the tuned settings of
    its baselines. Without `trains`, only tasks that can be solved have references.

    Returns:
      The references by task, and for each task without one the reason.

    Raises:
      JobsFailedError, OSError, ValueError: as `evaluation.evaluate.evaluate` does.
    """
    tasks, config = experiment.tasks, experiment.config
    found = {task.name: solved for task in tasks if (solved := _optimum(task)) is not None}
    left = [task for task in tasks if task.name not in found]
    experiment.announce(f"{len(found)} of {len(tasks)} tasks are solved by dynamic programming.")
    if not trains or not left:
        return found, {task.name: "it cannot be solved, and --notrain" for task in left}
    longer = dataclasses.replace(config, budget=LONGER * config.num_steps, seeds=SEEDS)
    nobody = dataclasses.replace(longer, baselines=())
    if tuned is not None:  # For the same agents, but longer.
        tuned = dataclasses.replace(tuned, budget=longer.num_steps)
    ends: dict[str, Reference | str] = {}
    folder = experiment.folder
    for is_known, own, path in ((True, nobody, folder / RANDOM), (False, longer, folder)):
        some = [task for task in left if (task.name in OPTIMA) == is_known]
        if not some:
            continue
        contenders = make_contenders([], own, tuned=tuned)
        of_some = dataclasses.replace(experiment, tasks=some, config=own, folder=path)
        curves = make_runs(of_some, contenders)
        for i, task in enumerate(some):
            returns = {name: one.window.mean_return[i] for name, one in curves.items()}
            scores = {name: x[np.isfinite(x)] for name, x in returns.items()}
            ends[task.name] = (
                _known_optimum(task, scores[RANDOM])
                if is_known
                else _best_long_run(task, scores, config.num_steps, longer)
            )
    found |= {name: one for name, one in ends.items() if not isinstance(one, str)}
    reasons = {task.name: one for task in left if isinstance(one := ends[task.name], str)}
    return {task.name: found[task.name] for task in tasks if task.name in found}, reasons


def _optimum(task: environments.Environment) -> Reference | None:
    """Return the scale up to a task's optimum; None if it cannot be solved."""
    try:
        mdp = finite_mdp(task)
    except ValueError:
        return None
    returns = expected_returns(mdp)
    if not returns.optimal > returns.random:
        return None
    return Reference(
        fingerprint=references.fingerprint(task),
        random=returns.random,
        reference=returns.optimal,
        budget=None,
        origin=f"optimum, by dynamic programming over {returns.num_states:,} states",
    )


def _known_optimum(
    task: environments.Environment, random: Float[np.ndarray, "runs"]
) -> Reference | str:
    """Return the scale from the random policy's mean score to the optimum, or why there is none."""
    optimum = OPTIMA[task.name]
    if len(random) < 2:
        return "fewer than two runs of the random policy have a score"
    return Reference(
        fingerprint=references.fingerprint(task),
        random=float(np.mean(random)),
        reference=optimum.value,
        budget=None,
        origin=f"optimum, {optimum.reason}; random, {len(random)} runs",
        random_error=float(statistics.standard_error(random)),
    )


def _best_long_run(
    task: environments.Environment,
    scores: Mapping[str, np.ndarray],
    budget: int,
    config: EvaluationConfig,
) -> Reference | str:
    """Return the scale up to the best contender's mean score, or why there is none."""
    means = {name: float(np.mean(x)) for name, x in scores.items() if len(x) > 1}
    if RANDOM not in means or len(means) < 2:
        return "fewer than two runs of the random policy or of every baseline have a score"
    best = max((name for name in means if name != RANDOM), key=lambda name: means[name])
    errors = {name: float(statistics.standard_error(scores[name])) for name in (RANDOM, best)}
    gap, error = means[best] - means[RANDOM], float(np.hypot(errors[best], errors[RANDOM]))
    if gap <= _CLEARLY * error:
        return (
            f"the best of long runs, {best}'s {means[best]:.4g}, is not clearly above the random"
            f" policy's {means[RANDOM]:.4g} (standard error of the difference {error:.2g})"
        )
    return Reference(
        fingerprint=references.fingerprint(task),
        random=means[RANDOM],
        reference=means[best],
        budget=budget,
        origin=f"best of {len(means) - 1} baselines after {config.num_steps:,} steps: {best},"
        f" {len(scores[best])} seeds from {config.seed}",
        random_error=errors[RANDOM],
        reference_error=errors[best],
    )
