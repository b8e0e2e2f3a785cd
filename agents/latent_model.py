"""Models that predict policies, values and rewards from actions, in a latent space.

    observation --encoder--> (--memory-->) embedding --linear--> state 0 --policy, value--> ...
    state k, action k --LSTM--> state k + 1 --heads--> policy, value, reward of the step

As of MuZero (Schrittwieser et al. 2020, arXiv 1911.08265) and Muesli (Hessel et al. 2021, arXiv
2104.06159), whose model is an LSTM, too. Values and rewards are categorical over bins of the signed
hyperbolic transform (`disco.values`).
"""

import dataclasses
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

import disco
from agents.networks import PolicyNetwork, small_head
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


@dataclasses.dataclass(frozen=True)
class LatentModel(PolicyNetwork):
    """A model as functions of one parameter vector.

    `config.model` is the units of its LSTM, and `config.head` those of its heads; further fields as
    in `PolicyNetwork`. Raises ValueError if the model has no units.

    Attributes:
      num_bins: N.
    """

    num_bins: int = dataclasses.field(kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if self.config.model < 1:
            raise ValueError(
                f"network.model is {self.config.model}; expected the units of a model."
            )

    def embed_step(
        self, params: disco.Params, observation: Any, memory: Any
    ) -> tuple[Float[Array, "B E"], Any]:
        """Return the embeddings of B states, and the memory after them."""
        return self.apply(self._embed_step, params, observation, memory)

    def embed_unroll(
        self, params: disco.Params, observation: Any, memory: Any
    ) -> Float[Array, "T_plus_1 B E"]:
        """Return the embeddings along an unroll, with the memory before it."""
        return self.apply(self._embed_unroll, params, observation, memory)

    def logits(self, params: disco.Params, embedding: Float[Array, "*s E"]) -> Float[Array, "*s A"]:
        """Return the policy's logits, by a head of its own."""
        return self.apply(self._logits, params, embedding)

    def start(self, params: disco.Params, embedding: Float[Array, "*s E"]) -> Any:
        """Return states 0, leaves `[*s, ...]`."""
        return self.apply(self._start, params, embedding)

    def step(self, params: disco.Params, state: Any, action: Int[Array, "*s"]) -> Any:
        """Return the states after actions."""
        return self.apply(self._step, params, state, action)

    def predict(self, params: disco.Params, state: Any) -> Prediction:
        """Return the predictions in states."""
        return self.apply(self._predict, params, state)

    def _everything(self, observation: Any, memory: Any) -> None:
        embedding = self._embed_unroll(observation, memory)
        action = jnp.zeros(embedding.shape[:-1], jnp.int32)
        self._predict(self._step(self._start(embedding), action))
        self._logits(embedding)

    def _policy(self, observation: Any, memory: Any) -> tuple[Array, Any]:
        embedding, memory = self._embed_step(observation, memory)
        return self._logits(embedding), memory

    def _logits(self, embedding: Array) -> Array:
        return small_head("policy_head", self.num_actions)(embedding)

    def _start(self, embedding: Array) -> hk.LSTMState:
        cell = hk.Linear(self.config.model, name="first_cell")(embedding)
        return hk.LSTMState(hidden=jnp.tanh(cell), cell=cell)

    def _step(self, state: hk.LSTMState, action: Array) -> hk.LSTMState:
        chosen = jax.nn.one_hot(action, self.num_actions, dtype=state.hidden.dtype)
        lstm = hk.LSTM(self.config.model, name="model")
        if action.ndim == 1:
            return lstm(chosen, state)[1]
        return hk.BatchApply(lambda x, state: lstm(x, state)[1], action.ndim)(chosen, state)

    def _predict(self, state: hk.LSTMState) -> Prediction:
        def head(name: str, size: int) -> Array:
            hidden = hk.nets.MLP(self.config.head, activate_final=True, name=f"{name}_hidden")
            return small_head(f"{name}_head", size)(hidden(state.hidden))

        return Prediction(
            logits=head("model_policy", self.num_actions),
            value=head("model_value", self.num_bins),
            reward=head("model_reward", self.num_bins),
        )


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
