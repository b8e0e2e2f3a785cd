"""Agents that act by the policy of one network, whatever they learn by."""

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import dm_env
import jax
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import disco
from agents.history import HistorySpec
from agents.protocol import Batch, Mode, Requirements, Update


@chex.dataclass(frozen=True)
class NetworkState:
    """The learning state of an agent with one network.

    Attributes:
      params: of the network, in one vector.
      optimizer: the optimiser's state, which counts the gradient steps.
    """

    params: disco.Params
    optimizer: optax.OptState


class ActsByPolicy:
    """The acting of an agent that samples from the policy of its network, in both modes.

    The network's parameters are the field `params` of the learning state.
    """

    network: Any  # A `PolicyNetwork`.

    def acting_state(self, state: Any) -> Any:
        return state.params

    def initial_memory(self, batch_size: int, /) -> PyTree[Array]:
        return self.network.initial_memory(batch_size)

    def policy(self, params: Any, observation: Any, memory: Any, /) -> tuple[Array, Any]:
        """Return the logits and the memory after an observation (`Network.policy`)."""
        return self.network.policy(params, observation, memory)

    def act(
        self,
        acting_state: Any,
        memory: Any,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[Any, Array, dict[str, Array]]:
        del mode
        logits, memory = self.policy(acting_state, timestep.observation, memory)
        return memory, jax.random.categorical(key, logits), {"behaviour_logits": logits}


def _no_memory(batch_size: int) -> None:
    """Return the memory of a policy without one."""


@dataclasses.dataclass(frozen=True)
class PolicyAgent(ActsByPolicy):
    """An agent that acts by a policy and does not learn, for users' own training code.

    It implements the acting half of `agents.protocol.Agent`: `init` and `update` raise. `policy`,
    `initial_memory` and `history` are as in `agents.networks.Network`.
    """

    policy: Callable[[Any, Any, Any], tuple[Array, Any]]  # pyright: ignore[reportIncompatibleMethodOverride]
    initial_memory: Callable[[int], Any] = _no_memory  # pyright: ignore[reportIncompatibleMethodOverride]
    history: HistorySpec = HistorySpec()
    num_environments: int = 16
    unroll_length: int = 16

    @property
    def requirements(self) -> Requirements:
        return Requirements(self.num_environments, self.unroll_length, history=self.history)

    def init(self, key: PRNGKeyArray) -> Any:
        raise NotImplementedError("The parameters of a policy are its user's to make.")

    def acting_state(self, state: Any) -> Any:
        return state

    def update(self, state: Any, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        raise NotImplementedError("A policy is trained by its user's code.")


def some_sequences(trajectory: disco.Trajectory, index: Int[Array, "M"]) -> disco.Trajectory:
    """Return M of the trajectory's sequences, each with the memory before it."""
    core_state = jax.tree.map(lambda x: x[index], trajectory.core_state)
    rest = dataclasses.replace(trajectory, core_state=None)
    return dataclasses.replace(jax.tree.map(lambda x: x[:, index], rest), core_state=core_state)
