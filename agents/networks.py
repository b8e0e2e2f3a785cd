"""Networks with the outputs that a rule asks for (DiscoRL, Methods, "Agent").

    observation --encoder--> (--memory-->) embedding --heads--> logits, y, value, ...  (per state)
                 embedding --action-conditional model--> z, q, aux_pi, ...             (per action)

The action-conditional model is one step of an LSTM whose cell is a linear map of the embedding
and whose input is the action. The memory, if there is one, is an LSTM over time.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
import environments
from agents import history
from agents.encoders import Encoder, NetworkConfig, computing_in
from agents.history import HistorySpec
from disco.types import Leaf, taken
from disco.values import select_action
from environments import ObservationSpec

# Of the heads on the embedding. Small, so that an initial agent's policy is nearly uniform.
_HEAD_STDDEV = 1e-2


# The papers' networks, by name.
NETWORKS: Mapping[str, NetworkConfig] = {
    # Vectors; the sizes of the published meta-training notebook's agent.
    "mlp": NetworkConfig(),
    # The deep residual net (Espeholt et al. 2018, figure 3).
    "impala": NetworkConfig(torso=(256,), channels=(16, 32, 32)),
    # DiscoRL's network for Atari (Methods), with about as many parameters as MuZero's.
    "impala_large": NetworkConfig(
        torso=(768,), channels=(256, 384, 384, 256), model=1024, head=(1024,)
    ),
    # IMPALA's network for DMLab-30: the residual net, the language channel, a memory.
    "dmlab": NetworkConfig(torso=(256,), channels=(16, 32, 32), memory=256),
    # After NLE's baseline: embedded glyphs, a crop around the hero, the message.
    "nethack": NetworkConfig(torso=(512, 512), channels=(16, 32, 32)),
    # Crafter's images with a history of 32 frames (DiscoRL, Extended Data Table 6).
    "crafter": NetworkConfig(torso=(512,), channels=(32, 64, 64)),
}


class Network(NamedTuple):
    """A network as pure functions.

    Observations are as in a `disco.Trajectory`: leaves `[*s, ...]`, or a `History` if the agent
    stacks frames or has a memory.

    Attributes:
      init: from a key to parameters.
      policy: from parameters, observations of B states and the memory's state to logits `[B, A]`
        and the memory's next state. For acting; cheaper than all outputs. It resets the memory
        where `History.age` is 0.
      unroll: from parameters and a trajectory to all outputs, each `[T+1, B, ...]`, and to those
        per action also at the actions taken (`disco.types.taken`).
      initial_memory: from B to the memory's state before an episode, leaves `[B, ...]`; None if
        there is none.
      history: the past observations that an observation contains.
    """

    init: Callable[[PRNGKeyArray], disco.Params]
    policy: Callable[[disco.Params, Any, PyTree[Array]], tuple[Float[Array, "B A"], PyTree[Array]]]
    unroll: disco.Unroll
    initial_memory: Callable[[int], PyTree[Array]] = lambda batch_size: None
    history: HistorySpec = HistorySpec()


def make_network(
    config: NetworkConfig,
    observation_spec: ObservationSpec,
    num_actions: int,
    output_shapes: Mapping[str, tuple[int, ...]],
    frame_stack: int = 1,
    burn_in: int = 0,
) -> Network:
    """Return a network with the outputs of a rule.

    An output of rank 2 has a row per action and comes from the action-conditional model; the others
    come from the embedding. `frame_stack` frames are one input. The burn-in is of rows at the start
    of each unroll that only update the memory: they have no outputs, and no gradient flows through
    them.
    """
    history_spec = HistorySpec(frame_stack=frame_stack, memory=config.memory > 0, burn_in=burn_in)
    functions = NetworkFunctions(config, observation_spec, num_actions, output_shapes, history_spec)
    outputs = hk.without_apply_rng(hk.transform(functions.outputs))
    policy = hk.without_apply_rng(hk.transform(functions.policy))
    return Network(
        init=lambda key: outputs.init(
            key,
            history.example(history_spec, observation_spec),
            functions.initial_memory(1),
            jnp.zeros((0, 1), jnp.int32),
        ),
        initial_memory=functions.initial_memory,
        policy=policy.apply,
        unroll=lambda params, trajectory: outputs.apply(
            params, trajectory.observation, trajectory.core_state, trajectory.action
        ),
        history=history_spec,
    )


@dataclasses.dataclass(frozen=True)
class NetworkFunctions:
    """The functions of a network, for `hk.transform`; the fields are as in `make_network`."""

    config: NetworkConfig
    observation_spec: ObservationSpec
    num_actions: int
    output_shapes: Mapping[str, tuple[int, ...]]
    history: HistorySpec

    def initial_memory(self, batch_size: int) -> hk.LSTMState | None:
        if not self.config.memory:
            return None
        zeros = jnp.zeros((batch_size, self.config.memory), jnp.result_type(float))
        return hk.LSTMState(hidden=zeros, cell=zeros)

    def policy(self, observation: Any, memory: Any) -> tuple[Array, Any]:
        """Return the policy's logits at one step, and the memory after it."""
        embedding, memory = self.embed_step(observation, memory)
        return small_head("logits_head", self.num_actions)(embedding), memory

    def embed_step(self, observation: Any, memory: Any) -> tuple[Array, Any]:
        """Return the embedding `[B, E]` of one step, and the memory after it."""
        embedding = self._embed(observation)
        if self.history.is_history:
            embedding = embedding[0]
        if self.config.memory:
            memory = _reset_where(observation.age[0] == 0, memory)
            embedding, memory = hk.LSTM(self.config.memory, name="memory")(embedding, memory)
        return embedding, memory

    def embed_unroll(self, observation: Any, memory: Any) -> Array:
        """Return the embeddings `[T+1, B, E]` along an unroll."""
        embedding = self._embed(observation)
        if self.config.memory:
            embedding = self._unroll_lstm(embedding, observation.age == 0, memory)
        return embedding

    def outputs(self, observation: Any, memory: Any, action: Leaf) -> dict[str, Array]:
        embedding = self.embed_unroll(observation, memory)
        by_name = {}
        by_action: Any = None  # Of no use to a rule without outputs per action.
        by_action_taken: Any = None
        if self.config.model and any(len(shape) == 2 for shape in self.output_shapes.values()):
            narrow = jnp.dtype(self.config.dtype) if self.config.dtype != "float32" else None
            with computing_in(narrow or embedding.dtype):
                model = ActionConditionalModel(self.config.model)
                by_action = model(embedding.astype(narrow or embedding.dtype), self.num_actions)
            by_action = by_action.astype(embedding.dtype)
            by_action_taken = select_action(by_action, action)
        for name, shape in self.output_shapes.items():
            if len(shape) == 1:
                by_name[name] = small_head(f"{name}_head", *shape)(embedding)
            elif self.config.model:
                head = hk.nets.MLP((*self.config.head, shape[1]), name=f"{name}_head")
                by_name[name] = head(by_action)
                by_name[taken(name)] = head(by_action_taken)
            else:
                hidden = hk.nets.MLP(self.config.head, activate_final=True, name=f"{name}_hidden")
                flat = small_head(f"{name}_head", math.prod(shape))(hidden(embedding))
                by_name[name] = flat.reshape(*flat.shape[:-1], *shape)
                by_name[taken(name)] = select_action(by_name[name], action)
        return by_name

    def _embed(self, observation: Any) -> Array:
        stacked = history.stack(self.history, self.observation_spec, observation)
        return Encoder(self.config, self.observation_spec)(stacked)

    def _unroll_lstm(self, embedding: Array, is_first: Leaf, memory: Any) -> Array:
        """Return the LSTM's outputs along an unroll, after the burn-in."""
        burn_in, lstm = self.history.burn_in, hk.LSTM(self.config.memory, name="memory")

        def step(memory, row):
            x, starts = row
            return lstm(x, _reset_where(starts, memory))[::-1]

        if burn_in:
            memory, _ = hk.scan(step, memory, (embedding[:burn_in], is_first[:burn_in]))
            memory = jax.lax.stop_gradient(memory)
        return hk.scan(step, memory, (embedding[burn_in:], is_first[burn_in:]))[1]


