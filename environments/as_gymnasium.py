"""This project's environments with Gymnasium's interface, for training code of other projects.

    environment = as_gymnasium.Single("grid57/00_dense_fixed")
    make = functools.partial(as_gymnasium.Single, "crafter/reward")
    environments = gymnasium.vector.SyncVectorEnv([make] * 8)

It takes JAX and host environments. `terminated` is the end by the task's rules, `truncated` that
by a time limit. What an environment reports of an episode besides its return, such as Crafter's
achievements, is in the `info` of its last step.
"""

from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from environments.base import Environment, ObservationSpec, Simulators
from environments.errors import import_package
from environments.output_checks import bounds
from environments.registry import make
from environments.simulators import start

gym: Any = import_package("gymnasium", "gymnasium", "gymnasium/…")

_SEEDS = 2**31


class Single(gym.Env):
    """One environment, as a `gymnasium.Env`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, environment: Environment | str):
        """Take an environment or its name; the first reset starts the simulator.

        Raises:
          EnvironmentNameError, MissingPackageError: as `environments.make`.
        """
        self.environment = make(environment) if isinstance(environment, str) else environment
        self.observation_space = _space(self.environment.dynamics.observation_spec())
        self.action_space = _space(self.environment.dynamics.action_spec())
        self._simulators: Simulators | None = None
        self._has_ended = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode; with a seed, all randomness begins anew.

        Returns:
          The observation, and an empty dictionary.
        """
        super().reset(seed=seed, options=options)
        if self._simulators is None or seed is not None:
            self.close()
            first = int(self.np_random.integers(_SEEDS))
            self._simulators = start(self.environment, 1, first, workers=1)
        observation = self._simulators.reset().observation
        self._has_ended = False
        return _member(self.observation_space, observation), {}

    def step(self, action: Any):
        """Take one step.

        Returns:
          The observation, the reward, whether the episode has terminated, whether it was truncated,
          and at its end what the environment reports of it.

        Raises:
          ValueError: if the episode has ended, or none has begun, or there is no such action.
        """
        if self._simulators is None or self._has_ended:
            raise ValueError(f"{self.environment.name} was stepped; expected a reset before.")
        timestep = self._simulators.step(_checked(self.environment, action)[None])
        ended = self._has_ended = bool(timestep.step_type[0] == dm_env.StepType.LAST)
        terminated = ended and bool(timestep.discount[0] == 0)
        results = self._simulators.results if ended else {}
        reported = {name: float(values[0]) for name, values in results.items()}
        observation = _member(self.observation_space, timestep.observation)
        return (
            observation,
            float(timestep.reward[0]),
            terminated,
            ended and not terminated,
            reported,
        )

    def close(self) -> None:
        """Stop the simulator."""
        if self._simulators is not None:
            self._simulators.close()
        self._simulators, self._has_ended = None, True


def _space(spec: ObservationSpec) -> Any:
    """Return the space of a spec."""
    if isinstance(spec, Mapping):
        return gym.spaces.Dict({name: _space(leaf) for name, leaf in spec.items()})
    if isinstance(spec, specs.DiscreteArray):
        return gym.spaces.Discrete(int(spec.num_values))
    low, high = (np.full(spec.shape, x, spec.dtype) for x in bounds(spec))
    return gym.spaces.Box(low, high, dtype=spec.dtype.type)


def _checked(environment: Environment, action: Any) -> np.ndarray:
    """Return an action of the spec's dtype and shape.

    Raises:
      ValueError: if it has another shape, is not in range, or is not finite.
    """
    spec, found = environment.dynamics.action_spec(), np.asarray(action)
    if isinstance(spec, specs.DiscreteArray):
        expected = f"integers from 0 to {spec.num_values - 1}"
        is_kind = np.issubdtype(found.dtype, np.integer)
        is_valid = is_kind and bool(np.all((found >= 0) & (found < spec.num_values)))
    else:
        expected = "finite numbers"
        is_valid = found.dtype.kind in "iuf" and bool(np.all(np.isfinite(found)))
    if found.shape != spec.shape or not is_valid:
        raise ValueError(
            f"{environment.name} was stepped with {action!r}; expected {expected} of shape"
            f" {spec.shape}."
        )
    return found.astype(spec.dtype)


def _member(space: Any, observation: Any) -> Any:
    """Return the only observation of a batch, as a member of the space."""
    if isinstance(observation, Mapping):
        return {name: _member(space[name], leaf) for name, leaf in observation.items()}
    is_choice = isinstance(space, gym.spaces.Discrete)
    return np.int64(observation[0]) if is_choice else np.array(observation[0])
