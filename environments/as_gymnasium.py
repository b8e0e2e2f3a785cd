"""This project's environments with Gymnasium's interface, for training code of other projects.

    environment = as_gymnasium.Single("grid57/00_dense_fixed")
    environments = as_gymnasium.Vector("crafter/reward", 8)

Both take JAX and host environments. `terminated` is the end by the task's rules, `truncated` that
by a time limit. What an environment reports of an episode besides its return, such as Crafter's
achievements, is in the `info` of its last step.
"""

from collections.abc import Mapping
from typing import Any

import dm_env
import jax
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
        self._one = Vector(environment, 1, workers=1)
        self.environment = self._one.environment
        self.observation_space = self._one.single_observation_space
        self.action_space = self._one.single_action_space
        self._has_ended = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start an episode; with a seed, all randomness begins anew.

        Returns:
          The observation, and an empty dictionary.
        """
        super().reset(seed=seed, options=options)
        observation, info = self._one.reset(seed=seed)
        self._has_ended = False
        return _member(self.observation_space, observation), info

    def step(self, action: Any):
        """Take one step.

        Returns:
          The observation, the reward, whether the episode has terminated, whether it was truncated,
          and at its end what the environment reports of it.

        Raises:
          ValueError: if the episode has ended, or none has begun, or there is no such action.
        """
        if self._has_ended:
            raise ValueError(f"{self.environment.name} was stepped; expected a reset before.")
        observation, *numbers, info = self._one.step(_checked(self.environment, action, ())[None])
        reward, terminated, truncated = (x.item() for x in numbers)
        self._has_ended = terminated or truncated
        reported = {name: x.item() for name, x in info.items() if not name.startswith("_")}
        observation = _member(self.observation_space, observation)
        return observation, reward, terminated, truncated, reported

    def close(self) -> None:
        """Stop the simulator."""
        self._one.close()
        self._has_ended = True


class Vector(gym.vector.VectorEnv):
    """A batch of one environment, as a `gymnasium.vector.VectorEnv`.

    The step after an episode's end ignores the action and starts a new episode
    (`AutoresetMode.NEXT_STEP`).
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP,
    }

    def __init__(self, environment: Environment | str, num_envs: int, workers: int | None = None):
        """Take an environment or its name; the first reset starts the simulators.

        Args:
          environment: of which the batch is made.
          num_envs: size of the batch.
          workers: see `HostEnvironment.start`.

        Raises:
          EnvironmentNameError, MissingPackageError: as `environments.make`.
          ValueError: if the batch is empty.
        """
        self._simulators: Simulators | None = None  # First: `close` is called in any case.
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; expected at least 1.")
        self.environment = make(environment) if isinstance(environment, str) else environment
        self.num_envs, self._workers = num_envs, workers
        self.single_observation_space = _space(self.environment.dynamics.observation_spec())
        self.single_action_space = _space(self.environment.dynamics.action_spec())
        batch = gym.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Start all episodes; with a seed, all randomness begins anew."""
        super().reset(seed=seed, options=options)
        self.closed = False  # `close` may have been called before.
        if self._simulators is None or seed is not None:
            self.close_extras()
            first = int(self.np_random.integers(_SEEDS))
            self._simulators = start(self.environment, self.num_envs, first, self._workers)
        return jax.tree.map(np.array, self._simulators.reset().observation), {}

    def step(self, actions: Any):
        """Take one step in each environment, or start a new episode where one has ended.

        Returns:
          Observations, rewards, which episodes have terminated, which were truncated, and what the
          environment reports of these, with a mask `_<name>` beside each array.

        Raises:
          ValueError: if there was no reset, or there are no such actions.
        """
        if self._simulators is None:
            raise ValueError(f"{self.environment.name} was stepped; expected a reset before.")
        timestep = self._simulators.step(_checked(self.environment, actions, (self.num_envs,)))
        ended, info = np.asarray(timestep.step_type) == dm_env.StepType.LAST, {}
        terminated = ended & (np.asarray(timestep.discount) == 0)
        if ended.any():
            for name, values in self._simulators.results.items():
                info |= {name: np.where(ended, values, 0.0), f"_{name}": ended}
        reward = np.array(timestep.reward, np.float64)
        # Copies, which the next step does not overwrite.
        observation = jax.tree.map(np.array, timestep.observation)
        return observation, reward, terminated, ended & ~terminated, info

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the simulators."""
        if self._simulators is not None:
            self._simulators.close()
            self._simulators = None


def _space(spec: ObservationSpec) -> Any:
    """Return the space of a spec."""
    if isinstance(spec, Mapping):
        return gym.spaces.Dict({name: _space(leaf) for name, leaf in spec.items()})
    if isinstance(spec, specs.DiscreteArray):
        return gym.spaces.Discrete(int(spec.num_values))
    low, high = (np.full(spec.shape, x, spec.dtype) for x in bounds(spec))
    return gym.spaces.Box(low, high, dtype=spec.dtype.type)


def _checked(environment: Environment, action: Any, leading: tuple[int, ...]) -> np.ndarray:
    """Return actions of the spec's dtype, of leading axes and the spec's shape.

    Raises:
      ValueError: if they have another shape, are not in range, or are not finite.
    """
    spec, found = environment.dynamics.action_spec(), np.asarray(action)
    shape = (*leading, *spec.shape)
    if isinstance(spec, specs.DiscreteArray):
        expected = f"integers from 0 to {spec.num_values - 1}"
        is_kind = np.issubdtype(found.dtype, np.integer)
        is_valid = is_kind and bool(np.all((found >= 0) & (found < spec.num_values)))
    else:
        expected = "finite numbers"
        is_valid = found.dtype.kind in "iuf" and bool(np.all(np.isfinite(found)))
    if found.shape != shape or not is_valid:
        raise ValueError(
            f"{environment.name} was stepped with {action!r}; expected {expected} of shape {shape}."
        )
    return found.astype(spec.dtype)


def _member(space: Any, observation: Any) -> Any:
    """Return the only observation of a batch, as a member of the space."""
    if isinstance(observation, Mapping):
        return {name: _member(space[name], leaf) for name, leaf in observation.items()}
    is_choice = isinstance(space, gym.spaces.Discrete)
    return np.int64(observation[0]) if is_choice else np.array(observation[0])
