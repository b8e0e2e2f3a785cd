"""The discovery loop: meta-steps, checkpoints and metrics."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import psutil
from jaxtyping import Shaped

from disco_common.checkpoints import CheckpointReader, Checkpoints
from disco_common.stopping import set_unsaved
from meta.discovery import Discovery
from meta.meta_step import AgentMetrics
from meta.state import DiscoveryState

RunMetrics = dict[str, Any]
"""The metrics of a window of meta-steps, as `metrics.jsonl` has them; JSON values."""

_NOT_AVERAGED = frozenset("task steps_since_reset finite reset episode_return_sum episodes".split())


def run(
    discovery: Discovery,
    *,
    meta_steps: int,
    checkpoints: Checkpoints,
    checkpoint_interval: int,
    log_interval: int,
    on_start: Callable[[int], None] = lambda step: None,
    on_report: Callable[[RunMetrics], None] = lambda metrics: None,
    should_stop: Callable[[int], bool] = lambda step: False,
    probe_interval: int = 0,
    probe: Callable[[int, DiscoveryState], bool] = lambda step, state: True,
    on_checkpoint: Callable[[int, DiscoveryState], None] = lambda step, state: None,
) -> DiscoveryState:
    """Run meta-steps until there are `meta_steps`, or until `should_stop` returns true.

    It continues from the newest good checkpoint. The results do not depend on where a run was
    interrupted, except with environments outside JAX: these start new episodes, and the replays of
    their agents start empty.

    Args:
      discovery: the run.
      meta_steps: in total, including those of earlier calls.
      checkpoints: of the run.
      checkpoint_interval: meta-steps between checkpoints; the last meta-step has one, too.
      log_interval: length of the windows of meta-steps that metrics are averaged over.
      on_start: called with the meta-step that the run starts or continues from.
      on_report: called with the metrics of each window.
      should_stop: called after each meta-step with the number of meta-steps so far. If true, a
        checkpoint is written and the loop ends. All processes must return the same.
      probe_interval: meta-steps between calls of `probe`; the last meta-step has one, too. 0 for
        none.
      probe: called with the number of meta-steps so far and the state, after a checkpoint of it is
        written. If it returns false, it was stopped, and the loop ends; the call is repeated when
        the run continues.
      on_checkpoint: called with the number of meta-steps so far and the state, as a checkpoint of
        it is begun.

    Raises:
      CheckpointError: if a checkpoint cannot be written or read.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      ValueError: if replays do not fit in memory.
    """
    discovery.check()

    def is_probed(step: int) -> bool:
        is_due = step == meta_steps or (probe_interval and step % probe_interval == 0)
        return bool(probe_interval and step and is_due)

    with contextlib.closing(discovery):
        restored = restore(discovery, checkpoints)
        step, state = restored if restored else (0, discovery.init())
        on_start(step)
        stopping = is_probed(step) and not probe(step, state)
        if step < meta_steps and not stopping:
            discovery.compile()
        window, started = [], time.monotonic()
        while step < meta_steps and not stopping:
            state, metrics = discovery.step(state)
            window.append(metrics)
            step += 1
            set_unsaved(True)
            stopping = should_stop(step)
            is_kept = step == meta_steps or stopping or is_probed(step)
            if step % log_interval == 0 or is_kept:
                on_report(_metrics(discovery, window, step, started))
                checkpoints.check()
                window, started = [], time.monotonic()
            if step % checkpoint_interval == 0 or is_kept:
                checkpoints.save(step, state, agents=discovery.agents_stacked)
                on_checkpoint(step, state)
            if is_probed(step) and not stopping:
                checkpoints.wait()
                set_unsaved(False)  # While fresh agents are compiled.
                stopping, started = not probe(step, state), time.monotonic()
    checkpoints.wait()
    return state


def _metrics(
    discovery: Discovery, window: list[tuple[AgentMetrics, ...]], step: int, started: float
) -> RunMetrics:
    """Return the metrics of a window of meta-steps.

    Args:
      discovery: the run.
      window: metrics of the meta-steps.
      step: number of meta-steps so far.
      started: time of the window's start, by `time.monotonic`.
    """
    metrics = summarize(discovery, window)
    seconds = time.monotonic() - started
    steps_per_meta_step = discovery.steps_per_meta_step * discovery.population_size
    return metrics | {
        **discovery.host_metrics(),
        "memory_gib": psutil.Process().memory_info().rss / 2**30,
        "meta_step": step,
        "seconds": seconds,
        "meta_steps_per_second": len(window) / seconds,
        "environment_steps_per_second": steps_per_meta_step * len(window) / seconds,
        "environment_steps": step * steps_per_meta_step,
    }


def restore(
    discovery: Discovery, checkpoints: CheckpointReader
) -> tuple[int, DiscoveryState] | None:
    """Return the meta-step and the state of the newest good checkpoint; None if there is none.

    Raises:
      CheckpointError: if there are checkpoints and none can be used.
    """
    restored = checkpoints.restore(discovery.abstract_state, agents=discovery.agents_stacked)
    if restored is None:
        return None
    step, state = restored
    return step, discovery.copy_to_padding(state)


def summarize(discovery: Discovery, window: list[tuple[AgentMetrics, ...]]) -> RunMetrics:
    """Return the means of the metrics over the agents and meta-steps of a window.

    Non-finite values are left out of the means. `non_finite_agents` and `num_resets` count
    non-finite meta-gradients and resets of agents. `agents` has lists over the population: the
    task, the mean validation reward per step over the window (`validation_reward`), and the
    environment steps since the agent's last reset (`steps_since_reset`). `environment_steps` are
    those of the inner loops, without validation.
    """
    fetched: Any = jax.device_get(window)
    columns = {
        name: np.stack([np.concatenate([group[name] for group in metrics]) for metrics in fetched])
        for name in fetched[0][0]
    }
    summary: RunMetrics = {}
    for name, values in columns.items():
        if name not in _NOT_AVERAGED:
            finite = values[np.isfinite(values)]
            summary[name] = float(finite.mean()) if finite.size else None
    finite = np.isfinite(columns["episode_return_sum"])
    episodes = columns["episodes"][finite].sum()
    total = columns["episode_return_sum"][finite].sum()
    summary["episode_return"] = float(total / episodes) if episodes else None
    summary["non_finite_agents"] = int((columns["finite"] == 0).sum())
    summary["num_resets"] = int(columns["reset"].sum())
    summary["agents"] = _by_agent(discovery, columns, fetched[-1])
    return summary


def _by_agent(
    discovery: Discovery,
    columns: Mapping[str, Shaped[np.ndarray, "meta_steps agents"]],
    last: tuple[Mapping[str, Shaped[np.ndarray, "_agents"]], ...],
) -> dict[str, list[Any]]:
    """Return lists over the population, in the order of the agents' indices.

    Args:
      discovery: the run.
      columns: metrics of the window, by name, in the order of the groups.
      last: each group's metrics of the last meta-step.
    """
    order = np.argsort(np.concatenate([group.indices for group in discovery.groups]))
    names = [
        group.names[i]
        for group, metrics in zip(discovery.groups, last, strict=True)
        for i in metrics["task"]
    ]
    return {
        "task": [names[i] for i in order],
        "validation_reward": [
            float(x) if np.isfinite(x) else None
            for x in columns["validation_reward"].mean(axis=0)[order]
        ],
        "steps_since_reset": [int(x) for x in columns["steps_since_reset"][-1][order]],
    }
