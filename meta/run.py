"""The discovery loop: meta-steps, checkpoints and metrics."""

import contextlib
import signal
import time
from functools import partial
from typing import Any

import jax
import psutil
from jax.experimental import multihost_utils

from disco_common import stopping
from disco_common.checkpoints import Checkpoints
from meta.estimators.protocol import Discovery, Metrics


class Observer:
    """What is told of a run along the way; this one does nothing.

    Attributes:
      probe_interval: meta-steps between probes; the last meta-step has one, too. 0 for none.
    """

    probe_interval = 0

    def on_start(self, step: int) -> None:
        """Note the meta-step that the run starts or continues from."""

    def on_progress(self, step: int, part: float) -> None:
        """Note the meta-steps so far, and the part of the next one, if it takes long."""

    def on_report(self, metrics: Metrics) -> None:
        """Note the metrics of a window of meta-steps."""

    def on_checkpoint(self, step: int, state: Any) -> None:
        """Note the state of which a checkpoint will be written."""

    def probe(self, step: int, state: Any) -> bool:
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
) -> Any:
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

    is_probed = partial(_is_probed, observer.probe_interval, meta_steps)
    with contextlib.closing(discovery):
        restored = restore(discovery, checkpoints)
        step, state = restored if restored else (0, discovery.init())
        observer.on_start(step)
        kept = step
        is_stopping = is_probed(step) and not observer.probe(step, state)
        if step < meta_steps and not is_stopping:
            discovery.compile()
        window, started = [], time.monotonic()
        while step < meta_steps and not is_stopping:
            try:
                state, metrics = discovery.step(state, partial(observer.on_progress, step))
            except stopping.StoppedBySignal:
                is_stopping = True
            else:
                window.append(metrics)
                step += 1
                stopping.set_unsaved(True)
                is_stopping = is_stop_requested(step)
            is_kept = step == meta_steps or is_stopping or is_probed(step)
            is_kept |= discovery.can_stop_within
            if window and (step % log_interval == 0 or is_kept):
                observer.on_report(_metrics(discovery, window, step, started))
                checkpoints.check()
                window, started = [], time.monotonic()
            if step > kept and (step % checkpoint_interval == 0 or is_kept):
                kept = step
                _keep(discovery, checkpoints, observer, step, state)
            if (is_probed(step) or discovery.can_stop_within) and not is_stopping:
                checkpoints.wait()
                stopping.set_unsaved(False)  # While fresh agents are compiled.
            if is_probed(step) and not is_stopping:
                is_stopping, started = not observer.probe(step, state), time.monotonic()
    checkpoints.wait()
    return state


def _is_probed(interval: int, meta_steps: int, step: int) -> bool:
    """Return whether there is a probe after a meta-step."""
    return bool(interval and step and (step == meta_steps or step % interval == 0))


def _keep(
    discovery: Discovery, checkpoints: Checkpoints, observer: Observer, step: int, state: Any
) -> None:
    """Save a checkpoint; a rule that cannot be written costs none."""
    try:
        observer.on_checkpoint(step, state)
    finally:
        checkpoints.save(step, state, agents=discovery.agents_stacked)


def is_stop_requested(step: int) -> bool:
    """Return whether a signal asked the run to stop, after a step; the same for all processes."""
    if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
        stopping.request(signal.SIGTERM)
    return stopping.is_requested()


def _metrics(discovery: Discovery, window: list[Any], step: int, started: float) -> Metrics:
    """Return the metrics of a window of meta-steps, which ends at a step and started at a time."""
    seconds, before = time.monotonic() - started, step - len(window)
    made = discovery.environment_steps(step)
    return {
        **discovery.summarize(window),
        "memory_gib": psutil.Process().memory_info().rss / 2**30,
        "meta_step": step,
        "seconds": seconds,
        "meta_steps_per_second": len(window) / seconds,
        "environment_steps_per_second": (made - discovery.environment_steps(before)) / seconds,
        "environment_steps": made,
    }


def restore(discovery: Discovery, checkpoints: Checkpoints) -> tuple[int, Any] | None:
    """Return the meta-step and the state of the newest good checkpoint; None if there is none.

    Raises:
      CheckpointError: if there are checkpoints and none can be used.
    """
    restored = checkpoints.restore(discovery.abstract_state, agents=discovery.agents_stacked)
    if restored is None:
        return None
    step, state = restored
    return step, discovery.restored(state)
