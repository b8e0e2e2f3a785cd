"""What improves a rule: a discovery as `meta.run` runs it, whatever its estimator."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Shaped

import disco

Metrics = dict[str, Any]
"""The metrics of a window of meta-steps, as `metrics.jsonl` has them; JSON values."""


@runtime_checkable
class Discovery(Protocol):
    """A rule that improves by meta-steps. Its state is a pytree, which a checkpoint holds.

    Meta-steps depend on the state alone, so that a resumed run equals an uninterrupted one.

    Attributes:
      has_hosts: whether some environments are outside JAX; checkpoints do not hold their states.
      can_stop_within: whether meta-steps take minutes and hold nothing that would have to be saved:
        a stop signal ends them, and each of them has a checkpoint.
    """

    @property
    def has_hosts(self) -> bool: ...

    @property
    def can_stop_within(self) -> bool: ...

    @property
    def host_replay_bytes(self) -> int:
        """Bytes of the full replays of environments outside JAX."""
        ...

    @property
    def abstract_state(self) -> Any:
        """Shapes, dtypes and shardings of a state."""
        ...

    @property
    def agents_stacked(self) -> Any:
        """Number of agents that each array of a state is stacked over; 0 for none."""
        ...

    def check(self) -> None:
        """Raise a ValueError, before anything is compiled, if the run cannot be made."""

    def init(self) -> Any:
        """Return the state before the first meta-step."""

    def restored(self, state: Any) -> Any:
        """Return a checkpoint's state as this run continues from it."""

    def compile(self) -> None:
        """Compile what can be compiled before the first meta-step."""

    def step(
        self, state: Any, report: Callable[[float], None] = lambda part: None
    ) -> tuple[Any, Any]:
        """Make one meta-step; return the state after it, and its metrics for `summarize`.

        `report` is called along the way with the part of the meta-step that is done, if it takes
        long.

        Raises:
          SimulatorError: if a simulator failed, or died and could not be replaced.
          StoppedBySignal: after a stop signal; the state is unchanged.
        """
        ...

    def summarize(self, window: Sequence[Any]) -> Metrics:
        """Return the metrics of the meta-steps of a window; may read clocks since the last one."""
        ...

    def environment_steps(self, meta_steps: int) -> int:
        """Return the environment steps of all agents' learning in the first meta-steps."""
        ...

    def average_rule(self, state: Any) -> tuple[disco.DiscoveredRule, Mapping[str, int]]:
        """Return the rule to export, and the environment steps of learning so far by task."""
        ...

    def close(self) -> None:
        """Stop host environments."""


def finite_mean(values: Shaped[np.ndarray, "*s"]) -> float | None:
    """Return the mean of the numbers that are finite; None if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def require_layers(setting: str, names: Sequence[str], rule: disco.DiscoveredRule) -> None:
    """Raise a ValueError if a rule has not all layers that a setting names."""
    if unknown := sorted({*names} - {*rule.parameters}):
        raise ValueError(f"{setting} has {unknown}; expected some of {sorted(rule.parameters)}.")
