"""A check that replays fit in memory, before they are allocated."""

import dataclasses
from collections.abc import Sequence

import jax

import environments
from agents.protocol import Agent, Batch
from disco_common.memory import free_memory
from training import batches, replay
from training.replay import ReplayLayout

_MARGIN = 0.9  # Fraction of the free memory that replays may take.


@dataclasses.dataclass(frozen=True)
class Planned:
    """The planned replays of agents of one kind.

    Attributes:
      name: of the agents, for messages.
      layout: the sizes of each replay.
      example: an unroll, arrays or shapes.
      count: number of replays.
    """

    name: str
    layout: ReplayLayout
    example: Batch
    count: int = 1

    @property
    def capacity(self) -> int:
        """Capacity of each replay in trajectories of `unroll_length` steps."""
        return self.layout.num_kept * self.layout.num_environments

    @property
    def num_bytes(self) -> int:
        """Size of all replays in bytes, when full."""
        return self.count * replay.num_bytes(self.layout, self.example)

    def resized(self, num_kept: int) -> "Planned":
        """Return one such replay with a capacity of `num_kept` unrolls of each environment."""
        layout = dataclasses.replace(self.layout, num_kept=num_kept)
        return dataclasses.replace(self, layout=layout, count=1)


def plan(
    name: str,
    agent: Agent,
    dynamics: environments.JaxEnvironment | environments.HostEnvironment,
    count: int = 1,
    num_steps: int | None = None,
) -> Planned:
    """Return the planned replays of agents of one kind, one replay each.

    Args:
      name: of the agents, for messages.
      agent: one of them.
      dynamics: of its environments.
      count: number of agents.
      num_steps: environment steps of each run; None for no bound.
    """
    spec = agent.experience
    example = batches.example(agent, dynamics, spec.num_environments, spec.unroll_length)
    return Planned(name, replay.layout(spec, num_steps), example, count)


def require_memory(replays: Sequence[Planned], on_device: bool = False) -> None:
    """Check that replays fit in memory together.

    Args:
      replays: of this process, or of one device.
      on_device: whether they are in the device's memory, which a CPU shares with the host.

    Raises:
      ValueError: if they do not; the message has their size, the free memory, and a size that fits.
    """
    there = free_memory()
    if on_device:
        there = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", there)
    needed, free = sum(planned.num_bytes for planned in replays), int(_MARGIN * there)
    if needed <= free:
        return
    each = "; ".join(
        f"{planned.count} of {planned.capacity} trajectories of {planned.layout.unroll_length}"
        f" steps ({planned.name}, {_gib(planned.num_bytes)})"
        for planned in replays
    )
    raise ValueError(
        f"agent.replay_capacity asks for more memory than there is: {each}. They need"
        f" {_gib(needed)}, {_gib(free)} are free for replays,"
        f" {_what_fits(replays, free)}."
    )


def _what_fits(replays: Sequence[Planned], free: int) -> str:
    if len(replays) > 1 or replays[0].count > 1:
        share = free / sum(planned.num_bytes for planned in replays)
        return f"about {100 * share:.2g}% of that"
    (planned,) = replays
    smallest = planned.resized(1).num_bytes
    per_unroll = planned.resized(2).num_bytes - smallest
    unrolls = 1 + (free - smallest) // per_unroll
    if unrolls < 1:
        return "not enough for one trajectory of each environment"
    return f"enough for a capacity of {unrolls * planned.layout.num_environments}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
