"""`delayed_chain`: the first action decides a reward that comes at the end of a chain.

The delayed-chain tasks of Oh et al. (2020), "Discovering reinforcement learning
algorithms" (arXiv 2007.08794, appendix): short and long chains, noisy rewards, and
distracting random bits in the observation. Lengths and noise levels are chosen here.
"""

import dataclasses
import functools

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import Environment, restart, transition
from environments.protocols import LPG, SuiteProtocol

MAX_LENGTH, NUM_BITS = 30, 20


@chex.dataclass(frozen=True)
class DelayedChainTask:
    """One chain.

    Attributes:
      length: steps of an episode, at most `MAX_LENGTH`.
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
    noise. The observation is float32 `[2 (MAX_LENGTH + 1) + NUM_BITS]`: the position, one-hot
    (the start is on the first branch), and distractor bits.
    """

    def observation_spec(self) -> specs.Array:
        size = 2 * (MAX_LENGTH + 1) + NUM_BITS
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
        position = state.branch * (MAX_LENGTH + 1) + state.time
        one_hot = jax.nn.one_hot(position, 2 * (MAX_LENGTH + 1), dtype=jnp.float32)
        bits = jax.random.uniform(key, (NUM_BITS,), jnp.float32) < task.distraction
        return jnp.concatenate([one_hot, bits.astype(jnp.float32)])


# By name: length, good action, noise, distraction.
TASKS = {
    "short": (8, 0, 0.0, 0.0),
    "long": (30, 1, 0.0, 0.0),
    "noisy_short": (8, 1, 0.3, 0.0),
    "noisy_long": (30, 0, 0.3, 0.0),
    "distractor": (12, 1, 0.0, 0.5),
}
SUITES = {"delayed_chain": tuple(f"delayed_chain/{name}" for name in TASKS)}
PROTOCOLS = {"delayed_chain": SuiteProtocol(papers=(LPG,))}


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of the suite, for example `delayed_chain/noisy_long`."""
    length, good_action, noise, distraction = TASKS[name.removeprefix("delayed_chain/")]
    task = DelayedChainTask(
        length=jnp.int32(length),
        good_action=jnp.int32(good_action),
        noise=jnp.float32(noise),
        distraction=jnp.float32(distraction),
    )
    return Environment(name=name, dynamics=DelayedChain(), params=task)
