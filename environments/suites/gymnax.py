"""gymnax environments by name, for example `gymnax/CartPole-v1`.

Lange (2022), https://github.com/RobertTLange/gymnax. gymnax's parameters are the task, so
they can differ between agents of one compiled program. gymnax's automatic resets are not
used: streams keep the last observation of an episode, and gymnax's truncations are truncations.

The suite `gymnax` is its tasks of classic control, bsuite and "misc" with one discrete choice of
actions, except MNISTBandit, which downloads data. They are to judge by: no rule and no setting was
chosen by them, though their scores have been looked at.

The suite `minatar`, the environments `minatar/<game>`, is MinAtar (Young & Tian 2019, arXiv
1903.03176) in gymnax's implementation: `gymnax/<Game>-MinAtar` under other names. Observations are
float32 `[10, 10, channels]` of zeros and ones; there is no frame skip; the end of a game is a
termination. It differs from MinAtar's own protocol. Actions are not sticky (there with probability
0.1), so that Space Invaders is deterministic, and Breakout but for the side from which the ball
starts. Each game has its minimal set of actions (there all six in every game). An episode is
truncated after 1,000 steps, in Freeway after 2,500 (there Freeway terminates after 2,500, and the
others have no limit). The difficulty ramps up as there. Scores therefore cannot be compared with
MinAtar's.
"""

import dataclasses
import functools
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from environments.base import (
    Environment,
    State,
    TaskParams,
    cast,
    promoting,
    restart,
    strong,
    transition,
)
from environments.errors import (
    EnvironmentNameError,
    import_package,
    unknown_name,
)

_IDS = tuple(
    """CartPole-v1 Acrobot-v1 MountainCar-v0 Catch-bsuite DeepSea-bsuite MemoryChain-bsuite
    UmbrellaChain-bsuite DiscountingChain-bsuite SimpleBandit-bsuite FourRooms-misc MetaMaze-misc
    BernoulliBandit-misc GaussianBandit-misc Pong-misc FrozenLake-misc""".split()
)
GAMES = {
    "asterix": "Asterix-MinAtar",
    "breakout": "Breakout-MinAtar",
    "freeway": "Freeway-MinAtar",
    "seaquest": "Seaquest-MinAtar",
    "space_invaders": "SpaceInvaders-MinAtar",
}
"""MinAtar's games, and gymnax's names of them."""
SUITES = {
    "gymnax": tuple(f"gymnax/{environment_id}" for environment_id in _IDS),
    "minatar": tuple(f"minatar/{game}" for game in GAMES),
}


@dataclasses.dataclass(frozen=True)
class Gymnax:
    """A gymnax environment with discrete actions; the task is its parameters' pytree.

    Observations and rewards become float32; a discrete observation becomes one-hot. State and
    parameters get strong dtypes that `reset` and `step` agree on: gymnax starts from Python
    numbers, with which a jitted rollout would be compiled again at its second call.

    Attributes:
      environment_id: gymnax's name for it.
    """

    environment_id: str

    def observation_spec(self) -> specs.Array:
        environment, params, _ = _load(self.environment_id)
        space = environment.observation_space(params)
        shape = (int(space.n),) if hasattr(space, "n") else tuple(space.shape)
        return specs.Array(shape, np.float32, name="observation")

    def action_spec(self) -> specs.DiscreteArray:
        environment, params, _ = _load(self.environment_id)
        return specs.DiscreteArray(int(environment.action_space(params).n), name="action")

    def reset(self, task: TaskParams, key: PRNGKeyArray) -> tuple[State, dm_env.TimeStep]:
        environment, _, state_types = _load(self.environment_id)
        with promoting():
            observation, state = environment.reset_env(key, task)
        return cast(state, state_types), restart(self._convert(observation))

    def step(
        self, task: TaskParams, state: State, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        environment, _, state_types = _load(self.environment_id)
        with promoting():
            observation, state, reward, terminated, _ = environment.step_env(
                key, state, action, task
            )
            truncated = environment.is_truncated(state, task)
        return cast(state, state_types), transition(
            self._convert(observation),
            jnp.asarray(reward, jnp.float32).reshape(()),
            terminated=jnp.asarray(terminated, bool).reshape(()),
            truncated=jnp.asarray(truncated, bool).reshape(()),
        )

    def _convert(self, observation: Any) -> Float[Array, "..."]:
        environment, params, _ = _load(self.environment_id)
        space = environment.observation_space(params)
        if hasattr(space, "n"):
            return jax.nn.one_hot(observation, int(space.n), dtype=jnp.float32)
        return jnp.asarray(observation, jnp.float32)


def make(name: str) -> Environment:
    """Make `gymnax/<gymnax's own name>` or `minatar/<game>`.

    Raises:
      EnvironmentNameError: if there is none of this name, or its actions are not one discrete
        choice, or its observation is not one array.
      MissingPackageError: if gymnax is not installed.
    """
    family, _, environment_id = name.partition("/")
    gymnax = import_package("gymnax", "gymnax", f"{family}/…")
    if family == "minatar":
        if environment_id not in GAMES:
            raise unknown_name(name, SUITES["minatar"])
        environment_id = GAMES[environment_id]
    elif environment_id not in gymnax.registered_envs:
        known = [f"gymnax/{known_id}" for known_id in gymnax.registered_envs]
        raise unknown_name(name, known, "gymnax.registered_envs lists all.")
    _, params, _ = _load(environment_id)
    return Environment(name=name, dynamics=Gymnax(environment_id), params=params)


@functools.cache
def _load(environment_id: str) -> tuple[Any, Any, Any]:
    """Return the gymnax environment, its parameters, and its state's shapes and dtypes."""
    try:
        # Arrays that gymnax makes here outlive the trace that this call may be part of.
        with jax.ensure_compile_time_eval(), promoting():
            environment, params = import_package("gymnax", "gymnax", "gymnax/…").make(
                environment_id
            )
            params = jax.tree.map(strong, params)
    except OSError as error:
        raise EnvironmentNameError(
            f"gymnax cannot make {environment_id!r}, as it could not download its data: {error}"
        ) from error
    actions, observations = environment.action_space(params), environment.observation_space(params)
    if not hasattr(actions, "n"):
        raise EnvironmentNameError(
            f"'gymnax/{environment_id}' has a {type(actions).__name__} action space of shape"
            f" {getattr(actions, 'shape', None)}; expected a discrete one, as agents here choose"
            " one of a number of actions. For example: gymnax/CartPole-v1, gymnax/MountainCar-v0."
        )
    if not hasattr(observations, "shape"):
        raise EnvironmentNameError(
            f"'gymnax/{environment_id}' has a {type(observations).__name__} observation space;"
            " expected a single array."
        )
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = jax.ShapeDtypeStruct((), jnp.int32)
    with promoting():
        _, first = jax.eval_shape(environment.reset_env, key, params)
        _, second, *_ = jax.eval_shape(environment.step_env, key, first, action, params)
        state_types = jax.tree.map(
            lambda a, b: jax.ShapeDtypeStruct(b.shape, jnp.promote_types(a.dtype, b.dtype)),
            first,
            second,
        )
    return environment, params, state_types
