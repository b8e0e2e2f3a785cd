"""An agent that acts by a given policy; the user's own code trains it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import dm_env
import jax
from jaxtyping import Array, PRNGKeyArray

from agents.history import HistorySpec
from agents.protocol import Batch, Experience, Mode, Update


def _no_memory(batch_size: int) -> None:
    del batch_size


@dataclasses.dataclass(frozen=True)
class PolicyAgent:
    """An agent that acts by a policy and does not learn, for users' own training code.

    It implements the acting half of `agents.protocol.Agent`: `init` and `update` raise.

    Attributes:
      policy: from parameters, observations of B environments and memory to logits `[B, A]` and
        the memory after it, as `agents.networks.Network.policy`.
      initial_memory: as `agents.networks.Network.initial_memory`.
      history: the past observations that an observation contains.
      num_environments: number of parallel environments.
      unroll_length: steps of an unroll.
    """

    policy: Callable[[Any, Any, Any], tuple[Array, Any]]
    initial_memory: Callable[[int], Any] = _no_memory
    history: HistorySpec = HistorySpec()
    num_environments: int = 16
    unroll_length: int = 16

    @property
    def experience(self) -> Experience:
        return Experience(self.num_environments, self.unroll_length, history=self.history)

    def init(self, key: PRNGKeyArray) -> Any:
        raise NotImplementedError("The parameters of a policy are its user's to make.")

    def acting_state(self, state: Any) -> Any:
        return state

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

    def update(self, state: Any, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        raise NotImplementedError("A policy is trained by its user's code.")
