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
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

import disco
import environments
from agents import history, scales
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


@dataclasses.dataclass(frozen=True)
class PolicyNetwork:
    """A network with an embedding and a policy, as functions of one parameter vector.

    Equal networks are the same functions, so that programs of them are compiled once. Observations
    are as in a `disco.Trajectory`: leaves `[*s, ...]`, or a `History` if the agent stacks frames or
    has a memory. Subclasses have `_everything`, which calls all modules, and `_policy`.

    Attributes:
      config: sizes.
      dynamics: of which only the specs are used; actions must be discrete (else ValueError).
      frame_stack: frames in one input.
      burn_in: rows at the start of each unroll that only update the memory: they have no outputs,
        and no gradient flows through them.
    """

    config: NetworkConfig
    dynamics: Any
    frame_stack: int = 1
    burn_in: int = 0

    def __post_init__(self):
        environments.num_actions(self.dynamics)  # Raises ValueError.

    @property
    def num_actions(self) -> int:
        """A."""
        return environments.num_actions(self.dynamics)

    @property
    def history(self) -> HistorySpec:
        """The past observations that an observation contains."""
        return HistorySpec(self.frame_stack, self.config.memory > 0, self.burn_in)

    def init(self, key: PRNGKeyArray) -> Float[Array, "P"]:
        """Return initial parameters."""
        return _flat(self)[0](key)

    def initial_memory(self, batch_size: int) -> hk.LSTMState | None:
        """Return the memory before an episode, leaves `[B, ...]`; None if there is none."""
        if not self.config.memory:
            return None
        zeros = jnp.zeros((batch_size, self.config.memory), jnp.result_type(float))
        return hk.LSTMState(hidden=zeros, cell=zeros)

    def policy(
        self, params: disco.Params, observation: Any, memory: Any
    ) -> tuple[Float[Array, "*s A"], Any]:
        """Return the logits at one step, and the memory after it; cheaper than all outputs.

        The memory is reset where `History.age` is 0.
        """
        return self.apply(self._policy, params, observation, memory)

    def unravel(self, params: disco.Params) -> Any:
        """Return the parameters by module and name."""
        return _flat(self)[1](params)

    def mean_input(self, observation: Any) -> Float[Array, ""]:
        """Return the mean absolute value of the numbers of observations."""
        return scales.mean_input(self._spec, history.stack(self.history, self._spec, observation))

    def step_factors(self, params: disco.Params, of_inputs: Array) -> Float[Array, "P"]:
        """Return the factors of an optimiser's steps (`agents.scales.factors`)."""
        arrays = self.unravel(params)
        factors = scales.factors(arrays, of_inputs)
        return ravel_pytree(jax.tree.map(lambda f, x: jnp.full_like(x, f), factors, arrays))[0]

    def apply(self, function: Callable[..., Any], params: disco.Params, *inputs: Any) -> Any:
        """Return the result of a function of Haiku modules with these parameters."""
        return hk.without_apply_rng(hk.transform(function)).apply(self.unravel(params), *inputs)

    def _init(self, key: PRNGKeyArray) -> Any:
        """Return initial parameters by module and name."""
        inputs = history.example(self.history, self._spec), self.initial_memory(1)
        return hk.transform(self._everything).init(key, *inputs)

    @property
    def _spec(self) -> ObservationSpec:
        return self.dynamics.observation_spec()

    def _everything(self, observation: Any, memory: Any) -> None:
        raise NotImplementedError

    def _policy(self, observation: Any, memory: Any) -> tuple[Array, Any]:
        raise NotImplementedError

    def _embed_step(self, observation: Any, memory: Any) -> tuple[Array, Any]:
        """Return the embedding `[B, E]` of one step, and the memory after it."""
        embedding = self._embed(observation)
        if self.history.is_history:
            embedding = embedding[0]
        if self.config.memory:
            memory = _reset_where(observation.age[0] == 0, memory)
            embedding, memory = hk.LSTM(self.config.memory, name="memory")(embedding, memory)
        return embedding, memory

    def _embed_unroll(self, observation: Any, memory: Any) -> Array:
        """Return the embeddings `[T+1, B, E]` along an unroll."""
        embedding = self._embed(observation)
        if self.config.memory:
            embedding = self._unroll_lstm(embedding, observation.age == 0, memory)
        return embedding

    def _embed(self, observation: Any) -> Array:
        stacked = history.stack(self.history, self._spec, observation)
        return Encoder(self.config, self._spec)(stacked)

    def _unroll_lstm(self, embedding: Array, is_first: Leaf, memory: Any) -> Array:
        """Return the LSTM's outputs along an unroll, after the burn-in."""
        burn_in, lstm = self.burn_in, hk.LSTM(self.config.memory, name="memory")

        def step(memory, row):
            x, starts = row
            return lstm(x, _reset_where(starts, memory))[::-1]

        if burn_in:
            memory, _ = hk.scan(step, memory, (embedding[:burn_in], is_first[:burn_in]))
            memory = jax.lax.stop_gradient(memory)
        return hk.scan(step, memory, (embedding[burn_in:], is_first[burn_in:]))[1]


@dataclasses.dataclass(frozen=True)
class Network(PolicyNetwork):
    """A network with the outputs of a rule; further fields as in `PolicyNetwork`.

    An output of rank 2 has a row per action and comes from the action-conditional model; the others
    come from the embedding.

    Attributes:
      shapes: of the outputs, by name.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...] = dataclasses.field(kw_only=True)

    def unroll(
        self, params: disco.Params, trajectory: disco.Trajectory
    ) -> dict[str, Float[Array, "..."]]:
        """Return all outputs `[T+1, B, ...]`.

        Those per action are there at the actions taken, too (`disco.types.taken`).
        """
        inputs = trajectory.observation, trajectory.core_state, trajectory.action
        return self.apply(self._outputs, params, *inputs)

    def _everything(self, observation: Any, memory: Any) -> None:
        """Call all modules."""
        self._outputs(observation, memory, jnp.zeros((0, 1), jnp.int32))

    def _policy(self, observation: Any, memory: Any) -> tuple[Array, Any]:
        embedding, memory = self._embed_step(observation, memory)
        return small_head("logits_head", self.num_actions)(embedding), memory

    def _outputs(self, observation: Any, memory: Any, action: Leaf) -> dict[str, Array]:
        embedding = self._embed_unroll(observation, memory)
        by_name = {}
        by_action: Any = None  # Of no use to a rule without outputs per action.
        by_action_taken: Any = None
        if self.config.model and any(len(shape) == 2 for _, shape in self.shapes):
            narrow = jnp.dtype(self.config.dtype) if self.config.dtype != "float32" else None
            with computing_in(narrow or embedding.dtype):
                model = ActionConditionalModel(self.config.model)
                by_action = model(embedding.astype(narrow or embedding.dtype), self.num_actions)
            by_action = by_action.astype(embedding.dtype)
            by_action_taken = select_action(by_action, action)
        for name, shape in self.shapes:
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
def _flat(network: PolicyNetwork) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a network's `init` and `unravel`; equal networks, of many agents, share them."""
    return flat_init(network._init)


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
