"""Environments by name, and the two protocols they follow (see `environments.base`)."""

from environments.base import (
    Environment,
    HostEnvironment,
    JaxEnvironment,
    restart,
    stream,
    transition,
)
from environments.errors import EnvironmentNameError, MissingPackageError
from environments.registry import Group, group, make, suite

__all__ = [
    "Environment",
    "EnvironmentNameError",
    "Group",
    "HostEnvironment",
    "JaxEnvironment",
    "MissingPackageError",
    "group",
    "make",
    "restart",
    "stream",
    "suite",
    "transition",
]
