"""Runs a command, disturbed from within.

    python -m tests.chaos.driver DISTURBANCE COMMAND [ARGUMENTS]
    python -m tests.chaos.driver clock launch.discover --workdir=...

All disturbances know the environments of `tests.chaos.environments`.
"""

import runpy
import sys
import time
from functools import partial

import jax
import numpy as np

from meta.discovery import Discovery
from meta.state import DiscoveryState
from tests.chaos import environments

SICK_AT = 3  # Meta-step.
SICK_AGENT = 1


def jump() -> None:
    """Lets the wall clock jump an hour ahead, two back, one ahead, and so on.

    Python's clock, that is, which is also Orbax's.
    """
    clock, clock_ns, started = time.time, time.time_ns, time.monotonic()

    def seconds() -> int:
        return (0, 3600, -3600)[int((time.monotonic() - started) / 3.0) % 3]

    time.time = lambda: clock() + seconds()
    time.time_ns = lambda: clock_ns() + seconds() * 10**9


def sicken(what: str) -> None:
    """NaN in one agent's parameters, or from now on in its rewards or observations."""
    healthy = Discovery.step

    def step(discovery: Discovery, state: DiscoveryState):
        if int(state.meta_step) == SICK_AT:
            ill = jax.tree.map_with_path(partial(_ill, what), jax.device_get(state))
            state = jax.device_put(ill, discovery.sharding)
        return healthy(discovery, state)

    setattr(Discovery, "step", step)  # noqa: B010  As a method of another signature.


def _ill(what: str, path, leaf: np.ndarray) -> np.ndarray:
    """A leaf of the state, with one agent's part of it ill if it is what falls ill."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    leaf = np.array(leaf)
    if what == "parameters" and name == "groups/0/agent/learner/params":
        leaf[SICK_AGENT] = np.nan
    elif what != "parameters" and name.endswith("/sickness"):
        leaf[SICK_AGENT] = environments.NAN_REWARD + (what == "observation")
    return leaf


DISTURBANCES = {
    "nothing": lambda: None,
    "clock": jump,
    "parameters": partial(sicken, "parameters"),
    "reward": partial(sicken, "reward"),
    "observation": partial(sicken, "observation"),
}


if __name__ == "__main__":
    disturbance, command, *arguments = sys.argv[1:]
    DISTURBANCES[disturbance]()
    sys.argv = [command, *arguments]
    runpy.run_module(command, run_name="__main__", alter_sys=True)
