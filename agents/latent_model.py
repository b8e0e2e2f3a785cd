"""Models that predict policies, values and rewards from actions, in a latent space.

    observation --encoder--> (--memory-->) embedding --linear--> state 0 --policy, value--> ...
    state k, action k --LSTM--> state k + 1 --heads--> policy, value, reward of the step

As of MuZero (Schrittwieser et al. 2020, arXiv 1911.08265) and Muesli (Hessel et al. 2021, arXiv
2104.06159), whose model is an LSTM, too. Values and rewards are categorical over bins of the signed
hyperbolic transform (`disco.values`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents.history import HistorySpec, example
from agents.networks import NetworkConfig, NetworkFunctions, flat_init, small_head
from agents.protocol import Batch
from disco import values


class Prediction(NamedTuple):
    """A model's predictions in states.

    Attributes:
      logits: of the policy.
      value: of the state, logits of N bins.
      reward: of the transition to the state, logits of N bins; without meaning in a first state.
    """

    logits: Float[Array, "*s A"]
    value: Float[Array, "*s N"]
    reward: Float[Array, "*s N"]


class LatentModel(NamedTuple):
    """A model as pure functions of one parameter vector.

    Attributes:
      init: from a key to parameters.
      embed_step: from parameters, observations of B states and the memory to embeddings `[B, E]`
        and the memory's next state.
      embed_unroll: from parameters, the observations of an unroll and the memory before it to
        embeddings `[T+1, B, E]`.
      policy: from parameters and embeddings `[*s, E]` to the policy's logits `[*s, A]`, by a head
        of its own.
      start: from parameters and embeddings `[*s, E]` to states 0.
      step: from parameters, states `[*s, ...]` and actions `[*s]` to the next states.
      predict: from parameters and states to a `Prediction`.
      initial_memory: from B to the memory's state before an episode; None if there is none.
      history: the past observations that an observation contains.
      num_actions: A.
    """

    init: Callable[[PRNGKeyArray], disco.Params]
    embed_step: Callable[..., tuple[Array, PyTree[Array]]]
    embed_unroll: Callable[..., Array]
    policy: Callable[..., Array]
    start: Callable[..., hk.LSTMState]
    step: Callable[..., hk.LSTMState]
    predict: Callable[..., Prediction]
    initial_memory: Callable[[int], PyTree[Array]]
    history: HistorySpec
    num_actions: int


@functools.lru_cache(maxsize=64)
def latent_model(
    config: NetworkConfig, dynamics: Any, num_bins: int, frame_stack: int = 1, burn_in: int = 0
) -> LatentModel:
    """Return a model for environments; equal arguments give the same object.

    `config.model` is the units of the model's LSTM, and `config.head` those of its heads. Only the
    specs of `dynamics` are used; the burn-in is as in `agents.networks.make_network`. Raises
    ValueError if the action space is not discrete, or the model has no units.
    """
    num_actions = environments.num_actions(dynamics)
    if config.model < 1:
        raise ValueError(f"network.model is {config.model}; expected the units of a model.")
    spec = dynamics.observation_spec()
    history = HistorySpec(frame_stack=frame_stack, memory=config.memory > 0, burn_in=burn_in)
    functions = NetworkFunctions(config, spec, num_actions, {}, history)
    policy, start, step, predict = _heads(config, num_actions, num_bins)

    def transformed():
        def everything(observation, memory):
            embedding = functions.embed_unroll(observation, memory)
            action = jnp.zeros(embedding.shape[:-1], jnp.int32)
            prediction = predict(step(start(embedding), action))
            return policy(embedding), prediction

        parts = functions.embed_step, functions.embed_unroll, policy, start, step, predict
        return everything, parts

    init, apply = hk.multi_transform(transformed)
    flat, unravel = flat_init(
        lambda key: init(key, example(history, spec), functions.initial_memory(1))
    )

    def of_vector(function):
        return lambda params, *inputs: function(unravel(params), None, *inputs)

    return LatentModel(
        flat,
        *map(of_vector, apply),
        initial_memory=functions.initial_memory,
        history=history,
        num_actions=num_actions,
    )


def _heads(
    config: NetworkConfig, num_actions: int, num_bins: int
) -> tuple[Callable[..., Any], ...]:
    """Return `policy`, `start`, `step` and `predict` of `LatentModel`, for `hk.multi_transform`."""

    def policy(embedding):
        return small_head("policy_head", num_actions)(embedding)

    def start(embedding):
        cell = hk.Linear(config.model, name="first_cell")(embedding)
        return hk.LSTMState(hidden=jnp.tanh(cell), cell=cell)

    def step(state, action):
        chosen = jax.nn.one_hot(action, num_actions, dtype=state.hidden.dtype)
        lstm = hk.LSTM(config.model, name="model")
        if action.ndim == 1:
            return lstm(chosen, state)[1]
        return hk.BatchApply(lambda x, state: lstm(x, state)[1], action.ndim)(chosen, state)

    def predict(state):
        def head(name, size):
            hidden = hk.nets.MLP(config.head, activate_final=True, name=f"{name}_hidden")
            return small_head(f"{name}_head", size)(hidden(state.hidden))

        return Prediction(
            logits=head("model_policy", num_actions),
            value=head("model_value", num_bins),
            reward=head("model_reward", num_bins),
        )

    return policy, start, step, predict


def unroll_model(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "*s E"],
    action: Int[Array, "*s K"],
    gradient_scale: float = 1.0,
) -> Prediction:
    """Return the predictions after each of K actions, `[K, *s, ...]`.

    The gradient of later steps through each state is multiplied by `gradient_scale`.
    """

    def step(state, action):
        state = model.step(params, state, action)
        scaled = jax.tree.map(
            lambda x: gradient_scale * x + (1.0 - gradient_scale) * jax.lax.stop_gradient(x), state
        )
        return (state if gradient_scale == 1.0 else scaled), model.predict(params, state)

    return jax.lax.scan(step, model.start(params, embedding), jnp.moveaxis(action, -1, 0))[1]


@dataclasses.dataclass(frozen=True)
class UnrollTargets:
    """What a model that starts in state t should predict after k = 1, ..., K actions.

    After an episode has terminated, rewards and values are 0, whatever the actions (MuZero,
    appendix G). After it was truncated, nothing is known.

    Attributes:
      action: the actions taken; those beyond the sequence or the episode are any.
      reward: of the k-th transition.
      value: of the state after it.
      index: row of the sequence with that state, at most T.
      is_known: whether there are a reward and a value.
      has_policy: whether an action with an effect is taken in the state at `index`.
    """

    action: Int[Array, "T B K"]
    reward: Float[Array, "K T B"]
    value: Float[Array, "K T B"]
    index: Int[Array, "K T"]
    is_known: Bool[Array, "K T B"]
    has_policy: Bool[Array, "K T B"]


def unroll_targets(
    batch: Batch | disco.Trajectory, value: Float[Array, "T_plus_1 B"], num_steps: int
) -> UnrollTargets:
    """Return the targets of model unrolls that start in each of the first T states.

    `value` is of all states; the states after an episode's end have none.
    """
    length = batch.action.shape[0]
    last, mask = jnp.asarray(batch.last), jnp.asarray(batch.mask)
    rows = jnp.arange(length)
    is_inside, has_terminated = mask, jnp.zeros_like(mask)
    action, reward, targets, index, is_known, has_policy = [], [], [], [], [], []
    for k in range(num_steps):
        at = jnp.minimum(rows + k, length - 1)
        is_reached = is_inside & (rows + k < length)[:, None]
        action.append(jnp.asarray(batch.action)[at])
        reward.append(jnp.where(is_reached, jnp.asarray(batch.reward, value.dtype)[at], 0.0))
        continues = jnp.asarray(batch.discount, value.dtype)[at]
        targets.append(jnp.where(is_reached, continues * value[at + 1], 0.0))
        index.append(at + 1)
        is_known.append(is_reached | has_terminated)
        has_policy.append(is_reached & ~last[at])
        has_terminated |= is_reached & last[at] & (continues == 0.0)
        is_inside = is_reached & ~last[at]
    return UnrollTargets(
        action=jnp.stack(action, axis=-1),
        reward=jnp.stack(reward),
        value=jnp.stack(targets),
        index=jnp.stack(index),
        is_known=jnp.stack(is_known),
        has_policy=jnp.stack(has_policy),
    )


def bin_loss(
    logits: Float[Array, "*s N"], target: Float[Array, "*s"], max_value: float
) -> Float[Array, "*s"]:
    """Return the cross-entropy of a categorical prediction with a value to predict."""
    return values.value_loss_to(logits, values.signed_hyperbolic(target), max_value)
