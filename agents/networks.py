"""Networks with the outputs that a rule asks for (DiscoRL, Methods; specification section 1).

    observation --torso--> embedding --heads--> logits, y, value, ...       (one per state)
                 embedding --action-conditional model--> z, q, aux_pi, ...  (one per action)

The action-conditional model is one step of an LSTM whose cell is a linear map of the
embedding and whose input is the action.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
from dm_env import specs
from jaxtyping import Array, Float, PRNGKeyArray

import disco

# Of the heads on the embedding. Small, so that a newborn's policy is nearly uniform.
_STATE_HEAD_STDDEV = 1e-2


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Sizes of an agent's network.

    Attributes:
      torso: hidden units of the MLP that embeds an observation.
      model: units of the action-conditional LSTM.
      head: hidden units of the MLP of each output of the action-conditional model. Outputs of
        the state alone are linear in the torso's embedding.
    """

    torso: tuple[int, ...] = (512, 512)
    model: int = 128
    head: tuple[int, ...] = (128,)

    def __post_init__(self):
        for name, sizes in (("torso", self.torso), ("model", (self.model,)), ("head", self.head)):
            if any(size < 1 for size in sizes):
                raise ValueError(
                    f"network.{name} is {getattr(self, name)}; expected positive numbers of units."
                )


class Network(NamedTuple):
    """A network as pure functions.

    Attributes:
      init: from a key to parameters.
      policy: from parameters and observations `[*s, ...]` to logits `[*s, A]`. Cheaper than all
        outputs, for acting.
      unroll: from parameters and a trajectory to all outputs, each `[T+1, B, ...]`.
    """

    init: Callable[[PRNGKeyArray], disco.Params]
    policy: Callable[[disco.Params, Array], Float[Array, "*s A"]]
    unroll: disco.Unroll


def make_network(
    config: NetworkConfig,
    observation_spec: specs.Array,
    num_actions: int,
    output_shapes: dict[str, tuple[int, ...]],
) -> Network:
    """A feed-forward network for a rule.

    Args:
      config: sizes.
      observation_spec: of one observation, which the torso flattens.
      num_actions: A.
      output_shapes: the rule's. An output of rank 2 has a row per action and comes from the
        action-conditional model; the others come from the embedding.
    """
    shape = observation_spec.shape

    def policy(observation):
        return _state_head("logits")(_embed(observation))

    def _state_head(name):
        (size,) = output_shapes[name]
        initializer = hk.initializers.TruncatedNormal(_STATE_HEAD_STDDEV)
        return hk.Linear(size, w_init=initializer, name=f"{name}_head")

    def _action_head(name):
        _, size = output_shapes[name]
        return hk.nets.MLP((*config.head, size), name=f"{name}_head")

    def _embed(observation):
        lead = observation.shape[: observation.ndim - len(shape)]
        flat = jnp.reshape(observation, (*lead, -1)).astype(jnp.result_type(float))
        return hk.nets.MLP(config.torso, activate_final=True, name="torso")(flat)

    def outputs(observation):
        embedding = _embed(observation)
        by_name = {}
        if any(len(shape) == 2 for shape in output_shapes.values()):
            by_action = ActionConditionalModel(config.model)(embedding, num_actions)
        for name, shape in output_shapes.items():
            if len(shape) == 1:
                by_name[name] = _state_head(name)(embedding)
            else:
                by_name[name] = _action_head(name)(by_action)
        return by_name

    outputs_transformed = hk.without_apply_rng(hk.transform(outputs))
    policy_transformed = hk.without_apply_rng(hk.transform(policy))
    return Network(
        init=lambda key: outputs_transformed.init(key, jnp.zeros((1, *shape), jnp.float32)),
        policy=policy_transformed.apply,
        unroll=lambda params, trajectory: outputs_transformed.apply(params, trajectory.observation),
    )


class ActionConditionalModel(hk.Module):
    """One LSTM step from each state with each action: an embedding per state and action."""

    def __init__(self, size: int, name: str = "action_conditional_model"):
        super().__init__(name=name)
        self._size = size

    def __call__(self, embedding: Float[Array, "*s E"], num_actions: int) -> Float[Array, "*s A H"]:
        cell = hk.Linear(self._size, name="cell")(embedding)
        fan_in = num_actions + self._size
        initializer = hk.initializers.TruncatedNormal(fan_in**-0.5)
        # The hidden state's part of the gates is common to all actions, and computed once; a
        # one-hot action's part is a row of its matrix.
        by_hidden = hk.Linear(4 * self._size, w_init=initializer, name="gates")(jnp.tanh(cell))
        by_action = hk.get_parameter(
            "action_gates", (num_actions, 4 * self._size), cell.dtype, initializer
        )
        i, g, f, o = jnp.split(by_hidden[..., None, :] + by_action, 4, axis=-1)
        cell = jax.nn.sigmoid(f + 1.0) * cell[..., None, :] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(cell)
