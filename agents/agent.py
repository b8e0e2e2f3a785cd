"""The generic agent: acts, replays, and learns by any rule.

One update (`Agent.update`): act for T steps, store the trajectories, mix fresh and replayed
ones into a batch, let the rule turn it into a gradient, apply it.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents import acting, replay
from agents.acting import ActorState, EpisodeStatistics
from agents.flat_parameters import with_flat_parameters
from agents.networks import Network, NetworkConfig, make_network
from agents.optimizers import OPTIMIZERS, agent_optimizer, cosine_schedule
from agents.replay import Replay
from agents.trajectories import side_by_side
from common.ranges import AT_LEAST_0, AT_LEAST_1, FRACTION, POSITIVE
from disco.types import Metrics


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """How an agent collects and learns.

    Attributes:
      network: sizes of its network.
      learning_rate: of its optimiser, the highest; 0 for an agent that learns nothing.
      end_learning_rate: at the end of its life, as a fraction of `learning_rate`. With less than
        1, the learning rate follows half a cosine over `lifetime`.
      warmup: environment steps in which the learning rate rises from 0.
      lifetime: environment steps to the end of its life; 0 for what an evaluation's budget says.
      weight_decay: decoupled, as a fraction of the parameters per unit of learning rate.
      max_abs_update: elementwise bound of the optimiser's update, before the learning rate.
      max_gradient_norm: that gradients are scaled down to; 0 for any.
      optimizer_kind: `"adam"` or `"rmsprop"`.
      num_environments: that it acts in at once.
      unroll_length: T, steps of a trajectory.
      batch_size: B, trajectories that an update learns from.
      replay_ratio: fraction of a batch that is replayed. The rest are the update's fresh
        trajectories: `batch_size * (1 - replay_ratio)` must be `num_environments`, or 0 for
        batches that are drawn from the replay only (fresh ones included, by chance).
      replay_capacity: trajectories that it remembers.
      frame_stack: frames that the network sees at once.
      burn_in: steps before each trajectory that bring a network's memory up to date.
    """

    network: NetworkConfig = NetworkConfig()
    learning_rate: float = 3e-4
    end_learning_rate: float = 1.0
    warmup: int = 0
    lifetime: int = 0
    weight_decay: float = 0.0
    max_abs_update: float = 1.0
    max_gradient_norm: float = 0.0
    optimizer_kind: str = "adam"
    num_environments: int = 2
    unroll_length: int = 29
    batch_size: int = 64
    replay_ratio: float = 1.0
    replay_capacity: int = 1024
    frame_stack: int = 1
    burn_in: int = 0

    def __post_init__(self):
        counts = "num_environments unroll_length batch_size replay_capacity frame_stack".split()
        AT_LEAST_1.require(self, "agent.", *counts)
        # Those of the random policy, which learns nothing, have a learning rate of 0.
        AT_LEAST_0.require(
            self,
            "agent.",
            "learning_rate",
            "warmup",
            "lifetime",
            "weight_decay",
            "max_gradient_norm",
        )
        POSITIVE.require(self, "agent.", "max_abs_update")
        FRACTION.require(self, "agent.", "replay_ratio")
        if self.optimizer_kind not in OPTIMIZERS:
            raise ValueError(
                f"agent.optimizer_kind is {self.optimizer_kind!r}; expected one of"
                f" {', '.join(map(repr, OPTIMIZERS))}."
            )
        if not 0.0 <= self.end_learning_rate <= 1.0:
            raise ValueError(
                f"agent.end_learning_rate is {self.end_learning_rate}; expected 0 to 1, a fraction"
                " of agent.learning_rate."
            )
        if not 0 <= self.burn_in <= self.unroll_length:
            raise ValueError(
                f"agent.burn_in is {self.burn_in}; expected 0 to agent.unroll_length"
                f" ({self.unroll_length})."
            )
        if self.burn_in and not self.network.memory:
            raise ValueError(
                f"agent.burn_in is {self.burn_in} and agent.network.memory 0; expected no burn-in"
                " without a memory."
            )
        fresh = self.batch_size - self.num_replayed
        if fresh not in (0, self.num_environments):
            raise ValueError(
                f"agent.replay_ratio {self.replay_ratio} leaves {fresh} of"
                f" agent.batch_size {self.batch_size} for fresh trajectories; expected"
                f" agent.num_environments ({self.num_environments}) or 0."
            )
        if self.num_replayed and self.replay_capacity < self.num_environments:
            raise ValueError(
                f"agent.replay_capacity is {self.replay_capacity}; expected at least"
                f" agent.num_environments ({self.num_environments})."
            )

    @property
    def num_replayed(self) -> int:
        """Trajectories of a batch that come from the replay."""
        return round(self.batch_size * self.replay_ratio)

    @property
    def steps_per_update(self) -> int:
        """Environment steps that an update consumes."""
        return self.num_environments * self.unroll_length

    def optimizer(
        self, learning_rate: optax.ScalarOrSchedule | None = None
    ) -> optax.GradientTransformation:
        """The optimiser, with this learning rate or another.

        Raises:
          ValueError: if the learning rate is to fall over a lifetime of unknown length.
        """
        if self.end_learning_rate < 1.0 and not self.lifetime:
            raise ValueError(
                f"agent.end_learning_rate is {self.end_learning_rate} and agent.lifetime 0;"
                " expected the environment steps in which the learning rate falls."
            )
        schedule = None
        if self.end_learning_rate < 1.0 or self.warmup:
            num_updates, num_warmup = (
                -(-steps // self.steps_per_update) for steps in (self.lifetime, self.warmup)
            )
            schedule = cosine_schedule(num_updates, self.end_learning_rate, num_warmup)
        return agent_optimizer(
            self.learning_rate if learning_rate is None else learning_rate,
            self.max_abs_update,
            self.weight_decay,
            schedule,
            self.optimizer_kind,
            self.max_gradient_norm,
        )


@chex.dataclass(frozen=True)
class LearnerState:
    """What learning changes: parameters, optimiser, the rule's state."""

    params: disco.Params
    optimizer: optax.OptState
    rule: disco.RuleState


