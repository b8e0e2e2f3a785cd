"""Checks that replays and runs fit in memory, before anything is allocated."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import psutil

import environments
from agents.protocol import Agent
from training import replay
from training.passes import runs_per_pass

_MARGIN = 0.9  # Fraction of the free memory that may be taken.
_MEMBERSHIP = pathlib.Path("/proc/self/cgroup")
_CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes of the host's memory that this process may still use.

    Both the machine and the process's control groups (of Linux's version 2) limit them.
    """
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError):  # No Linux.
        own = pathlib.PurePosixPath(_MEMBERSHIP.read_text().strip().rpartition(":")[2])
        for group in (own, *own.parents):
            folder = _CONTROL_GROUPS / group.relative_to("/")
            with contextlib.suppress(OSError, ValueError, StopIteration):  # "max" is no number.
                bound = int((folder / "memory.max").read_text())
                lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
                # Pages of files that can be dropped are counted as used.
                droppable = next(int(number) for name, number in lines if name == "inactive_file")
                used = int((folder / "memory.current").read_text())
                free = min(free, bound - used + droppable)
    return max(free, 0)


def replay_bytes(agent: Agent, dynamics: Any, num_steps: int | None = None) -> int:
    """Return the bytes of an agent's full replay, 0 for none; `num_steps` as in `make_layout`."""
    return replay.num_bytes(jax.eval_shape(lambda: replay.of_agent(agent, dynamics, num_steps)))


def bytes_of_run(agent: Agent, dynamics: Any, num_steps: int) -> tuple[int, int, int]:
    """Return the sizes of a run's learning state, of its full replay, and of its checkpoint."""
    state = replay.num_bytes(jax.eval_shape(agent.init, jax.random.key(0)))
    stored, kept = replay_bytes(agent, dynamics, num_steps), agent.requirements.replay
    is_in_jax = isinstance(dynamics, environments.JaxEnvironment)
    has_replay = is_in_jax or (kept is not None and kept.in_checkpoints)
    return state, stored, state + stored * has_replay


def require_memory_for_replays(replays: Mapping[str, int]) -> None:
    """Check that the replays of a process, bytes by the agents' name, fit in the host's memory.

    Raises:
      ValueError: if they do not; the message has their sizes, and the free memory.
    """
    needed, free = sum(replays.values()), int(_MARGIN * free_memory())
    if needed > free:
        each = ", ".join(f"{_gib(size)} ({name})" for name, size in replays.items())
        raise ValueError(
            f"agent.replay_capacity asks for more memory than there is: replays of {each};"
            f" {_gib(free)} are free for them, {100 * free / needed:.2g}% of that."
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

    In JAX environments the devices hold the runs' learning states and replays; the host holds the
    copy that a checkpoint takes. In host environments the device holds one learning state, the host
    the replay and the copy. A CPU's memory is the host's. What updates need besides is not counted.
    `name` is the runs', for messages; `runs_at_once` is as of `training.passes.agents_per_pass`.

    Raises:
      ValueError: if they do not fit; the message has their sizes, and the free memory.
    """
    state, stored, checkpoint = bytes_of_run(agent, dynamics, num_steps)
    devices = 1
    # On each device, and on the host besides: a replay, and its copy if a checkpoint has it.
    held, on_host = state, stored + checkpoint - state
    if isinstance(dynamics, environments.JaxEnvironment):
        devices = jax.local_device_count()
        per_pass = runs_per_pass(runs_at_once, num_runs, devices)
        # With padding.
        held, on_host = -(-num_runs // (devices * per_pass)) * per_pass * (state + stored), 0
    on_host += devices * held
    own = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")  # None for a CPU.
    needs = [("The host", on_host + (devices * held if own is None else 0), free_memory())]
    if own is not None:
        needs.append(("A device", held, own))
    for where, needed, there in needs:
        if needed > (free := int(_MARGIN * there)):
            raise ValueError(
                f"{name}, {num_runs} run{'s' * (num_runs > 1)} at once: more memory is asked for"
                f" than there is. {where} needs {_gib(needed)}, {_gib(free)} are free: learning"
                f" states of {_gib(state)}, replays of {_gib(stored)} (agent.replay_capacity), and"
                " the copy of a checkpoint. Expected a smaller replay_capacity or agent, or fewer"
                " runs in a job (--runs_per_job)."
            )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
