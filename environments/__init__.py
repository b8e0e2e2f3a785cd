"""Environments by name, and the two interfaces that they implement (see `environments.base`)."""

from environments.base import (
    Environment,
    Filmed,
    FilmedSimulator,
    HostEnvironment,
    JaxEnvironment,
    ObservationSpec,
    Simulator,
    Simulators,
    episode_results,
    num_actions,
    restart,
    stream,
    transition,
    with_images,
)
from environments.errors import (
    EngineDiedError,
    EnvironmentNameError,
    MissingPackageError,
    OutputError,
    SimulatorError,
)
from environments.output_checks import require_declared_outputs
from environments.processes import available_processors
from environments.registry import TaskGroup, frames_per_action, group_by_dynamics, make, suite
from environments.simulators import JaxSimulators, seed_of, start

__all__ = [
    "EngineDiedError",
    "Environment",
    "EnvironmentNameError",
    "Filmed",
    "FilmedSimulator",
    "HostEnvironment",
    "JaxEnvironment",
    "JaxSimulators",
    "MissingPackageError",
    "ObservationSpec",
    "OutputError",
    "Simulator",
    "SimulatorError",
    "Simulators",
    "TaskGroup",
    "available_processors",
    "episode_results",
    "frames_per_action",
    "group_by_dynamics",
    "make",
    "num_actions",
    "require_declared_outputs",
    "restart",
    "seed_of",
    "start",
    "stream",
    "suite",
    "transition",
    "with_images",
]
