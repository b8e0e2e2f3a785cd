"""Jobs of an evaluation: which runs are trained together."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

import environments
from evaluation.training import Run
from training.static_agent import split_agent


def job_groups(runs: Sequence[Run], most: int | None) -> Iterator[list[Run]]:
    """Yield job groups, runs that are trained together, on equal dynamics.

    They are of one contender or, on an accelerator, of all whose agents differ in arrays only, as
    its programs take hardly longer with more runs. A run in a host environment, or of an agent that
    trains itself, is a group of its own.
    """

    @functools.cache
    def kind(name: str, dynamics: environments.JaxEnvironment) -> Any:
        if not _mixes_contenders():
            return name
        run = next(x for x in runs if (x.contender.name, x.task.dynamics) == (name, dynamics))
        return split_agent(run.contender.make(run.task))[0]

    groups: dict[Any, list[Run]] = {}
    for run in runs:
        is_alone = run.task.is_host or run.contender.own_training is not None
        key = id(run) if is_alone else kind(run.contender.name, run.task.dynamics)
        groups.setdefault((key, run.task.dynamics), []).append(run)
    for group in groups.values():
        size = most or len(group)
        yield from (group[first : first + size] for first in range(0, len(group), size))


def _mixes_contenders() -> bool:
    """Return whether contenders whose agents differ in arrays only are trained together."""
    return jax.default_backend() != "cpu"


def names(group: Sequence[Run]) -> str:
    """Return a description, for example `tiny on catch/5x5 (seeds 0, 1), catch/8x8 (seed 0)`."""
    first = group[0].contender.name
    others = len({run.contender.name for run in group}) - 1
    who = f"{first} and {others} more" if others else first
    seeds: dict[str, list[str]] = {}
    for run in group:
        if run.contender.name != first:
            continue
        seeds.setdefault(run.task.name, []).append(str(run.seed_index))
    tasks = [
        f"{task} (seed{'s' * (len(found) > 1)} {', '.join(found)})" for task, found in seeds.items()
    ]
    more = f" and {len(tasks) - 4} tasks more" if len(tasks) > 5 else ""
    return f"{who} on {', '.join(tasks[:4] if more else tasks)}{more}"
