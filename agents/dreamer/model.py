"""All of an agent's networks, as pure functions of their parameters."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from agents.dreamer import distributions
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
    sample,
)
from agents.dreamer.layers import MLP
from agents.dreamer.networks import (
    RSSM,
    ActionPart,
    ActionParts,
    Decoder,
    Encoder,
    State,
    embed_action,
    initial_state,
    log_probabilities,
)
from agents.encoders import computing_in

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
      action_parts: names and parts of an action.
      regression: of reward and value.
    """

    config: DreamerConfig
    observation_parts: tuple[tuple[str, Observation], ...]
    action_parts: tuple[tuple[str, ActionPart], ...]
    regression: Regression

    @property
    def observations(self) -> dict[str, Observation]:
        return dict(self.observation_parts)

    @property
    def actions(self) -> ActionParts:
        return dict(self.action_parts)

    def init(self, key: PRNGKeyArray) -> Params:
        keys = iter(jax.random.split(key, 7))
        example = {name: jnp.zeros((1, *x.shape), x.dtype) for name, x in self.observation_parts}
        encode = self._transformed(self._encode)
        encoder = encode.init(next(keys), example)
        tokens = jax.eval_shape(encode.apply, encoder, example)
        state = initial_state(self.config, 1)
        action = jnp.zeros((1, sum(part.size for _, part in self.action_parts)))

        def rssm(state: State, action: Array, tokens: Array):
            layers = RSSM(self.config)
            h = layers.advance(state, action)
            return layers.prior(h), layers.posterior(h, tokens)

        params = {
            "encoder": encoder,
            "rssm": self._transformed(rssm).init(
                next(keys), state, action, jnp.zeros(tokens.shape)
            ),
            "decoder": self._transformed(self._decode).init(next(keys), state.h, state.flat_z),
        }
        for name in ("reward", "continuation", ACTOR, CRITIC):
            head = functools.partial(self._head, name)
            params[name] = self._transformed(head).init(next(keys), state.features)
        return params

    def encode(self, params: Params, observation: Mapping[str, Array]) -> Float[Array, "*s E"]:
        """Return the tokens of observations."""
        return self._apply(self._encode, params["encoder"], observation)

    def advance(
        self, params: Params, state: State, action: Float[Array, "*s A"]
    ) -> Float[Array, "*s D"]:
        """Return the next h, after a state and an embedded action."""
        return self._apply(lambda *x: RSSM(self.config).advance(*x), params["rssm"], state, action)

    def prior(self, params: Params, h: Float[Array, "*s D"]) -> Float[Array, "*s S C"]:
        """Return the log-probabilities of z, from h."""
        return self._apply(
            lambda h: log_probabilities(self.config, RSSM(self.config).prior(h)), params["rssm"], h
        )

    def posterior(
        self, params: Params, h: Float[Array, "*s D"], tokens: Float[Array, "*s E"]
    ) -> Float[Array, "*s S C"]:
        """Return the log-probabilities of z, from h and tokens."""

        def posterior(*inputs: Array) -> Array:
            return log_probabilities(self.config, RSSM(self.config).posterior(*inputs))

        return self._apply(posterior, params["rssm"], h, tokens)

    def decode(
        self, params: Params, h: Float[Array, "*s D"], z: Float[Array, "*s SC"]
    ) -> dict[str, Array]:
        """Return predicted observations by name, from h and flat z."""
        return self._apply(self._decode, params["decoder"], h, z)

    def reward(self, params: Params, features: Float[Array, "*s F"]) -> Float[Array, "*s K"]:
        """Return the logits of the reward's `regression`."""
        return self._apply_head("reward", params, features)["logits"]

    def continuation(self, params: Params, features: Float[Array, "*s F"]) -> Float[Array, "*s"]:
        """Return a logit of the episode's continuation."""
        return self._apply_head("continuation", params, features)["logit"][..., 0]

    def critic(self, params: Params, features: Float[Array, "*s F"]) -> Float[Array, "*s K"]:
        """Return the logits of the value's `regression`."""
        return self._apply_head(CRITIC, params, features)["logits"]

    def policies(self, params: Params, features: Float[Array, "*s F"]) -> dict[str, Policy]:
        """Return a policy for each part of the action."""
        outputs = self._apply_head(ACTOR, params, features)
        policies: dict[str, Policy] = {}
        for name, part in sorted(self.action_parts):
            if part.is_discrete:
                logits, unimix = outputs[f"{name}_logits"], self.config.policy_unimix
                policies[name] = Discrete(mixed_log_probabilities(logits, unimix))
            else:
                mean, stddev = outputs[f"{name}_mean"], outputs[f"{name}_stddev"]
                policies[name] = Continuous.of_outputs(mean, stddev)
        return policies

    def _encode(self, observation: Mapping[str, Array]) -> Array:
        return Encoder(self.config, self.observations)(observation)

    def _decode(self, h: Array, z: Array) -> dict[str, Array]:
        return Decoder(self.config, self.observations)(h, z)

    def _head(self, name: str, features: Array) -> dict[str, Array]:
        config, logits = self.config, {"logits": self.regression.num_logits}
        layers = config.layers if name in (ACTOR, CRITIC) else config.head_layers
        outputs = {
            "reward": logits,
            "continuation": {"logit": 1},
            ACTOR: _actor_outputs(self.actions),
            CRITIC: logits,
        }[name]
        scale = {"reward": 0.0, CRITIC: 0.0, ACTOR: 0.01}.get(name, 1.0)
        return MLP((config.units,) * layers, outputs, config.norm, scale, name=name)(features)

    def _apply_head(self, name: str, params: Params, features: Array) -> dict[str, Array]:
        return self._apply(functools.partial(self._head, name), params[name], features)

    def _transformed(self, f: Callable[..., Any]) -> hk.Transformed:
        return hk.without_apply_rng(hk.transform(_narrow(self.config.dtype, f)))

    def _apply(self, f: Callable[..., Any], params: Params, *inputs: Any) -> Any:
        return self._transformed(f).apply(params, *inputs)


