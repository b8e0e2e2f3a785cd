"""The discovery loop: meta-steps, checkpoints, reports."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import psutil

from common.checkpoints import CheckpointReader, Checkpoints
from meta.discovery import Discovery, DiscoveryState

Report = dict[str, Any]


def run(
    discovery: Discovery,
    *,
    meta_steps: int,
    checkpoints: Checkpoints,
    checkpoint_interval: int,
    log_interval: int,
    on_start: Callable[[int], None] = lambda step: None,
    on_report: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[int], bool] = lambda step: False,
) -> DiscoveryState:
    """Runs meta-steps until `meta_steps` are made, or it is told to stop.

    Continues from the newest good checkpoint. What it computes does not depend on where it was
    interrupted, unless some environments are outside JAX: those start new episodes then, and their
    agents' replays fill anew.

    Args:
      discovery: the run.
      meta_steps: in total, those of earlier calls included.
      checkpoints: of the run.
      checkpoint_interval: meta-steps between checkpoints; there is one at the end besides.
      log_interval: meta-steps between reports, which average over them.
      on_start: called with the meta-step that the run starts or continues from.
      on_report: called with each report.
      should_stop: asked after each meta-step, with how many are made; if so, a checkpoint is
        written and the loop ends. All processes are to agree.

    Raises:
      CheckpointError: if a checkpoint cannot be written or read.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      ValueError: if replays do not fit in memory.
    """
    discovery.check()
    with contextlib.closing(discovery):
        restored = restore(discovery, checkpoints)
        step, state = restored if restored else (0, discovery.init())
        on_start(step)
        if step < meta_steps:
            discovery.compile()
        window, started = [], time.monotonic()
        while step < meta_steps:
            state, metrics = discovery.step(state)
            window.append(metrics)
            step += 1
            stopping = should_stop(step)
            if step % log_interval == 0 or step == meta_steps or stopping:
                report = summarize(discovery, window)
                seconds = time.monotonic() - started
                report |= discovery.host_metrics()
                report["memory_gib"] = psutil.Process().memory_info().rss / 2**30
                report["meta_step"] = step
                report["seconds"] = seconds
                report["meta_steps_per_second"] = len(window) / seconds
                steps = discovery.steps_per_meta_step * discovery.population_size * len(window)
                report["environment_steps_per_second"] = steps / seconds
                report["environment_steps"] = (
                    step * discovery.steps_per_meta_step * discovery.population_size
                )
                on_report(report)
                checkpoints.check()
                window, started = [], time.monotonic()
            if step % checkpoint_interval == 0 or step == meta_steps or stopping:
                checkpoints.save(step, state, agents=discovery.agents_stacked)
            if stopping:
                break
    checkpoints.wait()
    return state


def restore(
    discovery: Discovery, checkpoints: CheckpointReader
) -> tuple[int, DiscoveryState] | None:
    """Meta-step and state of the newest good checkpoint; None if there is none.

    Raises:
      CheckpointError: if there are checkpoints and none can be used.
    """
    restored = checkpoints.restore(discovery.abstract_state, agents=discovery.agents_stacked)
    if restored is None:
        return None
    step, state = restored
    return step, discovery.with_copies(state)


def summarize(discovery: Discovery, window: list) -> Report:
    """Means over the agents and meta-steps of a window, and each agent's own figures.

    `agents` has lists over the population: the task, the mean validation reward per step over
    the window (`meta_return`), and the steps of its life so far. A figure that is not finite
    for an agent is left out of the mean.
    """
    window = jax.device_get(window)
    places = np.concatenate([group.places for group in discovery.groups])
    order = np.argsort(places)
    names = [
        group.names[i]
        for group, metrics in zip(discovery.groups, window[-1], strict=True)
        for i in metrics["task"]
    ]
    columns = {
        name: np.stack([np.concatenate([group[name] for group in metrics]) for metrics in window])
        for name in window[0][0]
    }
    report: Report = {}
    for name, values in columns.items():
        if name in ("task", "life_steps", "finite", "reborn", "episode_return_sum", "episodes"):
            continue
        finite = values[np.isfinite(values)]
        report[name] = float(finite.mean()) if finite.size else None
    finite = np.isfinite(columns["episode_return_sum"])
    episodes = columns["episodes"][finite].sum()
    total = columns["episode_return_sum"][finite].sum()
    report["episode_return"] = float(total / episodes) if episodes else None
    report["non_finite_agents"] = int((columns["finite"] == 0).sum())
    report["reborn_agents"] = int(columns["reborn"].sum())
    report["agents"] = {
        "task": [names[i] for i in order],
        "meta_return": [
            float(x) if np.isfinite(x) else None for x in columns["meta_return"].mean(axis=0)[order]
        ],
        "life_steps": [int(x) for x in columns["life_steps"][-1][order]],
    }
    return report
