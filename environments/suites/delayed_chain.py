"""`delayed_chain`: the first action decides a reward that comes at the end of a chain.

The delayed-chain tasks of Oh et al. (2020), "Discovering reinforcement learning
algorithms" (arXiv 2007.08794, appendix): short and long chains, noisy rewards, and
distracting random bits in the observation. Lengths and noise levels are chosen here.
"""

import dataclasses
import functools
from typing import Any

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import Environment, restart, transition
from environments.errors import require, unknown_member
from environments.protocols import LPG, SuiteProtocol


@chex.dataclass(frozen=True)
class DelayedChainTask:
    """One chain.

    Attributes:
      length: steps of an episode, at most the dynamics' `max_length`.
      good_action: the first action that leads to +1; the other leads to -1.
      noise: standard deviation of the Gaussian noise added to every reward.
      distraction: probability that a distractor bit is on (0: no distraction).
    """

    length: Int[Array, "*tasks"]
    good_action: Int[Array, "*tasks"]
    noise: Float[Array, "*tasks"]
    distraction: Float[Array, "*tasks"]


@chex.dataclass(frozen=True)
class DelayedChainState:
    """The step count, and the branch that the first action chose (1 is the good one)."""

    time: Int[Array, "*batch"]
    branch: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class DelayedChain:
    """A chain with two branches, of which the first action chooses one.

    There are two actions; later ones have no effect. The last step gives +1 at the end of the
    good branch and -1 at the end of the other, and terminates; other rewards are 0, plus
    noise. The observation is float32 `[2 (max_length + 1) + num_bits]`: the position, one-hot
    (the start is on the first branch), and distractor bits.

    Raises:
      ValueError: if `max_length` is below 1 or `num_bits` is negative.
    """

    max_length: int
    num_bits: int

    def __post_init__(self):
        require(self.max_length >= 1, f"max_length must be at least 1, found {self.max_length}.")
        require(self.num_bits >= 0, f"num_bits must be at least 0, found {self.num_bits}.")

    def observation_spec(self) -> specs.Array:
        size = 2 * (self.max_length + 1) + self.num_bits
        return specs.BoundedArray((size,), np.float32, 0.0, 1.0, name="place_and_bits")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="branch")

    def reset(
        self, task: DelayedChainTask, key: PRNGKeyArray
    ) -> tuple[DelayedChainState, dm_env.TimeStep]:
        state = DelayedChainState(time=jnp.int32(0), branch=jnp.int32(0))
        return state, restart(self._observe(task, state, key))

    def step(
        self,
        task: DelayedChainTask,
        state: DelayedChainState,
        action: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[DelayedChainState, dm_env.TimeStep]:
        noise_key, bits_key = jax.random.split(key)
        chosen = (action == task.good_action).astype(jnp.int32)
        state = DelayedChainState(
            time=state.time + 1,
            branch=jnp.where(state.time == 0, chosen, state.branch),
        )
        ended = state.time >= task.length
        noise = task.noise * jax.random.normal(noise_key, (), jnp.float32)
        reward = jnp.where(ended, 2.0 * state.branch.astype(jnp.float32) - 1.0, 0.0) + noise
        return state, transition(
            self._observe(task, state, bits_key),
            reward,
            terminated=ended,
            truncated=jnp.bool_(False),
        )

    def _observe(
        self, task: DelayedChainTask, state: DelayedChainState, key: PRNGKeyArray
    ) -> Float[Array, "features"]:
        position = state.branch * (self.max_length + 1) + state.time
        one_hot = jax.nn.one_hot(position, 2 * (self.max_length + 1), dtype=jnp.float32)
        bits = jax.random.uniform(key, (self.num_bits,), jnp.float32) < task.distraction
        return jnp.concatenate([one_hot, bits.astype(jnp.float32)])


def make_task(
    dynamics: DelayedChain,
    length: int,
    *,
    good_action: int = 1,
    noise: float = 0.0,
    distraction: float = 0.0,
) -> DelayedChainTask:
    """Build a task's arrays (see `DelayedChainTask`).

    Raises:
      ValueError: if a value is out of its range.
    """
    require(
        1 <= length <= dynamics.max_length,
        f"Expected a length from 1 to {dynamics.max_length}, found {length}.",
    )
    require(good_action in (0, 1), f"Expected action 0 or 1, found {good_action}.")
    require(noise >= 0.0, f"Expected a standard deviation of at least 0, found {noise}.")
    require(0.0 <= distraction <= 1.0, f"Expected a probability, found {distraction}.")
    return DelayedChainTask(
        length=jnp.int32(length),
        good_action=jnp.int32(good_action),
        noise=jnp.float32(noise),
        distraction=jnp.float32(distraction),
    )


DYNAMICS = DelayedChain(max_length=30, num_bits=20)
TASKS: dict[str, dict[str, Any]] = {
    "short": {"length": 8, "good_action": 0},
    "long": {"length": 30, "good_action": 1},
    "noisy_short": {"length": 8, "good_action": 1, "noise": 0.3},
    "noisy_long": {"length": 30, "good_action": 0, "noise": 0.3},
    "distractor": {"length": 12, "good_action": 1, "distraction": 0.5},
}
SUITES = {"delayed_chain": tuple(f"delayed_chain/{name}" for name in TASKS)}
PROTOCOLS = {"delayed_chain": SuiteProtocol(papers=(LPG,))}


@functools.cache
def make(name: str) -> Environment:
    """Make `delayed_chain/<name>`, for example `delayed_chain/noisy_long`.

    Raises:
      EnvironmentNameError: if there is no such chain.
    """
    if name not in TASKS:
        raise unknown_member(f"delayed_chain/{name}", SUITES["delayed_chain"])
    task = make_task(DYNAMICS, **TASKS[name])
    return Environment(name=f"delayed_chain/{name}", dynamics=DYNAMICS, params=task)
