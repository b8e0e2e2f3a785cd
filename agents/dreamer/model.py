"""All of an agent's networks, as pure functions of their parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import (
    Continuous,
    Discrete,
    Observation,
    Policy,
    Regression,
    Specs,
    mixed_log_probabilities,
    observations_of,
    regression_of,
    sample,
)
from agents.dreamer.layers import MLP
from agents.dreamer.networks import (
    RSSM,
    ActionSpace,
    Decoder,
    Encoder,
    State,
    initial_state,
)
from agents.encoders import computing_in

ModelT = TypeVar("ModelT", bound="Model")

Params = dict[str, Any]
"""Parameters by network: encoder, rssm, decoder, reward, continuation, actor, critic."""

sg = jax.lax.stop_gradient

WORLD_MODEL = ("encoder", "rssm", "decoder", "reward", "continuation")
ACTOR, CRITIC = "actor", "critic"


@dataclasses.dataclass(frozen=True)
class Model:
    """An agent's networks. Equal models are the same functions, so that these are compiled once.

    Attributes:
      config: of the agent.
      observation_parts: names and kinds of the observations.
      actions: of the environment.
      regression: of reward and value.
    """

    config: DreamerConfig
    observation_parts: tuple[tuple[str, Observation], ...]
    actions: ActionSpace
    regression: Regression

    @classmethod
    def make(
        cls: type[ModelT], config: DreamerConfig, observations: Specs, actions: ActionSpace
    ) -> ModelT:
        """Return the networks for observations and actions of given specs."""
        parts = tuple(observations_of(config, observations).items())
        return cls(config, parts, actions, regression_of(config))

    @property
    def observations(self) -> dict[str, Observation]:
        return dict(self.observation_parts)

    def init(self, key: PRNGKeyArray) -> Params:
        names = (*WORLD_MODEL, ACTOR, CRITIC)
        keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
        example = {name: jnp.zeros((1, *x.shape), x.dtype) for name, x in self.observation_parts}
        params = {"encoder": self._network("encoder").init(keys["encoder"], example)}
        tokens = jax.eval_shape(self.encode, params, example)
        state = initial_state(self.config, 1)
        action = jnp.zeros((1, self.actions.size))
        inputs = {
            "rssm": (state, action, jnp.zeros(tokens.shape)),
            "decoder": (state.h, state.flat_z),
        }
        for name in names[1:]:
            given = inputs.get(name, (state.features,))
            params[name] = self._network(name).init(keys[name], *given)
        return params

    def encode(self, params: Params, observation: Mapping[str, Array]) -> Float[Array, "*s E"]:
        """Return the tokens of observations."""
        return self._apply("encoder", params, observation)

    def advance(
        self, params: Params, state: State, action: Float[Array, "*s A"]
    ) -> Float[Array, "*s D"]:
        """Return the next h, after a state and an embedded action."""
        return self._apply("rssm", params, state, action, method="advance")

    def prior(self, params: Params, h: Float[Array, "*s D"]) -> Float[Array, "*s S C"]:
        """Return the log-probabilities of z, from h."""
        logits = self._apply("rssm", params, h, method="prior")
        return mixed_log_probabilities(logits, self.config.unimix)

    def posterior(
        self, params: Params, h: Float[Array, "*s D"], tokens: Float[Array, "*s E"]
    ) -> Float[Array, "*s S C"]:
        """Return the log-probabilities of z, from h and tokens."""
        logits = self._apply("rssm", params, h, tokens, method="posterior")
        return mixed_log_probabilities(logits, self.config.unimix)

    def decode(
        self, params: Params, h: Float[Array, "*s D"], z: Float[Array, "*s SC"]
    ) -> dict[str, Array]:
        """Return predicted observations by name, from h and flat z."""
        return self._apply("decoder", params, h, z)

    def reward(self, params: Params, features: Float[Array, "*s F"]) -> Float[Array, "*s K"]:
        """Return the logits of the reward's `regression`."""
        return self._apply("reward", params, features)["logits"]

    def continuation(self, params: Params, features: Float[Array, "*s F"]) -> Float[Array, "*s"]:
        """Return a logit of the episode's continuation."""
        return self._apply("continuation", params, features)["logit"][..., 0]

    def critic(self, params: Params, features: Float[Array, "*s F"]) -> Float[Array, "*s K"]:
        """Return the logits of the value's `regression`."""
        return self._apply(CRITIC, params, features)["logits"]

    def policy(self, params: Params, features: Float[Array, "*s F"]) -> Policy:
        """Return the policy."""
        outputs = self._apply(ACTOR, params, features)
        if self.actions.is_discrete:
            logits, unimix = outputs["action_logits"], self.config.policy_unimix
            return Discrete(mixed_log_probabilities(logits, unimix))
        return Continuous.of_outputs(outputs["action_mean"], outputs["action_stddev"])

    def _layers(self, name: str) -> hk.Module:
        """Create the layers of a network."""
        config = self.config
        if name == "rssm":
            return RSSM(config)
        if name in ("encoder", "decoder"):
            return (Encoder if name == "encoder" else Decoder)(config, self.observations)
        layers = config.layers if name in (ACTOR, CRITIC) else config.head_layers
        of_actor = ("logits",) if self.actions.is_discrete else ("mean", "stddev")
        outputs = {
            "continuation": {"logit": 1},
            ACTOR: {f"action_{x}": self.actions.size for x in of_actor},
        }.get(name, {"logits": self.regression.num_logits})
        scale = {"continuation": 1.0, ACTOR: 0.01}.get(name, 0.0)
        return MLP((config.units,) * layers, outputs, config.norm, scale, name=name)

    def _network(self, name: str, method: str = "__call__") -> hk.Transformed:
        """Return a method of a network as functions of its parameters; its outputs are float32."""
        dtype = self.config.dtype
        if dtype == "auto":
            dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"

        def call(*inputs):
            if dtype == "float32":
                return getattr(self._layers(name), method)(*inputs)
            with computing_in(jnp.dtype(dtype), wide_names=("scale", "offset")):
                outputs = getattr(self._layers(name), method)(*inputs)
            return jax.tree.map(lambda x: x.astype(jnp.result_type(float)), outputs)

        return hk.without_apply_rng(hk.transform(call))

    def _apply(self, name: str, params: Params, *inputs: Any, method: str = "__call__") -> Any:
        return self._network(name, method).apply(params[name], *inputs)


