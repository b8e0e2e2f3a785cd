"""What agents that learn by gradient steps on a loss share: PPO, DPO, DiCE, Muesli and MuZero.

The loss itself is in each one's package, as `agents/ppo/losses.py`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import disco
import environments
from agents.networks import NetworkConfig
from agents.policy_agent import ActsByPolicy, NetworkState
from agents.protocol import Requirements, UpdateSpec
from disco.types import Metrics
from disco_common.ranges import AtLeast0, Count, Fraction, Positive, require_ranges

StateT = TypeVar("StateT", bound=NetworkState)
AgentT = TypeVar("AgentT", bound="LossAgent")


@dataclasses.dataclass(frozen=True)
class LossAgentConfig:
    """Settings that PPO, DPO, DiCE and MuZero share; Muesli's agent has those of rules' agents.

    Attributes:
      network: sizes of the network.
      learning_rate: of Adam, the peak.
      total_steps: environment steps in which the learning rate falls linearly to 0; 0 for a
        constant one, None for the run's (`agents.registry.ConfiguredAlgorithm.for_run`).
      max_gradient_norm: global norm that gradients are clipped to; 0 for no clipping.
      num_environments: number of parallel environments.
      unroll_length: T, steps of each environment between two updates.
      discount: gamma.
      frame_stack: frames in one input of the network.
    """

    network: NetworkConfig = NetworkConfig()
    learning_rate: Positive = 3e-3
    total_steps: AtLeast0[int] | None = 0
    max_gradient_norm: AtLeast0[float] = 0.5
    num_environments: Count = 8
    unroll_length: Count = 16
    discount: Fraction = 0.99
    frame_stack: Count = 1

    def __post_init__(self):
        require_ranges(self)

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates."""
        return self.num_environments * self.unroll_length


@dataclasses.dataclass(frozen=True)
class LossAgent(ActsByPolicy):
    """An agent (`agents.protocol.Agent`) for discrete actions with one network and a loss.

    Agents that differ in nothing but the learning rate share a compiled program.

    Attributes:
      config: its settings, with a `learning_rate`.
      network: as pure functions of one parameter vector.
      learning_rate: in place of the configuration's.
    """

    config: Any = dataclasses.field(metadata={"static": True})
    network: Any = dataclasses.field(metadata={"static": True})
    learning_rate: Float[Array, ""] | None = None

    @classmethod
    def create(cls: type[AgentT], config: Any, dynamics: Any) -> AgentT:
        """Make an agent for dynamics, of which only the specs are used."""
        return cls(config=config, network=cls.network_for(config, dynamics))

    @classmethod
    def make(cls: type[AgentT], config: Any, task: environments.Environment) -> AgentT:
        """Return the agent of a config for a task; raise ValueError where it cannot act.

        The agent's own `config.learning_rate` is 1, so that agents which differ in it only share a
        program; the rate is `peak_rate`.
        """
        agent = cls.create(dataclasses.replace(config, learning_rate=1.0), task.dynamics)
        return dataclasses.replace(agent, learning_rate=jnp.float32(config.learning_rate))

    @staticmethod
    def network_for(config: Any, dynamics: Any) -> Any:
        """Return the network; those of equal arguments are equal."""
        raise NotImplementedError

    @property
    def optimizer(self) -> optax.GradientTransformation:
        raise NotImplementedError

    @property
    def peak_rate(self) -> Any:
        """The learning rate, before it falls."""
        return self.config.learning_rate if self.learning_rate is None else self.learning_rate

    def on_policy_requirements(self, gradient_steps: int, **others: Any) -> Requirements:
        """Return the requirements of an agent that learns from each unroll once."""
        number = self.config.num_environments
        return Requirements(
            num_environments=number,
            unroll_length=self.config.unroll_length,
            history=self.network.history,
            updates=(UpdateSpec(batch_size=number, gradient_steps=gradient_steps),),
            **others,
        )

    def init(self, key: PRNGKeyArray) -> Any:
        params = self.network.init(key)
        return NetworkState(params=params, optimizer=self.optimizer.init(params))

    def step(
        self, state: StateT, loss: Callable[[disco.Params], tuple[Array, Any]]
    ) -> tuple[StateT, Any, Metrics]:
        """Make a gradient step on a loss, a function of the parameters with auxiliary results.

        Returns:
          The state after it, the loss's auxiliary results, and the gradient's norm as a metric.
        """
        gradients, aux = jax.grad(loss, has_aux=True)(state.params)
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        after = dataclasses.replace(state, params=params, optimizer=optimizer)
        return after, aux, {"gradient_norm": optax.tree.norm(gradients)}
