"""The discovery loop: meta-steps, checkpoints and metrics."""

import contextlib
import signal
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import psutil
from jax.experimental import multihost_utils
from jaxtyping import Shaped

from disco_common import stopping
from disco_common.checkpoints import Checkpoints
from meta.discovery import Discovery
from meta.meta_step import AgentMetrics
from meta.population import DiscoveryState

RunMetrics = dict[str, Any]
"""The metrics of a window of meta-steps, as `metrics.jsonl` has them; JSON values."""

_NOT_AVERAGED = frozenset("task steps_since_reset finite reset episode_return_sum episodes".split())


class Observer:
    """What is told of a run along the way; this one does nothing.

    Attributes:
      probe_interval: meta-steps between probes; the last meta-step has one, too. 0 for none.
    """

    probe_interval = 0

    def on_start(self, step: int) -> None:
        """Note the meta-step that the run starts or continues from."""

    def on_report(self, metrics: RunMetrics) -> None:
        """Note the metrics of a window of meta-steps."""

    def on_checkpoint(self, step: int, state: DiscoveryState) -> None:
        """Note the state of which a checkpoint will be written."""

    def probe(self, step: int, state: DiscoveryState) -> bool:
        """Examine a state, of which a checkpoint is written; return whether it was finished.

        If it was stopped, the run ends, and the call is repeated when the run continues.
        """
        return True


def run(
    discovery: Discovery,
    *,
    meta_steps: int,
    checkpoints: Checkpoints,
    checkpoint_interval: int,
    log_interval: int,
    observer: Observer = Observer(),
) -> DiscoveryState:
    """Run meta-steps until there are `meta_steps` with those of earlier calls.

    A signal stops it before (`is_stop_requested`). It continues from the newest good checkpoint.
    The results do not depend on where a run was interrupted, except with environments outside JAX:
    these start new episodes, and the replays of their agents start empty. Metrics are averaged over
    windows of `log_interval` meta-steps.

    Raises:
      CheckpointError: if a checkpoint cannot be written or read.
      SimulatorError: if a simulator failed, or died and could not be replaced.
      ValueError: if replays do not fit in memory.
    """
    discovery.check()

    def is_probed(step: int) -> bool:
        interval = observer.probe_interval
        return bool(interval and step and (step == meta_steps or step % interval == 0))

    with contextlib.closing(discovery):
        restored = restore(discovery, checkpoints)
        step, state = restored if restored else (0, discovery.init())
        observer.on_start(step)
        is_stopping = is_probed(step) and not observer.probe(step, state)
        if step < meta_steps and not is_stopping:
            discovery.compile()
        window, started = [], time.monotonic()
        while step < meta_steps and not is_stopping:
            state, metrics = discovery.step(state)
            window.append(metrics)
            step += 1
            stopping.set_unsaved(True)
            is_stopping = is_stop_requested(step)
            is_kept = step == meta_steps or is_stopping or is_probed(step)
            if step % log_interval == 0 or is_kept:
                observer.on_report(_metrics(discovery, window, step, started))
                checkpoints.check()
                window, started = [], time.monotonic()
            if step % checkpoint_interval == 0 or is_kept:
                try:
                    observer.on_checkpoint(step, state)
                finally:  # A rule that cannot be written costs no checkpoint.
                    checkpoints.save(step, state, agents=discovery.agents_stacked)
            if is_probed(step) and not is_stopping:
                checkpoints.wait()
                stopping.set_unsaved(False)  # While fresh agents are compiled.
                is_stopping, started = not observer.probe(step, state), time.monotonic()
    checkpoints.wait()
    return state


def is_stop_requested(step: int) -> bool:
    """Return whether a signal asked the run to stop, after a step; the same for all processes."""
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
        stopping.request(signal.SIGTERM)
    return stopping.is_requested()


def _metrics(
    discovery: Discovery, window: list[tuple[AgentMetrics, ...]], step: int, started: float
) -> RunMetrics:
    """Return the metrics of a window of meta-steps, which ends at a step and started at a time."""
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


def restore(discovery: Discovery, checkpoints: Checkpoints) -> tuple[int, DiscoveryState] | None:
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

    `columns` are metrics of the window, in the order of the groups; `last` those of the last
    meta-step by group.
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
