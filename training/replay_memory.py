"""Checks that replays and runs fit in memory, before anything is allocated."""

import dataclasses
import math
from collections.abc import Sequence

import jax

import environments
from agents.protocol import Agent, Batch, SizedAgent
from disco_common.memory import free_memory
from training import batches, replay
from training.passes import agents_per_pass
from training.replay import ReplayLayout

_MARGIN = 0.9  # Fraction of the free memory that may be taken.


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


def require_memory(replays: Sequence[Planned]) -> None:
    """Check that the replays of a process fit in the host's memory together.

    Raises:
      ValueError: if they do not; the message has their size, the free memory, and a size that fits.
    """
    needed, free = sum(planned.num_bytes for planned in replays), int(_MARGIN * free_memory())
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


def require_memory_for_runs(
    name: str,
    agent: Agent,
    dynamics: environments.JaxEnvironment | environments.HostEnvironment,
    num_runs: int,
    num_steps: int,
    runs_at_once: int | None = None,
) -> None:
    """Check that the runs that a process trains together fit in memory.

    In JAX environments the devices hold the runs' learning states and replays, and make some
    updates at a time; the host holds the copy that a checkpoint takes. In host environments the
    host holds the replay. A CPU's memory is the host's.

    Args:
      name: of the runs, for messages.
      agent: that learns.
      dynamics: of the environments.
      num_runs: number of runs.
      num_steps: environment steps of each run.
      runs_at_once: see `training.passes.agents_per_pass`.

    Raises:
      ValueError: if they do not fit; the message has their sizes, and the free memory.
    """
    spec, per_replay, capacity = agent.experience.replay, 0, 0
    if spec is not None:
        planned = plan(name, agent, dynamics, 1, num_steps)
        per_replay, capacity = planned.num_bytes, planned.capacity
    is_host = isinstance(dynamics, environments.HostEnvironment)
    # Host runs follow one another, so that only large agents' updates matter there.
    state = 0 if is_host else _num_bytes(jax.eval_shape(agent.init, jax.random.key(0)))
    update = agent.update_bytes() if isinstance(agent, SizedAgent) else state
    devices = 1 if is_host else jax.local_device_count()
    per_pass = agents_per_pass(runs_at_once, -(-num_runs // devices))
    per_device = -(-num_runs // (devices * per_pass)) * per_pass  # With padding.
    own = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")

    def needed(per_replay: int) -> dict[str, int]:
        """Return the bytes on the host, and on a device that has memory of its own."""
        if is_host:
            copies = 2 if spec is not None and spec.in_checkpoints else 1
            on_device, on_host = update, copies * per_replay
        else:
            on_device = per_device * (state + per_replay) + per_pass * max(update - state, 0)
            on_host = devices * per_device * (state + per_replay)
        if own is None:
            return {"The host": on_host + devices * on_device}
        return {"The host": on_host, "A device": on_device}

    free = {"The host": int(_MARGIN * free_memory()), "A device": int(_MARGIN * (own or 0))}
    without = needed(0)
    for where, total in needed(per_replay).items():
        if total <= free[where]:
            continue
        advice = "a smaller agent or batch, or fewer runs in a job (--runs_per_job)"
        if without[where] < free[where]:
            share = (free[where] - without[where]) / (total - without[where])
            advice = f"a replay_capacity of about {int(share * capacity)}, {advice}"
        raise ValueError(
            f"{num_runs} runs of {name} ask for more memory than there is: replays of {capacity}"
            f" trajectories of {agent.experience.unroll_length} steps (agent.replay_capacity),"
            f" {_gib(per_replay)} each; learning states of {_gib(state)}; {per_pass} updates at a"
            f" time on each device of {_gib(update)}; and the copy of a checkpoint. {where} needs"
            f" {_gib(total)}, {_gib(free[where])} are free. Expected {advice}."
        )


def _num_bytes(tree: object) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


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
