"""`mdp_generated`: 64 random Markov decision processes to discover rules on, of four kinds.

They are to differ from grid-worlds in what a rule sees: in the lengths of episodes (5 to 500
steps), in the sizes of returns (up to hundreds), in whether rewards are for staying alive or for
getting done, and in noise. Four kinds take turns:

- `dense`: each state has a reward of its own, drawn from a standard Gaussian distribution;
- `goal`: 1 in the state opposite of the first one, where the episode ends;
- `cost`: -1 per step until such a state is reached;
- `alive`: 1 per step until one of the states is reached that end the episode.

States lie on a ring, and an action leads from a state to one at most `REACH` away. Which one, the
task draws for each state and action, as in the Garnet problems (Bhatnagar et al. 2009, "Natural
actor-critic algorithms"), whose next states are anywhere. Each task's rewards have a scale, and
every second task of a kind has noise in every reward. All tasks share `DYNAMICS`.
"""

import dataclasses
import functools

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from environments.base import Environment, restart, transition
from environments.noise import NoisyRewards, NoisyTask, log_uniform

SEED = 64
KINDS = ("dense", "goal", "cost", "alive")
REACH = 3  # States between a state and the next one at most.
NUM_STATES, NUM_ACTIONS, NUM_FEATURES = 24, 4, 16
HORIZONS = {"dense": (5, 200), "goal": (8, 40), "cost": (50, 500), "alive": (50, 500)}
SCALES = (0.3, 3.0)  # Of rewards, log-uniform.
NOISES = (0.05, 1.0)  # Standard deviation by the scale of rewards, log-uniform.
_MOST_SLIPS = 0.2
_PITS = 0.25  # Part of the states of `alive` that end the episode.


@chex.dataclass(frozen=True)
class RingTask:
    """A Markov decision process.

    Attributes:
      next_state: after an action without a slip.
      slip: probability that an action leads to any state within reach instead.
      living: reward of every step.
      arrival: reward for reaching a state, in addition.
      is_last: whether reaching a state ends the episode.
      is_first: whether an episode may begin in a state; each such state is as likely.
      horizon: steps after which the episode ends.
      features: what is observed of a state.
    """

    next_state: Int[Array, "*tasks states actions"]
    slip: Float[Array, "*tasks"]
    living: Float[Array, "*tasks"]
    arrival: Float[Array, "*tasks states"]
    is_last: Bool[Array, "*tasks states"]
    is_first: Bool[Array, "*tasks states"]
    horizon: Int[Array, "*tasks"]
    features: Float[Array, "*tasks states features"]


@chex.dataclass(frozen=True)
class RingState:
    """The state of the process, and the steps so far."""

    state: Int[Array, "*batch"]
    time: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Ring:
    """Markov decision processes on a ring.

    The observation is float32 `[num_features + 1]`: the state's features, and the part of the
    horizon that is over. At the horizon, the episode terminates.

    Attributes:
      num_states, num_actions, num_features: of all tasks. As fields they are part of the tasks'
        fingerprints (`evaluation.scoring.references`).
    """

    num_states: int = dataclasses.field(default=NUM_STATES, init=False)
    num_actions: int = dataclasses.field(default=NUM_ACTIONS, init=False)
    num_features: int = dataclasses.field(default=NUM_FEATURES, init=False)

    def observation_spec(self) -> specs.Array:
        return specs.Array((self.num_features + 1,), np.float32, name="features_and_time")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(self.num_actions, name="action")

    def reset(self, task: RingTask, key: PRNGKeyArray) -> tuple[RingState, dm_env.TimeStep]:
        first = jax.random.categorical(key, jnp.where(task.is_first, 0.0, -jnp.inf))
        state = RingState(state=first.astype(jnp.int32), time=jnp.int32(0))
        return state, restart(_observation(task, state))

    def step(
        self, task: RingTask, state: RingState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[RingState, dm_env.TimeStep]:
        slip_key, place_key = jax.random.split(key)
        offset = jax.random.randint(place_key, (), -REACH, REACH + 1)
        slipped = jax.random.uniform(slip_key) < task.slip
        anywhere = (state.state + offset) % self.num_states
        reached = jnp.where(slipped, anywhere, task.next_state[state.state, action])
        new = RingState(state=reached, time=state.time + 1)
        return new, transition(
            _observation(task, new),
            task.living + task.arrival[reached],
            terminated=task.is_last[reached] | (new.time >= task.horizon),
        )


def _observation(task: RingTask, state: RingState) -> Float[Array, "features_and_time"]:
    over = state.time.astype(jnp.float32) / task.horizon.astype(jnp.float32)
    return jnp.append(task.features[state.state], over)


def draw(kind: str, rng: np.random.Generator) -> RingTask:
    """Draw a task of a kind."""
    states, shape = np.arange(NUM_STATES), (NUM_STATES, NUM_ACTIONS)
    offsets = rng.integers(-REACH, REACH + 1, shape)
    scale, horizon = log_uniform(rng, *SCALES), log_uniform(rng, *HORIZONS[kind])
    has_one_start = rng.random() < 0.5 or kind == "goal"
    living, arrival, is_last = 0.0, np.zeros(NUM_STATES), np.zeros(NUM_STATES, bool)
    if kind == "dense":
        arrival = rng.normal(size=NUM_STATES)
    elif kind == "alive":
        living = 1.0
        is_last[rng.permutation(NUM_STATES - 1)[: round(_PITS * NUM_STATES)] + 1] = True
    else:
        is_last[NUM_STATES // 2] = True
        living, arrival = (-1.0, arrival) if kind == "cost" else (0.0, is_last.astype(float))
    return RingTask(
        next_state=jnp.asarray((states[:, None] + offsets) % NUM_STATES, jnp.int32),
        slip=jnp.float32(rng.uniform(0.0, _MOST_SLIPS)),
        living=jnp.float32(scale * living),
        arrival=jnp.asarray(scale * arrival, jnp.float32),
        is_last=jnp.asarray(is_last),
        is_first=jnp.asarray(states == 0 if has_one_start else ~is_last),
        horizon=jnp.int32(round(horizon)),
        features=jnp.asarray(rng.choice((-1.0, 1.0), (NUM_STATES, NUM_FEATURES)), jnp.float32),
    )


DYNAMICS = NoisyRewards(Ring())
SUITES = {
    "mdp_generated": tuple(f"mdp_generated/{i:02d}_{KINDS[i % len(KINDS)]}" for i in range(64))
}


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of the suite, for example `mdp_generated/00_dense`."""
    number = SUITES["mdp_generated"].index(name)
    rng = np.random.default_rng([SEED, number])
    task = draw(KINDS[number % len(KINDS)], rng)
    size = float(jnp.max(jnp.abs(task.living + task.arrival)))
    has_noise = number // len(KINDS) % 2 == 1
    noise = size * log_uniform(rng, *NOISES) if has_noise else 0.0
    params = NoisyTask(task=task, noise=jnp.float32(noise))
    return Environment(name=name, dynamics=DYNAMICS, params=params)
