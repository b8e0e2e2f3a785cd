"""The agent that learns by an update rule, discovered or hand-designed.

In an update (`RuleAgent.learn`) the rule makes a gradient of a batch, which the optimiser applies.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import chex
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import disco
import environments
from agents.history import HistorySpec
from agents.networks import Network, NetworkConfig
from agents.optimizers import OPTIMIZERS, agent_optimizer, cosine_schedule
from agents.policy_agent import ActsByPolicy, NetworkState
from agents.protocol import Batch, ReplaySpec, Requirements, Update, UpdateSpec
from agents.scales import Scales
from disco_common.pytrees import register_dataclass
from disco_common.ranges import AtLeast0, Count, Fraction, Positive, require_ranges


@dataclasses.dataclass(frozen=True)
class RuleAgentConfig:
    """An agent's settings of acting and learning.

    Attributes:
      network: sizes of its network.
      learning_rate: of its optimiser, the peak.
      end_learning_rate: at the end of the lifetime, as a fraction of `learning_rate`. If less than
        1, the learning rate follows half a cosine over `lifetime`.
      warmup: environment steps in which the learning rate rises linearly from 0.
      lifetime: environment steps over which the learning rate falls; 0 for an evaluation's budget.
        Nothing ends with them.
      weight_decay: decoupled, as a fraction of the parameters per unit of learning rate.
      max_abs_update: elementwise bound of the optimiser's update, before the learning rate.
      max_gradient_norm: global norm that gradients are clipped to; 0 for no clipping.
      optimizer_kind: `"adam"` or `"rmsprop"`.
      num_environments: number of parallel environments.
      unroll_length: T, steps of a trajectory.
      batch_size: B, trajectories in an update's batch.
      replay_ratio: fraction of a batch that is replayed. The rest are the newest trajectories, one
        per environment: `batch_size * (1 - replay_ratio)` must be `num_environments`, or 0 for
        batches that are drawn from the replay only.
      replay_capacity: trajectories in the replay.
      reward_scale: factor of the rewards that the agent learns from; those of records and
        scores are not scaled.
      adapts_steps, adapts_rewards: whether the steps of layers are adapted to the scale of their
        inputs, and the rewards to theirs (`agents.scales`).
      frame_stack: frames in one input of the network.
      burn_in: steps before each trajectory that only update the network's memory.
    """

    network: NetworkConfig = NetworkConfig()
    learning_rate: AtLeast0[float] = 3e-4
    end_learning_rate: Fraction = 1.0
    warmup: AtLeast0[int] = 0
    lifetime: AtLeast0[int] = 0
    weight_decay: AtLeast0[float] = 0.0
    max_abs_update: Positive = 1.0
    max_gradient_norm: AtLeast0[float] = 0.0
    optimizer_kind: str = "adam"
    num_environments: Count = 2
    unroll_length: Count = 29
    batch_size: Count = 64
    replay_ratio: Fraction = 1.0
    replay_capacity: Count = 1024
    reward_scale: Positive = 1.0
    adapts_steps: bool = False
    adapts_rewards: bool = False
    frame_stack: Count = 1
    burn_in: int = 0

    _PREFIX = "agent."  # Of the fields' names in messages on their ranges.

    def __post_init__(self):
        require_ranges(self, self._PREFIX)
        if self.optimizer_kind not in OPTIMIZERS:
            raise ValueError(
                f"agent.optimizer_kind is {self.optimizer_kind!r}; expected one of"
                f" {', '.join(map(repr, OPTIMIZERS))}."
            )
        require_burn_in(self, "agent.")
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
        """Replayed trajectories of a batch."""
        return round(self.batch_size * self.replay_ratio)

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates."""
        return self.num_environments * self.unroll_length

    def updates_in(self, num_steps: int) -> int:
        """Return how many updates so many environment steps have; parts of one count as one."""
        return -(-num_steps // self.steps_per_update)

    def with_replay(
        self, replay_ratio: float, num_environments: int | None = None
    ) -> "RuleAgentConfig":
        """Return it with replay: a fresh trajectory per environment, and replayed ones."""
        number = num_environments or self.num_environments
        return dataclasses.replace(
            self,
            num_environments=number,
            replay_ratio=replay_ratio,
            batch_size=round(number / (1.0 - replay_ratio)),
        )

    def with_settings(self, settings: Mapping[str, Any]) -> "RuleAgentConfig":
        """Return it with the learning rate, its end and the replay ratio that settings give."""
        ratio = settings.get("replay_ratio", self.replay_ratio)
        config = self if ratio == self.replay_ratio else self.with_replay(ratio)
        rates = ("learning_rate", "end_learning_rate")
        return dataclasses.replace(config, **{x: settings[x] for x in rates if x in settings})

    def requirements(self, history: HistorySpec) -> Requirements:
        """Return the requirements of an agent whose network reads this history."""
        replay = None
        if self.num_replayed:
            replay = ReplaySpec(capacity=self.replay_capacity * self.unroll_length)
        update = UpdateSpec(batch_size=self.batch_size, num_replayed=self.num_replayed)
        return Requirements(
            num_environments=self.num_environments,
            unroll_length=self.unroll_length,
            history=history,
            replay=replay,
            updates=(update,),
        )

    def scaled(self, trajectory: disco.Trajectory) -> disco.Trajectory:
        """Return the trajectory with the rewards that the agent learns from."""
        return dataclasses.replace(trajectory, reward=self.reward_scale * trajectory.reward)

    def optimizer(
        self,
        learning_rate: optax.ScalarOrSchedule | None = None,
        num_updates: Float[Array, ""] | None = None,
    ) -> optax.GradientTransformation:
        """Return the optimiser, with the configured learning rate, or the given one.

        It falls over `lifetime`, or over the given number of updates.

        Raises:
          ValueError: if `end_learning_rate` is less than 1 and `lifetime` is 0.
        """
        if self.end_learning_rate < 1.0 and not self.lifetime and num_updates is None:
            raise ValueError(
                f"agent.end_learning_rate is {self.end_learning_rate} and agent.lifetime 0;"
                " expected the environment steps in which the learning rate falls."
            )
        schedule = None
        if self.end_learning_rate < 1.0 or self.warmup:
            number = self.updates_in(self.lifetime) if num_updates is None else num_updates
            num_warmup = self.updates_in(self.warmup)
            schedule = cosine_schedule(number, self.end_learning_rate, num_warmup)
        return agent_optimizer(
            self.learning_rate if learning_rate is None else learning_rate,
            self.max_abs_update,
            self.weight_decay,
            schedule,
            self.optimizer_kind,
            self.max_gradient_norm,
        )


def require_burn_in(config: Any, prefix: str = "") -> None:
    """Refuse a burn-in that is longer than an unroll, or that no memory reads."""
    most = config.unroll_length if config.network.memory else 0
    if not 0 <= config.burn_in <= most:
        raise ValueError(
            f"{prefix}burn_in is {config.burn_in}; expected 0 to {most}: at most {prefix}"
            f"unroll_length, and none without {prefix}network.memory."
        )


@chex.dataclass(frozen=True)
class LearnerState(NetworkState):
    """The learning state, with the rule's, and scales if the agent adapts to them."""

    rule_state: disco.RuleState
    scales: Scales | None = None


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RuleAgent(ActsByPolicy):
    """An agent that learns by a rule (`agents.protocol.Agent`), with one parameter vector.

    Agents whose rules have the same structure and sizes share one compiled program. So do those of
    other learning rates and lifetimes, where `learning_rate` and `num_updates`, over which it
    falls, replace those of the configuration.
    """

    config: RuleAgentConfig = dataclasses.field(metadata={"static": True})
    network: Network = dataclasses.field(metadata={"static": True})
    rule: disco.Rule
    num_updates: Float[Array, ""] | None = None
    learning_rate: Float[Array, ""] | None = None

    @classmethod
    def create(cls, config: RuleAgentConfig, dynamics: Any, rule: disco.Rule) -> "RuleAgent":
        """Make an agent for dynamics, of which only the specs are used; actions are discrete."""
        shapes = tuple(rule.output_shapes(environments.num_actions(dynamics)).items())
        network = Network(
            config.network, dynamics, config.frame_stack, config.burn_in, shapes=shapes
        )
        return cls(config=config, network=network, rule=rule)

    @property
    def requirements(self) -> Requirements:
        return self.config.requirements(self.network.history)

    def init(self, key: PRNGKeyArray) -> LearnerState:
        params = self.network.init(key)
        adapts = self.config.adapts_steps or self.config.adapts_rewards
        return LearnerState(
            params=params,
            optimizer=self.optimizer.init(params),
            rule_state=self.rule.init(params),
            scales=Scales.zeros() if adapts else None,
        )

    def update(self, state: LearnerState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        del key, name
        state, gradients, aux = self.learn(state, to_trajectory(batch))
        return Update(state, aux.metrics | {"gradient_norm": optax.tree.norm(gradients)})

    def learn(
        self,
        state: LearnerState,
        trajectory: disco.Trajectory,
        residuals: disco.UpdateResiduals | None = None,
    ) -> tuple[LearnerState, disco.Params, disco.Aux]:
        """Make one update by the rule.

        Whatever an agent does to a batch or a gradient is done here. So an update and its
        derivative, which discovery takes from the update's residuals, cannot differ in it.

        Args:
          state: before it.
          trajectory: with the environments' rewards, which are scaled here.
          residuals: of this update, if it was made before and is to be differentiated.

        Returns:
          The state after it, the gradient, and the rule's auxiliary outputs.
        """
        state, scaled = self.scaled(state, trajectory)
        inputs = (state.params, state.rule_state, scaled, self.network.unroll)
        if residuals is None:
            gradients, aux = self.rule.gradient(*inputs)
        else:
            gradients, aux = self.rule.gradient_from_residuals(*inputs, residuals)
        return self.apply(state, gradients, aux), gradients, aux

    def scaled(
        self, state: LearnerState, trajectory: disco.Trajectory
    ) -> tuple[LearnerState, disco.Trajectory]:
        """Return the trajectory as the rule sees it, and the state with the scales after it."""
        if state.scales is not None:
            inputs = self.network.mean_input(trajectory.observation)
            scales = state.scales.after(trajectory, inputs, getattr(self.rule, "discount", 1.0))
            state = dataclasses.replace(state, scales=scales)
        trajectory = self.config.scaled(trajectory)
        if self.config.adapts_rewards:
            assert state.scales is not None
            reward = trajectory.reward / state.scales.of_rewards
            trajectory = dataclasses.replace(trajectory, reward=reward)
        return state, trajectory

    def apply(self, state: LearnerState, gradients: disco.Params, aux: disco.Aux) -> LearnerState:
        updates: Any
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, state.params)
        if self.config.adapts_steps:
            assert state.scales is not None
            updates *= self.network.step_factors(state.params, state.scales.of_inputs)
        if aux.step is not None:
            updates *= aux.step
        params = optax.apply_updates(state.params, updates)
        return LearnerState(
            params=params, optimizer=optimizer, rule_state=aux.state, scales=state.scales
        )

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return self.config.optimizer(self.learning_rate, self.num_updates)


def to_trajectory(batch: Batch) -> disco.Trajectory:
    """Return a batch as the trajectory that rules expect.

    Its `core_state` is the memory of the agent's network; that of a rule is in `disco.RuleState`.
    """
    return disco.Trajectory(
        observation=batch.observation,
        action=batch.action,
        reward=batch.reward,
        discount=batch.discount,
        last=batch.last,
        mask=batch.mask,
        behaviour_logits=batch.extras["behaviour_logits"],
        core_state=batch.memory,
    )


def make_agent(
    rule: disco.Rule, config: RuleAgentConfig, task: environments.Environment
) -> RuleAgent:
    """Return the agent that learns a task, of discrete actions, by a rule.

    Its learning rate, and the updates over which it falls, are arrays, so that agents that differ
    only in them share programs.
    """
    fixed = dataclasses.replace(config, learning_rate=0.0, lifetime=0)
    agent = RuleAgent.create(fixed, task.dynamics, rule)
    number = jnp.float32(config.updates_in(config.lifetime)) if config.lifetime else None
    rate = jnp.float32(config.learning_rate)
    return dataclasses.replace(agent, num_updates=number, learning_rate=rate)
