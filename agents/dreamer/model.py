"""All of an agent's networks, as pure functions of their parameters."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from agents.dreamer import distributions
from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import (
    Continuous,
    Discrete,
    Policy,
    Regression,
    mixed_log_probabilities,
)
from agents.dreamer.layers import MLP
from agents.dreamer.networks import Decoder, Encoder, Specs
from agents.dreamer.rssm import RSSM, ActionParts, State, initial_state
from agents.encoders import computing_in

Params = dict[str, Any]
"""Parameters by network: encoder, rssm, decoder, reward, continuation, actor, critic."""

WORLD_MODEL = ("encoder", "rssm", "decoder", "reward", "continuation")
ACTOR, CRITIC = "actor", "critic"


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """An agent's networks, as functions whose first argument is `Params`.

    `init` takes a key, and `decoder_losses` has no parameters.

    Attributes:
      init: from a key to parameters.
      encode: observations to tokens.
      advance: a state and an embedded action to the next h.
      prior: h to log-probabilities of z.
      posterior: h and tokens to log-probabilities of z.
      decode: h and flat z to predicted observations.
      decoder_losses: predicted and true observations to losses by name.
      reward: features to logits of `regression`.
      continuation: features to a logit.
      policies: features to a policy for each part of the action.
      critic: features to logits of `regression`.
      regression: of reward and value.
      observations: specs of the observations, by name.
      actions: the parts of an action, by name.
      config: of the agent.
    """

    init: Callable[[PRNGKeyArray], Params]
    encode: Callable[..., Float[Array, "*s E"]]
    advance: Callable[..., Float[Array, "*s D"]]
    prior: Callable[..., Float[Array, "*s S C"]]
    posterior: Callable[..., Float[Array, "*s S C"]]
    decode: Callable[..., dict[str, Array]]
    decoder_losses: Callable[..., dict[str, Float[Array, "*s"]]]
    reward: Callable[..., Float[Array, "*s K"]]
    continuation: Callable[..., Float[Array, "*s"]]
    policies: Callable[..., dict[str, Policy]]
    critic: Callable[..., Float[Array, "*s K"]]
    regression: Regression
    observations: Specs
    actions: ActionParts
    config: DreamerConfig


def make_model(config: DreamerConfig, observations: Specs, actions: ActionParts) -> Model:
    """Return an agent's networks.

    Args:
      config: of the agent.
      observations: specs of the observations, by name.
      actions: the parts of an action, by name.
    """
    regression = _regression(config)
    encode = _pure(config, lambda x: Encoder(config, observations)(x))
    decode = _pure(config, lambda h, z: Decoder(config, observations)(h, z))
    rssm = hk.without_apply_rng(hk.multi_transform(lambda: _rssm(config)))
    heads = {
        name: _pure(config, lambda x, name=name: _head(config, regression, actions, name)(x))
        for name in ("reward", "continuation", ACTOR, CRITIC)
    }

    def init(key: PRNGKeyArray) -> Params:
        keys = iter(jax.random.split(key, 7))
        example = {
            name: jnp.zeros((1, *spec.shape), spec.dtype) for name, spec in observations.items()
        }
        encoder = encode.init(next(keys), example)
        tokens = jax.eval_shape(encode.apply, encoder, example)
        state = initial_state(config, 1)
        size = sum(part.size for part in actions.values())
        params = {
            "encoder": encoder,
            "rssm": rssm.init(next(keys), state, jnp.zeros((1, size)), jnp.zeros(tokens.shape)),
            "decoder": decode.init(next(keys), state.h, state.flat_z),
        }
        return params | {name: f.init(next(keys), state.features) for name, f in heads.items()}

    def head(name: str, params: Params, features: Array) -> dict[str, Array]:
        return heads[name].apply(params[name], features)

    advance, prior, posterior = rssm.apply
    # Losses have no parameters, but Haiku creates modules inside a transformation only.
    losses = hk.without_apply_rng(
        hk.transform(lambda predicted, x: Decoder(config, observations).losses(predicted, x))
    )
    return Model(
        init=init,
        encode=lambda params, x: encode.apply(params["encoder"], x),
        advance=lambda params, *x: advance(params["rssm"], *x),
        prior=lambda params, *x: prior(params["rssm"], *x),
        posterior=lambda params, *x: posterior(params["rssm"], *x),
        decode=lambda params, *x: decode.apply(params["decoder"], *x),
        decoder_losses=lambda *x: losses.apply({}, *x),
        reward=lambda params, x: head("reward", params, x)["logits"],
        continuation=lambda params, x: head("continuation", params, x)["logit"][..., 0],
        policies=lambda params, x: _policies(config, actions, head(ACTOR, params, x)),
        critic=lambda params, x: head(CRITIC, params, x)["logits"],
        regression=regression,
        observations=observations,
        actions=actions,
        config=config,
    )


def _regression(config: DreamerConfig) -> Regression:
    if config.regression == "symlog_regression":
        return distributions.SymlogRegression()
    return getattr(distributions, config.regression)(config.bins)


def _head(config: DreamerConfig, regression: Regression, actions: ActionParts, name: str) -> MLP:
    layers = config.layers if name in (ACTOR, CRITIC) else config.head_layers
    logits = {"logits": regression.num_logits}
    outputs = {
        "reward": logits,
        "continuation": {"logit": 1},
        ACTOR: _actor_outputs(actions),
        CRITIC: logits,
    }[name]
    scale = {"reward": 0.0, CRITIC: 0.0, ACTOR: 0.01}.get(name, 1.0)
    return MLP((config.units,) * layers, outputs, config.norm, scale, name=name)


def _policies(
    config: DreamerConfig, actions: ActionParts, outputs: Mapping[str, Array]
) -> dict[str, Policy]:
    """Return a policy for each part of the action, of the actor's outputs."""
    policies: dict[str, Policy] = {}
    for name, part in sorted(actions.items()):
        if part.is_discrete:
            logits = outputs[f"{name}_logits"]
            policies[name] = Discrete(mixed_log_probabilities(logits, config.policy_unimix))
        else:
            mean, stddev = outputs[f"{name}_mean"], outputs[f"{name}_stddev"]
            policies[name] = Continuous.of_outputs(mean, stddev)
    return policies


def _rssm(config: DreamerConfig):
    """Return a function that uses all layers, and single ones, for `hk.multi_transform`."""
    rssm = RSSM(config)

    def everything(state: State, action: Array, tokens: Array):
        h = rssm.advance(state, action)
        return rssm.prior(h), rssm.posterior(h, tokens)

    def prior(h):
        return rssm.log_probabilities(rssm.prior(h))

    def posterior(h, tokens):
        return rssm.log_probabilities(rssm.posterior(h, tokens))

    return _narrow(config, everything), tuple(
        _narrow(config, f) for f in (rssm.advance, prior, posterior)
    )


def _pure(config: DreamerConfig, f: Callable[..., Any]) -> hk.Transformed:
    return hk.without_apply_rng(hk.transform(_narrow(config, f)))


def _narrow(config: DreamerConfig, f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose layers compute in the config's dtype; its outputs are float32."""
    dtype = config.dtype
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


def count_parameters(params: Mapping[str, Any]) -> int:
    """Return the number of parameters."""
    return sum(x.size for x in jax.tree.leaves(params))
