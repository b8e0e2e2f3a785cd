"""Several processes, on one machine or many, that make one run together.

    python -m launch.discover --coordinator=HOST:PORT --num_processes=2 --process_id=0 ...
    python -m launch.discover --coordinator=HOST:PORT --num_processes=2 --process_id=1 ...

All start the same command with the same workdir, on a file system that they share; process 0
listens at the coordinator's address, and at no other where that is an address of its machine
(`_listening_address`; nobody has to prove who he is there). Under Slurm (`srun` with several tasks)
and Open MPI they find each other without these flags, on TPU pods with `--coordinator=auto`
(`jax.distributed`); process 0 listens at all addresses then. A process that is alone on its machine
there has all of its GPUs; of several, each has one (JAX_LOCAL_DEVICE_IDS=0,1,... says otherwise;
not run with GPUs).

When a process dies, the others end within a minute: with status 134 and a message of JAX's that
starts "Terminating process", as they miss its heartbeats, or with 75 where a message to it fails
before. The command started again, with as many processes or others, goes on from the newest
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
import time
from typing import Any

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

_HEARTBEAT_SECONDS = 20
_AUTO = "auto"
# By which a launcher tells its processes how many they are, and how many on each machine.
LAUNCHERS = {
    "SLURM_STEP_NUM_TASKS": "SLURM_STEP_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


class ProcessesMissingError(OSError):
    """Others of the run did not come in time; they may when it is started again."""


def define_flags() -> None:
    """The flags of commands that several processes may run together."""
    flags.DEFINE_string(
        "coordinator",
        "",
        "HOST:PORT where process 0 listens and the others find it; 'auto' to ask Slurm, Open MPI or"
        " the TPU pod. By default auto under srun and mpirun, and else one process.",
    )
    flags.DEFINE_integer("num_processes", None, "With --coordinator=HOST:PORT.", lower_bound=1)
    flags.DEFINE_integer("process_id", None, "Likewise, from 0.", lower_bound=0)
    flags.DEFINE_integer(
        "coordinator_timeout", 300, "Seconds to wait until all processes are there.", lower_bound=1
    )


def join() -> None:
    """Makes this process one of the run's, by the flags; to be called before JAX computes.

    Raises:
      ValueError: if flags are missing or contradict each other.
      ProcessesMissingError: if the coordinator does not answer in time.
      OSError: if no launcher tells who the processes are.
    """
    address, timeout = flags.FLAGS.coordinator, flags.FLAGS.coordinator_timeout
    number, own = flags.FLAGS.num_processes, flags.FLAGS.process_id
    if not address and any(int(os.environ.get(name, 1)) > 1 for name in LAUNCHERS):
        address = _AUTO
    if address in ("", _AUTO):
        if not (number is None and own is None):
            raise ValueError(
                f"--num_processes and --process_id need --coordinator=HOST:PORT; it is {address!r}."
            )
        if address:
            # JAX would give each process the one GPU that its number on this machine names.
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
    if own > 0:
        _await_coordinator(host.strip("[]"), int(port), timeout)
    _initialize(
        f"--coordinator={address}",
        timeout,
        coordinator_address=address,
        num_processes=number,
        process_id=own,
        coordinator_bind_address=_listening_address(address, host.strip("[]")),
        # Addresses and numbers are known, so nothing needs to be asked for.
        cluster_detection_method="deactivate",
    )


def _listening_address(address: str, host: str) -> str | None:
    """Where process 0 listens; None for JAX's default, all addresses of the machine.

    It listens at the address that is named if that is one of this machine's. The default stays
    where the others reach the machine by an address that it does not know: behind NAT, or by a
    service's name. It also stays where the machine's name stands for the loopback, as in Debian's
    /etc/hosts: on other machines the name stands for another address.

    Args:
      address: HOST:PORT, as the flag says.
      host: without brackets.
    """
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:  # Read by JAX.
        return None
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    if host == "localhost":
        return address
    addresses = {str(sockaddr[0]) for *_, sockaddr in found}
    is_name = host not in addresses
    if is_name and any(ipaddress.ip_address(x).is_loopback for x in addresses):
        return None
    return address if all(_is_of_this_machine(x) for x in addresses) else None


def _is_of_this_machine(address: str) -> bool:
    """Whether a process of this machine can listen at an IP address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trying:
            trying.bind((address, 0))
    except OSError:
        return False
    return True


def _is_alone_on_its_machine() -> bool:
    """Whether the launcher started one process on each machine, and nobody chose its devices."""
    numbers = [os.environ[name] for name in LAUNCHERS.values() if name in os.environ]
    return "JAX_LOCAL_DEVICE_IDS" not in os.environ and any(
        re.fullmatch(r"1(\(x\d+\))?(,1(\(x\d+\))?)*", number) for number in numbers
    )


def _await_coordinator(host: str, port: int, timeout: float) -> None:
    """Waits until somebody listens there: JAX itself would end without a word of where."""
    end, refusal = time.monotonic() + timeout, None
    while time.monotonic() < end:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            refusal = error
            time.sleep(0.5)
        else:
            return
    raise ProcessesMissingError(
        f"The coordinator at {host}:{port} does not answer: {refusal}. Waited for {timeout} s"
        " (--coordinator_timeout); process 0 listens there once it is started."
    )


def _initialize(flag: str, timeout: int, **arguments: Any) -> None:
    def give_up() -> None:
        print(
            f"The processes of {flag} did not find each other within {timeout} s"
            " (--coordinator_timeout). Are all of them started, with the same --num_processes and"
            " each with its own --process_id?",
            file=sys.stderr,
            flush=True,
        )
        os._exit(os.EX_TEMPFAIL)

    # Before JAX gives up: it would end the process without a word of what it waited for.
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
            f"{flag}: the processes cannot be joined ({reason}). Where no launcher tells how many"
            " they are, name them by --coordinator=HOST:PORT, --num_processes and --process_id."
        ) from error
    finally:
        waiting.cancel()


def are_several() -> bool:
    """Whether this process joined others."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this is the process that writes and speaks for all."""
    return jax.process_index() == 0


def require_equal(what: str, value: str) -> None:
    """Refuses processes that are not of the same mind.

    Args:
      what: for the message.
      value: that all must have.

    Raises:
      ValueError: naming the processes that differ from process 0.
    """
    if not are_several():
        return
    digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8)
    digests = multihost_utils.process_allgather(digest)
    different = np.flatnonzero((digests != digests[0]).any(axis=1)).tolist()
    if different:
        raise ValueError(
            f"Processes {different} have another {what} than process 0; expected the same"
            " command for all."
        )


def require_shared(folder: pathlib.Path) -> None:
    """Refuses processes whose folder of that name is another one than process 0's.

    Raises:
      ValueError: naming those processes.
    """
    if not are_several():
        return
    token = multihost_utils.broadcast_one_to_all(np.uint32(secrets.randbits(32)))
    mark = folder / f".shared-{int(token):08x}"  # A new name: no file system remembers its absence.
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


def stop_agreed(step: int) -> bool:
    """Whether some process was sent SIGTERM, and all have come to the step to stop after."""
    return multihost_utils.reached_preemption_sync_point(step)