def make_model(
    config: DreamerConfig, observations: Specs, actions: ActionParts, kind: type[Model] = Model
) -> Model:
    """Return an agent's networks."""
    observation_parts = tuple(observations_of(config, observations).items())
    return kind(config, observation_parts, tuple(actions.items()), _regression(config))


def _regression(config: DreamerConfig) -> Regression:
    if config.ablation == "ContRegression":
        return distributions.SymlogRegression()
    if config.ablation == "SqrtTransform":
        return distributions.sqrt_twohot()
    return distributions.symlog_twohot() if config.is_v1 else distributions.symexp_twohot()


def _narrow(dtype: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose layers compute in a dtype; its outputs are float32."""
    if dtype == "auto":
        dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    if dtype == "float32":
        return f

    def narrowly(*inputs):
        with computing_in(jnp.dtype(dtype), wide_names=("scale", "offset")):
            outputs = f(*inputs)
        return jax.tree.map(lambda x: x.astype(jnp.result_type(float)), outputs)

    return narrowly


def _actor_outputs(actions: ActionParts) -> dict[str, int]:
    outputs: dict[str, int] = {}
    for name, part in sorted(actions.items()):
        kinds = ("logits",) if part.is_discrete else ("mean", "stddev")
        outputs |= {f"{name}_{kind}": part.size for kind in kinds}
    return outputs


class Sequences(NamedTuple):
    """Sequences from the replay, `[T, B, ...]`.

    Attributes:
      observation: x_t, by name.
      action: a_{t-1}, by name, which led to x_t.
      reward: r_t, of the transition to x_t.
      is_first: whether x_t is the first of an episode.
      is_last: whether x_t is the last of an episode, by termination or truncation.
      is_terminal: whether x_t is terminal.
    """

    observation: Mapping[str, Array]
    action: Mapping[str, Array]
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
    key: PRNGKeyArray | None,
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
    model: Model, params: Params, start: State, batch: Sequences, key: PRNGKeyArray | None
) -> Observed:
    """Infer the model states along sequences, from the states before the first step, `[B]`."""
    tokens = model.encode(params, batch.observation)
    actions = embed_action(model.actions, batch.action)

    def step(state: State, row):
        tokens, action, is_first, t = row
        step_key = None if key is None else jax.random.fold_in(key, t)
        state, posterior = observe_step(model, params, state, action, tokens, is_first, step_key)
        return state, (state, posterior)

    steps = jnp.arange(len(batch.reward))
    _, (states, posterior) = jax.lax.scan(step, start, (tokens, actions, batch.is_first, steps))
    return Observed(states, posterior, model.prior(params, states.h))


class Imagined(NamedTuple):
    """Imagined sequences from N start states.

    Attributes:
      states: `[H+1, N]`; the first row contains the start states.
      actions: in each state, by name.
    """

    states: State
    actions: dict[str, Array]


def imagine(
    model: Model, params: Params, start: State, key: PRNGKeyArray | None, num_steps: int
) -> Imagined:
    """Imagine `num_steps` steps (H) by the policies, from states `[N]`.

    The start states and the model's parameters have no gradient here.
    """
    frozen = sg(params)

    def act(state: State, t):
        key_t = None if key is None else jax.random.fold_in(key, 2 * t)
        return _act(model, params, sg(state), key_t)

    def step(state: State, t):
        actions = act(state, t)
        h = model.advance(frozen, state, embed_action(model.actions, actions))
        z_key = None if key is None else jax.random.fold_in(key, 2 * t + 1)
        following = State(h, sample(z_key, model.prior(frozen, h)))
        return following, (state, actions)

    start = sg(start)
    last, (states, actions) = jax.lax.scan(step, start, jnp.arange(num_steps))
    final = act(last, num_steps)

    def with_last(rows, row):
        return jnp.concatenate([rows, row[None]])

    return Imagined(jax.tree.map(with_last, states, last), jax.tree.map(with_last, actions, final))


def _act(model: Model, params: Params, state: State, key: PRNGKeyArray | None) -> dict[str, Array]:
    """Sample each part of the action; the arXiv version's has a gradient."""
    found = {}
    for i, (name, policy) in enumerate(model.policies(params, state.features).items()):
        action = policy.sample(None if key is None else jax.random.fold_in(key, i))
        found[name] = action if model.config.is_v1 else sg(action)
    return found