def small_head(name: str, size: int) -> hk.Linear:
    """Return a linear head whose initial outputs are nearly 0."""
    return hk.Linear(size, w_init=hk.initializers.TruncatedNormal(_HEAD_STDDEV), name=name)


def _reset_where(is_first: Leaf, memory: hk.LSTMState) -> hk.LSTMState:
    """Return the memory's state, set to zero where an episode begins."""
    return jax.tree.map(lambda x: jnp.where(is_first[:, None], 0.0, x).astype(x.dtype), memory)


class ActionConditionalModel(hk.Module):
    """One LSTM step from each state with each action; one embedding per state and action."""

    def __init__(self, size: int, name: str = "action_conditional_model"):
        super().__init__(name=name)
        self._size = size

    def __call__(self, embedding: Float[Array, "*s E"], num_actions: int) -> Float[Array, "*s A H"]:
        cell = hk.Linear(self._size, name="cell")(embedding)
        fan_in = num_actions + self._size
        initializer = hk.initializers.TruncatedNormal(fan_in**-0.5)
        # The hidden state's contribution to the gates is equal for all actions and computed once.
        # A one-hot action's contribution is a row of the action's weight matrix.
        by_hidden = hk.Linear(4 * self._size, w_init=initializer, name="gates")(jnp.tanh(cell))
        by_action = hk.get_parameter(
            "action_gates", (num_actions, 4 * self._size), cell.dtype, initializer
        )
        by_hidden = by_hidden[..., None, :]
        by_action = jax.lax.broadcast_to_rank(by_action, by_hidden.ndim)
        i, g, f, o = jnp.split(by_hidden + by_action, 4, axis=-1)
        cell = jax.nn.sigmoid(f + 1.0) * cell[..., None, :] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(cell)


@functools.lru_cache(maxsize=64)
def flat_network(
    config: NetworkConfig,
    dynamics: Any,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    frame_stack: int = 1,
    burn_in: int = 0,
) -> Network:
    """Return a network of one parameter vector; equal arguments give the same object.

    Only the specs of `dynamics` are used, whose actions must be discrete (else ValueError);
    `shapes` are those of the outputs (`make_network`).
    """
    spec, num_actions = dynamics.observation_spec(), environments.num_actions(dynamics)
    return with_flat_parameters(
        make_network(config, spec, num_actions, dict(shapes), frame_stack, burn_in)
    )


def with_flat_parameters(network: Network) -> Network:
    """Return the network as a function of one parameter vector."""
    init, unravel = flat_init(network.init)
    return network._replace(
        init=init,
        policy=lambda params, *inputs: network.policy(unravel(params), *inputs),
        unroll=lambda params, trajectory: network.unroll(unravel(params), trajectory),
    )


def flat_init(
    init: Callable[[PRNGKeyArray], disco.Params],
) -> tuple[Callable[[PRNGKeyArray], Float[Array, "P"]], Callable[[Float[Array, "P"]], Any]]:
    """Return an `init` that gives one vector, and the function from that vector to the arrays."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(init, jax.random.key(0)))
    ends = np.cumsum([x.size for x in leaves])

    def unravel(vector):
        parts = jnp.split(vector, ends[:-1])
        return structure.unflatten(
            part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)
        )

    return lambda key: ravel_pytree(init(key))[0], unravel
