"""Architectures of the meta-network, by the name that a rule file gives, and its sizes.

Architectures differ in the network that reads the features of a trajectory from its end to its
start: a backward LSTM, in Haiku's convention, or a backward transformer in its place.

DiscoRL, Extended Data Figure 3, has results of a transformer without describing it. This is a
pre-norm transformer whose norms have no parameters. Its attention logits decrease linearly with
the distance, at a rate that differs between heads (Press et al. 2022, "Train short, test long:
attention with linear biases"). It has no position embeddings, so that rules can be applied to
trajectories of other lengths than those of their discovery.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

LSTM = "lstm"
TRANSFORMER = "transformer"
NUM_HEADS = 4  # Of the transformer.
_EXPANSION = 4  # Of its hidden layers.

Linear = Mapping[str, Float[Array, "..."]]  # {"w": [in, out], "b": [out]}
Layers = Mapping[str, Linear]


def linear(layer: Linear, x: Float[Array, "*s F"]) -> Float[Array, "*s G"]:
    """Return x w + b."""
    return add_bias(x @ layer["w"], layer["b"])


def add_bias(x: Float[Array, "*s G"], bias: Float[Array, "G"]) -> Float[Array, "*s G"]:
    """Return x + bias, also where `jax_numpy_rank_promotion` is "raise"."""
    return x + jax.lax.broadcast_to_rank(bias, x.ndim)


def apply_gates(
    gates: Float[Array, "*s G"], cell: Float[Array, "*s H"]
) -> tuple[Float[Array, "*s H"], Float[Array, "*s H"]]:
    """Apply an LSTM's input, candidate, forget (biased by 1) and output gates.

    Returns the hidden state and the cell after the step.
    """
    i, g, f, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _lstm_shapes(features: int, width: int, num_layers: int) -> dict[str, tuple[int, int]]:
    del num_layers  # There is one.
    return {LSTM: (features + width, 4 * width)}


def _read_by_lstm(
    layers: Layers, inputs: Float[Array, "T B F"], ends: Bool[Array, "T B"]
) -> Float[Array, "T B H"]:
    """Return the hidden states of an LSTM that runs from the last transition to the first.

    Its state is reset to zeros before transitions that end an episode, so that no information
    flows from a later episode.
    """
    layer = layers[LSTM]
    size = layer["b"].shape[-1] // 4
    split = inputs.shape[-1]
    projected = linear({"w": layer["w"][:split], "b": layer["b"]}, inputs)
    recurrent = layer["w"][split:]
    keep = 1.0 - ends.astype(inputs.dtype)

    def advance(state, row):
        projection, keep = row
        hidden, cell = (keep[:, None] * x for x in state)
        hidden, cell = apply_gates(projection + hidden @ recurrent, cell)
        return (hidden, cell), hidden

    start = jnp.zeros((inputs.shape[1], size), inputs.dtype)
    _, hidden = jax.lax.scan(advance, (start, start), (projected, keep), reverse=True)
    return hidden


def _transformer_shapes(features: int, width: int, num_layers: int) -> dict[str, tuple[int, int]]:
    shapes = {f"{TRANSFORMER}/input": (features, width)}
    for i in range(num_layers):
        shapes |= {
            f"{TRANSFORMER}/{i}/heads": (width, 3 * width),
            f"{TRANSFORMER}/{i}/mixed": (width, width),
            f"{TRANSFORMER}/{i}/hidden": (width, _EXPANSION * width),
            f"{TRANSFORMER}/{i}/added": (_EXPANSION * width, width),
        }
    return shapes | {f"{TRANSFORMER}/output": (width, width)}


def _read_by_transformer(
    layers: Layers, inputs: Float[Array, "T B F"], ends: Bool[Array, "T B"]
) -> Float[Array, "T B H"]:
    """Return an embedding of the rest of the episode at each transition."""
    visible, bias = _visible(ends), _bias(len(inputs)).astype(inputs.dtype)

    def mapped(name: str, x: Array) -> Array:
        return linear(layers[f"{TRANSFORMER}/{name}"], x)

    x = mapped("input", jnp.swapaxes(inputs, 0, 1))
    for i in itertools.takewhile(lambda i: f"{TRANSFORMER}/{i}/heads" in layers, itertools.count()):
        heads = mapped(f"{i}/heads", jax.nn.standardize(x))
        heads = heads.reshape(*x.shape[:2], 3, NUM_HEADS, x.shape[-1] // NUM_HEADS)
        query, key, value = (heads[:, :, j] for j in range(3))
        with jax.numpy_dtype_promotion("standard"):  # JAX computes the softmax in float32.
            attended = jax.nn.dot_product_attention(query, key, value, bias=bias, mask=visible)
        x = x + mapped(f"{i}/mixed", attended.reshape(x.shape))
        hidden = jax.nn.gelu(mapped(f"{i}/hidden", jax.nn.standardize(x)))
        x = x + mapped(f"{i}/added", hidden)
    return jnp.swapaxes(jnp.tanh(mapped("output", jax.nn.standardize(x))), 0, 1)


def _visible(ends: Bool[Array, "T B"]) -> Bool[Array, "B 1 T T"]:
    """Return whether a transition (third axis) attends to another one: later in its episode."""
    ends = jnp.swapaxes(ends, 0, 1).astype(jnp.int32)
    episode = jnp.cumsum(ends, axis=1) - ends
    same = episode[:, :, None] == episode[:, None, :]
    later = jnp.triu(jnp.ones(same.shape[1:], bool))
    return (same & later[None])[:, None]


def _bias(length: int) -> Float[np.ndarray, "1 N T T"]:
    """Return the linear biases of the attention logits."""
    step = np.arange(length)
    rates = 2.0 ** (-8.0 * np.arange(1, NUM_HEADS + 1) / NUM_HEADS)
    distance = np.abs(step[:, None] - step[None, :])
    return (-rates[:, None, None] * distance)[None].astype(np.float32)


class Architecture(NamedTuple):
    """A network that reads a trajectory backwards.

    Attributes:
      layer_shapes: maps the number of features of a transition, the width of the network and its
        number of layers to [inputs, outputs] of every linear map, by name.
      apply: maps the linear maps `{name: {"w", "b"}}`, the transitions' features `[T, B, F]` and
        whether each transition ends its episode to numbers from -1 to 1, `[T, B, width]`.
    """

    layer_shapes: Callable[[int, int, int], dict[str, tuple[int, int]]]
    apply: Callable[[Layers, Float[Array, "T B F"], Bool[Array, "T B"]], Float[Array, "T B H"]]


ARCHITECTURES: Mapping[str, Architecture] = {
    LSTM: Architecture(_lstm_shapes, _read_by_lstm),
    TRANSFORMER: Architecture(_transformer_shapes, _read_by_transformer),
}

# See `meta_network._features`.
STATE_FEATURES = 23  # Per transition, besides those of actions and of the agent.
ACTION_FEATURES = (9, 10)  # Per action: the published ones, and one more.
_AT_MOST = {"prior_outputs": 4, "agent_features": 7, "prior_features": 3}
_MAY_BE_0 = ("transformer_layers", *_AT_MOST)


@dataclasses.dataclass(frozen=True)
class MetaNetworkSizes:
    """Widths of the meta-network. The defaults are Disco103's.

    Raises ValueError if a size is out of range.

    Attributes:
      prediction: Y, the logits of each of the predictions y and z.
      prediction_embedding: hidden units of the nets that embed a prediction as one number.
      action_features: features of each action. The published 9, or 10: the tenth is the
        normalised advantage at the action taken and 0 at the others. In the published rule only
        the LSTM reads that advantage; the policy target would have to learn to multiply it with
        the indicator of the action taken.
      action_hidden: channels of the first block over actions, and of the policy target's.
      action_embedding: channels of the second block over actions.
      trajectory: units of the backward LSTM.
      transformer_layers: layers of a backward transformer (`disco.architectures`) with the width of
        the LSTM, which it replaces; 0 for the LSTM.
      lifetime: units of the lifetime RNN.
      lifetime_input: numbers that it reads per update.
      prior_outputs: outputs for each transition that change the prior of the policy target: 1 for
        the weight of the agent's own logits, 2 for that of the advantage of the action taken, too,
        3 for that of the advantages of all actions, too, 4 for the factor of the agent's steps,
        too (`Rule.step`); 0 for constants (`AnchoredRule.policy_prior`, `advantage_weight`,
        `action_advantage_weight`).
      agent_features: the first so many numbers of `disco.anchored.AGENT_FEATURES`, of the agent's
        progress, that both networks, and the outputs of the prior, read; 0 as published.
      prior_features: numbers of the action taken that the outputs of the prior read: with 1 the
        logarithm of its probability, with 2 also that of the ratio to its probability when it was
        taken, with 3 also its normalised advantage (`disco.anchored.prior_features`).
    """

    prediction: int = 600
    prediction_embedding: int = 16
    action_features: int = 9
    action_hidden: int = 16
    action_embedding: int = 2
    trajectory: int = 256
    transformer_layers: int = 0
    lifetime: int = 128
    lifetime_input: int = 16
    prior_outputs: int = 0
    agent_features: int = 0
    prior_features: int = 0

    def __post_init__(self):
        for name, size in vars(self).items():
            least = int(name not in _MAY_BE_0)
            if type(size) is not int or size < least:
                raise ValueError(
                    f"sizes.{name} is {size!r}; expected an integer of at least {least}."
                )
            if size > (most := _AT_MOST.get(name, size)):
                raise ValueError(f"sizes.{name} is {size}; expected 0 to {most}.")
        if self.transformer_layers and self.trajectory % NUM_HEADS:
            raise ValueError(
                f"sizes.trajectory is {self.trajectory}; expected a multiple of the"
                f" transformer's {NUM_HEADS} heads."
            )
        if self.prior_features and not self.prior_outputs:
            raise ValueError(
                f"sizes.prior_features is {self.prior_features} and sizes.prior_outputs 0; expected"
                " outputs that read them."
            )
        if self.action_features not in ACTION_FEATURES:
            expected = " or ".join(map(str, ACTION_FEATURES))
            raise ValueError(
                f"sizes.action_features is {self.action_features}; expected {expected}."
            )

    @property
    def features(self) -> int:
        """Features per transition that the backward LSTM and the lifetime RNN read."""
        return STATE_FEATURES + self.agent_features + 2 * self.action_embedding

    @property
    def is_published(self) -> bool:
        """Whether the network has no inputs and outputs but the published ones."""
        return not (self.agent_features or self.prior_outputs or self.prior_features)

    @property
    def architecture(self) -> str:
        """The architecture's name in `disco.architectures`."""
        return TRANSFORMER if self.transformer_layers else LSTM
