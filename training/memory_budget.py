"""Checks that replays and runs fit in memory, before anything is allocated."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

import environments
from agents.protocol import Agent, Batch, SizedAgent
from agents.update_memory import device_memory
from disco_common.memory import free_memory
from training import batches, replay
from training.passes import runs_per_pass
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
    device holds one learning state, the host the replay and the copy. A CPU's memory is the host's.

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
    replays = None
    if agent.experience.replay is not None:
        replays = plan(name, agent, dynamics, 1, num_steps)
    runs = _Runs.of(
        agent, dynamics, num_runs, 0 if replays is None else replays.num_bytes, runs_at_once
    )
    own = device_memory()
    free = {"The host": int(_MARGIN * free_memory()), "A device": int(_MARGIN * (own or 0))}
    for where, needed in runs.needed(own is not None).items():
        if needed <= free[where]:
            continue
        stored, advice = "", "a smaller agent or batch, or fewer runs in a job (--runs_per_job)"
        if replays is not None:
            stored = (
                f"replays of {replays.capacity} trajectories of {replays.layout.unroll_length}"
                f" steps (agent.replay_capacity), {_gib(runs.replay)} each; "
            )
            without = dataclasses.replace(runs, replay=0).needed(own is not None)[where]
            if without < free[where]:
                share = (free[where] - without) / (needed - without)
                advice = f"a replay_capacity of about {int(share * replays.capacity)}, {advice}"
        raise ValueError(
            f"{num_runs} {'runs' if num_runs > 1 else 'run'} of {name}"
            f" {'ask' if num_runs > 1 else 'asks'} for more memory than there is: {stored}learning"
            f" states of {_gib(runs.state)}; {runs.per_pass} updates at a time on each device of"
            f" {_gib(runs.update)}; and the copy of a checkpoint. {where} needs {_gib(needed)},"
            f" {_gib(free[where])} are free. Expected {advice}."
        )


@dataclasses.dataclass(frozen=True)
class _Runs:
    """Sizes of the runs that a process trains together.

    Attributes:
      state: bytes of a learning state.
      replay: bytes of a replay.
      update: bytes of an update, the learning state included.
      devices: number of devices.
      per_device: runs whose learning states a device holds, and their replays in JAX environments.
      per_pass: runs that a device updates at a time.
      host_replays: replays in the host's memory, copies included; 0 in JAX environments.
    """

    state: int
    replay: int
    update: int
    devices: int
    per_device: int
    per_pass: int
    host_replays: int

    @classmethod
    def of(
        cls, agent: Agent, dynamics: Any, num_runs: int, replay: int, runs_at_once: int | None
    ) -> "_Runs":
        """Return the sizes; arguments as those of `require_memory_for_runs`."""
        state = _num_bytes(jax.eval_shape(agent.init, jax.random.key(0)))
        update = agent.update_bytes() if isinstance(agent, SizedAgent) else state
        if isinstance(dynamics, environments.HostEnvironment):
            spec = agent.experience.replay
            copies = 2 if spec is not None and spec.in_checkpoints else 1
            return cls(state, replay, update, 1, 1, 1, copies)
        devices = jax.local_device_count()
        per_pass = runs_per_pass(runs_at_once, num_runs, devices)
        per_device = -(-num_runs // (devices * per_pass)) * per_pass  # With padding.
        return cls(state, replay, update, devices, per_device, per_pass, 0)

    def needed(self, devices_have_own: bool) -> dict[str, int]:
        """Return the bytes needed on the host, and on a device that has memory of its own."""
        replays = 0 if self.host_replays else self.replay
        held = self.per_device * (self.state + replays)
        on_device = held + self.per_pass * (self.update - self.state)
        on_host = self.devices * held + self.host_replays * self.replay
        if devices_have_own:
            return {"The host": on_host, "A device": on_device}
        return {"The host": on_host + self.devices * on_device}


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
