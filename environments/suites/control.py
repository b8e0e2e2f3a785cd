"""The DeepMind Control Suite by the protocol of DreamerV3.

Tassa et al. 2018 (arXiv 1801.00690); Hafner et al. 2023 (arXiv 2301.04104v1).

Two suites: `control_proprio`, the 18 environments `control_proprio/<task>` of Table O.1 (500,000
steps of the simulator), and `control_vision`, the 20 environments `control_vision/<task>` of Table
Q.1 (a million). A task is `<domain>_<task>` as in `cartpole_swingup`; the domain `cup` is
dm_control's `ball_in_cup`.

Actions are float32 vectors between -1 and 1. These are the bounds of all tasks but the
quadruped's, to whose bounds actions are scaled. Each action is applied for two of the simulator's
steps, whose rewards are added (Table A.1). An episode is truncated after 1,000 of the simulator's
steps, 500 actions; no task here terminates. The simulator's rewards are between 0 and 1, so that a
return is at most 1,000.

Proprioceptive observations are a dictionary of float32 vectors by the names of the task, for
example `position` and `velocity`; single numbers are vectors of size 1. Visual ones are uint8
`[64, 64, 3]` images from the task's first camera, for the quadruped its third (from the paper's
code; the paper does not say).

Images are rendered by OpenGL in the simulators' processes. Where `MUJOCO_GL` is not set and there
is no display, that is EGL, with or without a GPU.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from environments.base import Environment, Simulator, Simulators
from environments.errors import MissingPackageError, import_package
from environments.processes import ProcessSimulators

ACTION_REPEAT = 2
IMAGE_SIZE = 64

TASKS_VISION = tuple(
    """acrobot_swingup cartpole_balance cartpole_balance_sparse cartpole_swingup
    cartpole_swingup_sparse cheetah_run cup_catch finger_spin finger_turn_easy finger_turn_hard
    hopper_hop hopper_stand pendulum_swingup quadruped_run quadruped_walk reacher_easy
    reacher_hard walker_run walker_stand walker_walk""".split()
)
TASKS_PROPRIO = tuple(task for task in TASKS_VISION if not task.startswith("quadruped"))
SUITES = {
    "control_proprio": tuple(f"control_proprio/{task}" for task in TASKS_PROPRIO),
    "control_vision": tuple(f"control_vision/{task}" for task in TASKS_VISION),
}


_DOMAINS = {"cup": "ball_in_cup"}
_CAMERAS = {"quadruped": 2}  # Others have 0, from which the quadruped is far away.


@dataclasses.dataclass(frozen=True)
class Control:
    """Control tasks with common actions and observations; the task is its name.

    Attributes:
      num_actuators: the size of actions.
      sizes: of the proprioceptive observations, by name; empty where observations are images.
    """

    num_actuators: int
    sizes: tuple[tuple[str, int], ...] = ()

    def observation_spec(self) -> specs.BoundedArray | dict[str, specs.Array]:
        if not self.sizes:
            return specs.BoundedArray((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8, 0, 255, name="image")
        return {name: specs.Array((size,), np.float32, name=name) for name, size in self.sizes}

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((self.num_actuators,), np.float32, -1.0, 1.0, name="control")

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        make_task = functools.partial(ControlTask, task, not self.sizes)
        return ProcessSimulators(make_task, self, batch_size, seed, num_processes=workers)


class ControlTask(Simulator):
    """One simulator of a task."""

    def __init__(self, task: str, is_visual: bool, seed: int):
        has_display = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
        renderer = ("" if has_display else "egl") if is_visual else "disable"
        self._simulator = _load(task, seed, renderer)
        bounds = self._simulator.action_spec()
        self._center = (bounds.maximum + bounds.minimum) / 2
        self._half_range = (bounds.maximum - bounds.minimum) / 2
        self._is_visual = is_visual
        self._camera = _CAMERAS.get(task.partition("_")[0], 0)

    def reset(self) -> dm_env.TimeStep:
        return self._with_observation(self._simulator.reset())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        control = self._center + self._half_range * action
        timestep = self._simulator.step(control)
        reward = timestep.reward
        for _ in range(ACTION_REPEAT - 1):
            if timestep.last():
                break
            timestep = self._simulator.step(control)
            reward += timestep.reward
        return self._with_observation(timestep._replace(reward=reward))

    def close(self) -> None:
        self._simulator.close()

    def _with_observation(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if self._is_visual:
            image = self._simulator.physics.render(IMAGE_SIZE, IMAGE_SIZE, camera_id=self._camera)
            return timestep._replace(observation=image)
        vectors = {
            name: np.asarray(value, np.float32).reshape(-1)
            for name, value in timestep.observation.items()
        }
        return timestep._replace(observation=vectors)


def make(name: str) -> Environment:
    """Make an environment of one of the suites, for example `control_vision/quadruped_run`.

    Raises:
      MissingPackageError: if dm_control is not installed.
    """
    family, _, task = name.partition("/")
    dynamics = _dynamics_of(task, family == "control_vision")
    return Environment(name=name, dynamics=dynamics, params=task)


@functools.cache
def _dynamics_of(task: str, is_visual: bool) -> Control:
    simulator = _load(task, seed=0, renderer="disable")
    observed = {} if is_visual else simulator.observation_spec()
    sizes = tuple((name, int(np.prod(spec.shape))) for name, spec in observed.items())
    return Control(num_actuators=simulator.action_spec().shape[0], sizes=sizes)


def _load(task: str, seed: int, renderer: str) -> Any:
    """Load dm_control's simulator of a task; `renderer` is for `MUJOCO_GL`, "" for its default."""
    with _default_renderer(renderer):
        try:
            suite = import_package("dm_control.suite", "control", "control_…/…")
        except (AttributeError, RuntimeError) as error:  # PyOpenGL, without a library.
            raise MissingPackageError(
                "Environments named 'control_vision/…' render by"
                f" {os.environ.get('MUJOCO_GL', 'a display')!r}, which cannot be loaded ({error})."
                " On a machine without a display they need EGL: apt-get install libegl1"
                " libgl1-mesa-dri; or MUJOCO_GL=osmesa: apt-get install libosmesa6"
            ) from error
    domain, _, task = task.partition("_")
    return suite.load(_DOMAINS.get(domain, domain), task, task_kwargs={"random": seed})


@contextlib.contextmanager
def _default_renderer(name: str) -> Iterator[None]:
    """Set `MUJOCO_GL` while dm_control is imported, unless the user has set it.

    Afterwards the variable is unset again, as worker processes inherit it.
    """
    is_free = bool(name) and "MUJOCO_GL" not in os.environ
    if is_free:
        os.environ["MUJOCO_GL"] = name
    try:
        yield
    finally:
        if is_free:
            del os.environ["MUJOCO_GL"]