@chex.dataclass(frozen=True)
class AgentState:
    """All of an agent.

    Attributes:
      learner: what learns.
      actor: its environments; None if they are outside JAX.
      replay: its past trajectories; None if it replays none, or outside JAX.
      updates: how many it made.
    """

    learner: LearnerState
    actor: ActorState | None
    replay: Replay | None
    updates: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class Agent:
    """The agent's functions, for one family of environments and rules of one form.

    Those that act (`init`, `start`, `act`, `experience`, `update`) are for JAX environments; with
    a host environment an agent acts by `agents.host_experience`, and learns as any other.

    Attributes:
      config: how it learns.
      environment: the family's dynamics; which task is data.
      network: as `make_network` makes it, its parameters in one vector.
      optimizer: applied to the rule's gradients.
    """

    config: AgentConfig
    environment: environments.JaxEnvironment | environments.HostEnvironment
    network: Network
    optimizer: optax.GradientTransformation

    @classmethod
    def create(
        cls,
        config: AgentConfig,
        environment: environments.JaxEnvironment | environments.HostEnvironment,
        rule: disco.Rule,
    ) -> "Agent":
        """An agent with the outputs that `rule` asks for.

        Raises:
          ValueError: if the environment's actions are not one choice among a number of them.
        """
        num_actions = environments.num_actions(environment)
        network = with_flat_parameters(
            make_network(
                config.network,
                environment.observation_spec(),
                num_actions,
                rule.output_shapes(num_actions),
                config.frame_stack,
                config.burn_in,
            )
        )
        return cls(
            config=config, environment=environment, network=network, optimizer=config.optimizer()
        )

    def init_learner(self, rule: disco.Rule, key: PRNGKeyArray) -> LearnerState:
        """The part of a newborn agent that learns."""
        params = self.network.init(key)
        return LearnerState(
            params=params, optimizer=self.optimizer.init(params), rule=rule.init(params)
        )

    def init(self, rule: disco.Rule, task: PyTree, key: PRNGKeyArray) -> AgentState:
        """A newborn agent."""
        params_key, actor_key = jax.random.split(key)
        learner = self.init_learner(rule, params_key)
        actor = self.start(task, actor_key, self.config.num_environments)
        memory = None
        if self.config.num_replayed:
            _, trajectory, _ = jax.eval_shape(self.act, learner.params, task, actor, actor_key)
            memory = replay.init(trajectory, self.config.replay_capacity)
        return AgentState(
            learner=learner, actor=actor, replay=memory, updates=jnp.zeros((), jnp.int32)
        )

    def act(
        self,
        params: disco.Params,
        task: PyTree,
        actor: ActorState,
        key: PRNGKeyArray,
        num_steps: int | None = None,
    ) -> tuple[ActorState, disco.Trajectory, EpisodeStatistics]:
        """Trajectories of `num_steps` (by default T) steps from the actor's environments."""
        if num_steps is None:
            num_steps = self.config.unroll_length
        return acting.rollout(
            self._jax_environment, self.network, params, task, actor, key, num_steps
        )

    def start(self, task: PyTree, key: PRNGKeyArray, num_environments: int) -> ActorState:
        """Environments at the start of an episode each."""
        return acting.start(self._jax_environment, self.network, task, key, num_environments)

    @property
    def _jax_environment(self) -> environments.JaxEnvironment:
        assert isinstance(self.environment, environments.JaxEnvironment)
        return self.environment

    def experience(
        self, state: AgentState, task: PyTree, key: PRNGKeyArray
    ) -> tuple[AgentState, disco.Trajectory, EpisodeStatistics]:
        """Acts, stores, and draws the batch to learn from."""
        assert state.actor is not None
        act_key, replay_key = jax.random.split(key)
        actor, batch, statistics = self.act(state.learner.params, task, state.actor, act_key)
        memory = state.replay
        if memory is not None:
            memory = replay.insert(memory, batch)
            replayed = replay.sample(memory, replay_key, self.config.num_replayed)
            if self.config.num_replayed < self.config.batch_size:
                batch = side_by_side([batch, replayed])
            else:
                batch = replayed
        return dataclasses.replace(state, actor=actor, replay=memory), batch, statistics

    def learn(
        self, rule: disco.Rule, learner: LearnerState, batch: disco.Trajectory
    ) -> tuple[LearnerState, disco.Params, disco.Aux]:
        """One update by the rule: the learner after it, the gradients, and what else came."""
        gradients, aux = rule.gradient(learner.params, learner.rule, batch, self.network.unroll)
        return self.apply(learner, gradients, aux), gradients, aux

    def apply(self, learner: LearnerState, gradients: disco.Params, aux: disco.Aux) -> LearnerState:
        """Applies a gradient."""
        updates, optimizer = self.optimizer.update(gradients, learner.optimizer, learner.params)
        params = optax.apply_updates(learner.params, updates)
        return LearnerState(params=params, optimizer=optimizer, rule=aux.state)

    def update(
        self, rule: disco.Rule, state: AgentState, task: PyTree, key: PRNGKeyArray
    ) -> tuple[AgentState, EpisodeStatistics, Metrics]:
        """Acts and learns once."""
        state, batch, statistics = self.experience(state, task, key)
        learner, gradients, aux = self.learn(rule, state.learner, batch)
        metrics = aux.metrics | {"gradient_norm": optax.tree.norm(gradients)}
        state = dataclasses.replace(state, learner=learner, updates=state.updates + 1)
        return state, statistics, metrics
