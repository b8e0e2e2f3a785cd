"""bsuite (Osband et al. 2020, "Behaviour suite for reinforcement learning", arXiv 1908.03568).

The environments `bsuite/<experiment>/<setting>`, for example `bsuite/catch/0`, are bsuite's own ids
after `bsuite/`. The suite `bsuite` is all of them (408) but those of three experiments on MNIST
(60), which download their data; `bsuite_first` has the first setting of each of the 20 experiments.

Observations are float32, of bsuite's own shapes; actions are discrete; there is no frame skip.
Episodes terminate by the rules of a task. The experiments on cartpole and mountain car also have
time limits: 10 seconds (1,001 steps) and 1,000 steps. There bsuite's discount is 0 as well; here,
as in all suites, the episode is truncated and the discount is 1. (These tasks observe the time, so
that bsuite's own agents can predict the end.) Scores are not affected.

What an experiment fixes, such as which action is which arm of a bandit, is drawn from the seed in
bsuite's sweep, so that a name always means the same task. What varies between episodes is drawn
from the simulator's seed, also in the two experiments on memory and in `umbrella_distract`, where
bsuite has the same episodes in every run.

A run is `num_episodes(name)` episodes of one simulator, instead of a number of frames. bsuite
accumulates counts, for example of regret, since the simulator was made; `results` has, by bsuite's
names, what each episode adds to them, so that a run may continue in a new simulator.
`evaluation.scoring.suite_scores` computes scores from them.
"""

import dataclasses
import functools
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from environments.base import Environment, Simulator, Simulators
from environments.errors import EnvironmentNameError, import_package, unknown_name
from environments.processes import SerialSimulators

NUM_SETTINGS = dict.fromkeys(
    """bandit bandit_noise bandit_scale cartpole cartpole_noise cartpole_scale cartpole_swingup
    catch catch_noise catch_scale deep_sea deep_sea_stochastic discounting_chain memory_len
    memory_size mountain_car mountain_car_noise mountain_car_scale umbrella_distract
    umbrella_length""".split(),
    20,
) | {
    "deep_sea": 21,
    "deep_sea_stochastic": 21,
    "memory_len": 23,
    "memory_size": 17,
    "umbrella_distract": 23,
    "umbrella_length": 23,
}
SUITES = {
    "bsuite": tuple(
        f"bsuite/{experiment}/{setting}"
        for experiment, number in NUM_SETTINGS.items()
        for setting in range(number)
    ),
    "bsuite_first": tuple(f"bsuite/{experiment}/0" for experiment in NUM_SETTINGS),
}
# The only one of bsuite's counts that is not a sum over episodes, but their best return.
BEST_EPISODE = "best_episode"


@dataclasses.dataclass(frozen=True)
class BSuite:
    """bsuite experiments with common specs; the task is bsuite's id of a setting.

    Attributes:
      shape: of observations.
      num_actions: of the experiment.
    """

    shape: tuple[int, ...]
    num_actions: int

    def observation_spec(self) -> specs.Array:
        return specs.Array(self.shape, np.float32, name="observation")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(self.num_actions, name="action")

    def start(
        self, task: str, batch_size: int, seed: int, workers: int | None = None
    ) -> Simulators:
        results = tuple(_load(task).bsuite_info())
        return SerialSimulators(
            functools.partial(Experiment, task), self, batch_size, seed, results
        )


class Experiment(Simulator):
    """One simulator of a setting."""

    def __init__(self, bsuite_id: str, seed: int):
        """Make bsuite's environment."""
        self._environment = _load(bsuite_id)
        self._core = getattr(self._environment, "raw_env", self._environment)
        self._kind = bsuite_id.partition("/")[0].removesuffix("_noise").removesuffix("_scale")
        _seed(self._environment, self._core, seed)
        self._before: dict[str, float] = {}

    def reset(self) -> dm_env.TimeStep:
        self._before = self._counts()
        return self._environment.reset()

    def step(self, action: int | np.integer) -> dm_env.TimeStep:
        timestep = self._environment.step(int(action))
        if timestep.last() and self._was_truncated():
            return timestep._replace(discount=1.0)
        return timestep

    def episode_results(self) -> dict[str, float]:
        """Return what the episode so far added to bsuite's counts; `BEST_EPISODE` as it is."""
        return {
            name: count - (0.0 if name == BEST_EPISODE else self._before[name])
            for name, count in self._counts().items()
        }

    def _counts(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._environment.bsuite_info().items()}

    def _was_truncated(self) -> bool:
        """Return whether only the time limit ended the episode."""
        core = self._core
        if self._kind == "cartpole":
            stands = np.cos(core._state.theta) > core._height_threshold
            return bool(stands and abs(core._state.x) < core._x_threshold)
        if self._kind == "cartpole_swingup":
            return bool(abs(core._state.x) <= core._x_threshold)
        return self._kind == "mountain_car" and bool(core._position < core._goal_pos)


def make(name: str) -> Environment:
    """Make `bsuite/<experiment>/<setting>`, for example `bsuite/catch/0`.

    Raises:
      EnvironmentNameError: if there is no such setting, or it needs MNIST.
      MissingPackageError: if bsuite is not installed.
    """
    bsuite_id = _known_id(name)
    environment = _load(bsuite_id)
    dynamics = BSuite(
        shape=environment.observation_spec().shape,
        num_actions=int(environment.action_spec().num_values),
    )
    return Environment(name=name, dynamics=dynamics, params=bsuite_id)


def num_episodes(name: str) -> int:
    """Return the number of episodes of a run, by the environment's name. Raises as `make`."""
    bsuite_id = _known_id(name)
    return import_package("bsuite.sweep", "bsuite", "bsuite/…").EPISODES[bsuite_id]


def _known_id(name: str) -> str:
    """Return bsuite's id of a setting, by the environment's name."""
    bsuite_id = name.removeprefix("bsuite/")
    if bsuite_id.startswith("mnist"):
        raise EnvironmentNameError(
            f"{name!r} is left out, as bsuite's experiments on MNIST download their data."
            " environments.suites.bsuite.SUITES lists those that are there."
        )
    if name not in SUITES["bsuite"]:
        hint = "environments.suites.bsuite.NUM_SETTINGS says how many each experiment has."
        raise unknown_name(name, SUITES["bsuite"], hint)
    return bsuite_id


def _load(bsuite_id: str) -> Any:
    bsuite = import_package("bsuite.bsuite", "bsuite", "bsuite/…")
    settings = bsuite.sweep.SETTINGS[bsuite_id]
    return bsuite.load(bsuite_id.partition("/")[0], settings)


def _seed(environment: Any, core: Any, seed: int) -> None:
    """Replace the random generators of an environment and its wrapper, if it has one.

    The two are independent: from one seed, bsuite would draw the noise of rewards and the episodes
    from the same numbers. What an experiment fixes has been drawn already.
    """
    sequences = np.random.SeedSequence(seed).spawn(2)
    for layer, sequence in zip((environment, core), sequences, strict=True):
        if "_rng" in vars(layer):
            layer._rng = np.random.RandomState(np.random.MT19937(sequence))
