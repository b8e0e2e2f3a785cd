"""Run a command with a disturbance inside its process.

    python -m tests.chaos.driver DISTURBANCE COMMAND [ARGUMENTS]
    python -m tests.chaos.driver clock launch.discover --workdir=...

The environments of `tests.chaos.environments` are registered.
"""

import runpy
import sys
import time
from functools import partial

import jax
import numpy as np

from meta.estimators.meta_gradient import MetaGradient
from meta.population import DiscoveryState
from tests.chaos import environments

NAN_AT = 3  # Meta-step.
NAN_AGENT = 1


def jump() -> None:
    """Make Python's wall clock, which Orbax reads, jump an hour ahead, two back, one ahead, ..."""
    clock, clock_ns, started = time.time, time.time_ns, time.monotonic()

    def seconds() -> int:
        return (0, 3600, -3600)[int((time.monotonic() - started) / 3.0) % 3]

    time.time = lambda: clock() + seconds()
    time.time_ns = lambda: clock_ns() + seconds() * 10**9


def insert_nan(what: str) -> None:
    """Set one agent's parameters to NaN, or from then on its rewards or observations."""
    original = MetaGradient.step

    def step(discovery: MetaGradient, state: DiscoveryState, report):
        if int(state.meta_step) == NAN_AT:
            changed = jax.tree.map_with_path(partial(_with_nan, what), jax.device_get(state))
            state = jax.device_put(changed, discovery.sharding)
        return original(discovery, state, report)

    setattr(MetaGradient, "step", step)  # noqa: B010  As a method of another signature.


def _with_nan(what: str, path, leaf: np.ndarray) -> np.ndarray:
    """Return a leaf of the state, changed for one agent if it is the leaf to disturb."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    leaf = np.array(leaf)
    if what == "parameters" and name == "groups/0/agent/learner/params":
        leaf[NAN_AGENT] = np.nan
    elif what != "parameters" and name.endswith("/fault"):
        leaf[NAN_AGENT] = environments.NAN_REWARD + (what == "observation")
    return leaf


DISTURBANCES = {
    "nothing": lambda: None,
    "clock": jump,
    "parameters": partial(insert_nan, "parameters"),
    "reward": partial(insert_nan, "reward"),
    "observation": partial(insert_nan, "observation"),
}


if __name__ == "__main__":
    disturbance, command, *arguments = sys.argv[1:]
    DISTURBANCES[disturbance]()
    sys.argv = [command, *arguments]
    runpy.run_module(command, run_name="__main__", alter_sys=True)
