"""The state of a discovery run."""

import chex
import optax
from jaxtyping import Array, Int

import disco
from meta.value_function import ValueFunctionState
from training.collection import ActorState
from training.iteration import TrainingState


@chex.dataclass(frozen=True)
class Lifetime:
    """The task of an agent and how much of its experience budget it has consumed.

    Attributes:
      task: index of the agent's task among those of its group.
      resets: how often this agent of the population was reset so far; 0 in the first generation.
      steps: environment steps since the last reset.
      budget: environment steps after which the agent is reset.
    """

    task: Int[Array, "*agents"]
    resets: Int[Array, "*agents"]
    steps: Int[Array, "*agents"]
    budget: Int[Array, "*agents"]


@chex.dataclass(frozen=True)
class Member:
    """One agent of the population with its meta-learning state; stacked over agents in use.

    Attributes:
      agent: parameters, environments and replay.
      validation: environments of the validation trajectories; None outside JAX.
      value: the meta-value function.
      lifetime: task and experience budget.
      meta_optimizer: the Adam state of the agent's meta-gradient. Resets do not change it.
    """

    agent: TrainingState
    validation: ActorState | None
    value: ValueFunctionState
    lifetime: Lifetime
    meta_optimizer: optax.OptState


@chex.dataclass(frozen=True)
class DiscoveryState:
    """The whole state of a discovery run; what a checkpoint holds.

    Attributes:
      rule: the newest rule, by which the agents learn.
      average: the moving average of the rules so far, to be exported.
      groups: the agents of each group of environments with common specs, stacked.
      task_meta_steps: for each group, the meta-steps that agents have spent on each of its tasks.
      meta_step: number of meta-steps so far.
    """

    rule: disco.DiscoveredRule
    average: disco.DiscoveredRule
    groups: tuple[Member, ...]
    task_meta_steps: tuple[Int[Array, "_tasks"], ...]
    meta_step: Int[Array, ""]