class Sequences(NamedTuple):
    """Sequences from the replay, `[T, B, ...]`.

    Attributes:
      observation: x_t, by name.
      action: a_{t-1}, which led to x_t.
      reward: r_t, of the transition to x_t.
      is_first: whether x_t is the first of an episode.
      is_last: whether x_t is the last of an episode, by termination or truncation.
      is_terminal: whether x_t is terminal.
    """

    observation: Mapping[str, Array]
    action: Array
    reward: Float[Array, "T B"]
    is_first: Bool[Array, "T B"]
    is_last: Bool[Array, "T B"]
    is_terminal: Bool[Array, "T B"]


class Observed(NamedTuple):
    """The world model's states and distributions along sequences.

    Attributes:
      states: model states, samples of the posterior, `[T, B]`.
      posterior: log-probabilities of z, `[T, B, S, C]`.
      prior: likewise.
    """

    states: State
    posterior: Float[Array, "T B S C"]
    prior: Float[Array, "T B S C"]


def observe_step(
    model: Model,
    params: Params,
    state: State,
    action: Float[Array, "B A"],
    tokens: Float[Array, "B E"],
    is_first: Bool[Array, "B"],
    key: PRNGKeyArray,
) -> tuple[State, Float[Array, "B S C"]]:
    """Advance the model state by one observed step (equation 3).

    The embedded action led to the encoded observation, `tokens`. State and action are set to zero
    where an episode begins.

    Returns:
      The state after the step, and the log-probabilities of its z.
    """
    keep = 1.0 - is_first.astype(tokens.dtype)
    state = jax.tree.map(lambda x: x * keep.reshape(-1, *(1,) * (x.ndim - 1)), state)
    h = model.advance(params, state, action * keep[:, None])
    posterior = model.posterior(params, h, tokens)
    return State(h, sample(key, posterior)), posterior


def observe(
    model: Model, params: Params, start: State, batch: Sequences, key: PRNGKeyArray
) -> Observed:
    """Infer the model states along sequences, from the states before the first step, `[B]`."""
    tokens = model.encode(params, batch.observation)
    actions = model.actions.embed(batch.action)

    def step(state: State, row):
        tokens, action, is_first, t = row
        step_key = jax.random.fold_in(key, t)
        state, posterior = observe_step(model, params, state, action, tokens, is_first, step_key)
        return state, (state, posterior)

    steps = jnp.arange(len(batch.reward))
    _, (states, posterior) = jax.lax.scan(step, start, (tokens, actions, batch.is_first, steps))
    return Observed(states, posterior, model.prior(params, states.h))


class Imagined(NamedTuple):
    """Imagined sequences from N start states.

    Attributes:
      states: `[H+1, N]`; the first row contains the start states.
      action: in each state, `[H+1, N, ...]`.
    """

    states: State
    action: Array


def imagine(
    model: Model, params: Params, start: State, key: PRNGKeyArray, num_steps: int
) -> Imagined:
    """Imagine `num_steps` steps (H) by the policy, from states `[N]`.

    The start states and the model's parameters have no gradient here.
    """
    frozen = sg(params)

    def act(state: State, t) -> Array:
        act_key = jax.random.fold_in(jax.random.fold_in(key, 2 * t), 0)
        action = model.policy(params, sg(state.features)).sample(act_key)
        return action if model.config.is_v1 else sg(action)  # `"v1"` learns through it.

    def step(state: State, t):
        action = act(state, t)
        h = model.advance(frozen, state, model.actions.embed(action))
        z = sample(jax.random.fold_in(key, 2 * t + 1), model.prior(frozen, h))
        return State(h, z), (state, action)

    start = sg(start)
    last, (states, action) = jax.lax.scan(step, start, jnp.arange(num_steps))
    final = act(last, num_steps)

    def with_last(rows, row):
        return jnp.concatenate([rows, row[None]])

    return Imagined(jax.tree.map(with_last, states, last), with_last(action, final))
