"""Environments by name, and the two protocols they follow (see `environments.base`)."""

from environments.base import (
    Environment,
    HostEnvironment,
    JaxEnvironment,
    ObservationSpec,
    Simulators,
    episode_results,
    num_actions,
    restart,
    stream,
    transition,
)
from environments.errors import (
    EngineDiedError,
    EnvironmentNameError,
    MissingPackageError,
    SimulatorError,
)
from environments.processes import available_processors
from environments.registry import Group, group, make, suite
from environments.simulators import JaxSimulators, seed_of, start

__all__ = [
    "EngineDiedError",
    "Environment",
    "EnvironmentNameError",
    "Group",
    "HostEnvironment",
    "JaxEnvironment",
    "JaxSimulators",
    "MissingPackageError",
    "ObservationSpec",
    "SimulatorError",
    "Simulators",
    "available_processors",
    "episode_results",
    "group",
    "make",
    "num_actions",
    "restart",
    "seed_of",
    "start",
    "stream",
    "suite",
    "transition",
]
