"""Runs of several processes, on one machine or on several.

    python -m launch.discover --coordinator=HOST:PORT --num_processes=2 --process_id=0 ...
    python -m launch.discover --coordinator=HOST:PORT --num_processes=2 --process_id=1 ...

Each process runs the same command with the same workdir, on a file system that all of them share.
Process 0 listens at the coordinator's address, and only there if it is an address of its machine
(`_listening_address`). Connections are not authenticated. Under Slurm (`srun` with several tasks)
and Open MPI the processes find each other without these flags, on TPU pods with
`--coordinator=auto` (`jax.distributed`); process 0 then listens at all addresses. In these cases
the only process of a machine has all of its GPUs, and each of several processes has one
(JAX_LOCAL_DEVICE_IDS=0,1,... overrides this; not tested with GPUs).

When a process dies, the others end within a minute: with status 134 and a message from JAX that
starts with "Terminating process" when its heartbeats are missing, or with status 75 if a message to
it fails before. The same command, with any number of processes, continues from the newest
checkpoint.
"""

import hashlib
import ipaddress
import os
import pathlib
import re
import secrets
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import flags, logging
from jax.experimental import multihost_utils

_HEARTBEAT_SECONDS = 20
_AUTO = "auto"
_LITERAL = re.compile(r"localhost|[\d.]+|\[.*\]")  # Of hosts.
# Launchers' variables for the number of processes: of the run, and on each machine.
LAUNCHERS = {
    "SLURM_STEP_NUM_TASKS": "SLURM_STEP_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def join() -> None:
    """Connect this process with the others of the run. Must be called before JAX computes.

    If they do not find each other in time, the process ends with status 75.

    Raises:
      ValueError: if flags are missing or contradict each other.
      OSError: if neither flags nor a launcher give the number of processes.
    """
    address, timeout = flags.FLAGS.coordinator, flags.FLAGS.coordinator_timeout
    number, own = flags.FLAGS.num_processes, flags.FLAGS.process_id
    if not address and any(int(os.environ.get(name, 1)) > 1 for name in LAUNCHERS):
        address = _AUTO
    if address in ("", _AUTO):
        if number is not None or own is not None:
            raise ValueError(
                f"--num_processes and --process_id need --coordinator=HOST:PORT; it is {address!r}."
            )
        if address:
            # By default, JAX gives each process one GPU, by the process's number on its machine.
            all_devices = {"local_device_ids": ()} if _is_alone_on_its_machine() else {}
            _initialize(f"--coordinator={_AUTO}", timeout, **all_devices)
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"--coordinator is {address!r}; expected HOST:PORT or {_AUTO!r}.")
    if number is None or own is None or own >= number:
        raise ValueError(
            f"--num_processes is {number} and --process_id {own}; with --coordinator={address}"
            " expected both, the second less than the first."
        )
    _initialize(
        f"--coordinator={address}",
        timeout,
        coordinator_address=address,
        num_processes=number,
        process_id=own,
        coordinator_bind_address=_listening_address(address, host) if own == 0 else None,
        # Addresses and numbers are known: no launcher is asked for them.
        cluster_detection_method="deactivate",
    )


def _listening_address(address: str, host: str) -> str | None:
    """Return the address HOST:PORT where process 0 listens; None for JAX's default.

    It is the given one if that is of this machine. Otherwise the others reach the machine by an
    address that it does not have, behind NAT or by a service's name: it listens at all of its
    addresses, which a warning says. So it does if its name resolves to the loopback, as in Debian's
    /etc/hosts: on other machines the name resolves to another address.
    """
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:  # Read by JAX.
        return None
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        for family, kind, _, _, place in found:
            with socket.socket(family, kind) as trying:
                trying.bind(place)
        is_loopback = any(ipaddress.ip_address(place[0]).is_loopback for *_, place in found)
        if _LITERAL.fullmatch(host) or not is_loopback:
            return address
        reason = "is its loopback here"
    except OSError as error:
        reason = f"is not of this machine ({error})"
    logging.warning(
        "%s of --coordinator %s: process 0 listens at all addresses of this machine, and anyone who"
        " reaches one can connect. JAX_COORDINATOR_BIND_ADDRESS=ADDRESS:PORT names one.",
        host,
        reason,
    )
    return None


def _is_alone_on_its_machine() -> bool:
    """Return whether the launcher started one process per machine, without choosing its devices."""
    numbers = [os.environ[name] for name in LAUNCHERS.values() if name in os.environ]
    return "JAX_LOCAL_DEVICE_IDS" not in os.environ and any(
        re.fullmatch(r"1(\(x\d+\))?(,1(\(x\d+\))?)*", number) for number in numbers
    )


def _initialize(flag: str, timeout: int, **arguments: Any) -> None:
    def give_up() -> None:
        print(
            f"The processes of {flag} did not find each other within {timeout} s"
            " (--coordinator_timeout). Does process 0 listen there, and are all started, with"
            " the same --num_processes and each with its own --process_id?",
            file=sys.stderr,
            flush=True,
        )
        os._exit(os.EX_TEMPFAIL)

    # Shorter than JAX's own timeout, which ends the process without naming the cause.
    waiting = threading.Timer(timeout, give_up)
    waiting.daemon = True
    waiting.start()
    try:
        jax.distributed.initialize(
            initialization_timeout=2 * timeout + 60,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            **arguments,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise OSError(
            f"{flag}: the processes cannot be joined ({reason}). If no launcher gives their number,"
            " set --coordinator=HOST:PORT, --num_processes and --process_id."
        ) from error
    finally:
        waiting.cancel()


def are_several() -> bool:
    """Return whether the run has several processes."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Return whether this is process 0, which writes files and messages."""
    return jax.process_index() == 0


def require_equal(values: Mapping[str, str]) -> None:
    """Refuse a run whose processes have different values, by the names of these for the message.

    Raises:
      ValueError: naming the processes that differ from process 0.
    """
    for what, value in values.items() if are_several() else ():
        digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8)
        digests = multihost_utils.process_allgather(digest)
        if different := np.flatnonzero((digests != digests[0]).any(axis=1)).tolist():
            raise ValueError(
                f"Processes {different} have another {what} than process 0; expected the same"
                " command for all."
            )


def require_shared(folder: pathlib.Path) -> None:
    """Refuse a folder that is not on a file system that all processes share.

    Raises:
      ValueError: naming the processes that see another folder than process 0.
    """
    if not are_several():
        return
    token = multihost_utils.broadcast_one_to_all(np.uint32(secrets.randbits(32)))
    mark = folder / f".shared-{int(token):08x}"  # A new name: its absence cannot be cached.
    if is_first():
        mark.touch()
    multihost_utils.sync_global_devices("the workdir has a mark")
    without = np.flatnonzero(~multihost_utils.process_allgather(np.array(mark.exists()))).tolist()
    if is_first():
        mark.unlink()
    if without:
        raise ValueError(
            f"Processes {without} do not see what process 0 writes in {folder}; expected a workdir"
            " on a file system that all machines share."
        )
