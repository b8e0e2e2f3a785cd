"""One meta-step: the rule improves by meta-gradients from a population that learns by it.

DiscoRL (Oh et al., Nature 2025), Methods, "Meta-optimization". With the rule's meta-parameters η,
for each agent:

1. inner loop: K updates by the rule turn the agent's parameters θ into θ_K(η) (`inner_loop`);
2. validation: the updated agent collects trajectories;
3. meta-loss: -J(θ_K(η)) on these trajectories, with regularisers (`meta.objective.meta_loss`);
4. meta-gradient: ∇_η of the meta-loss, backwards through the K updates (`meta_gradient`);
5. the agent's own Adam scales the meta-gradient (`scale_by_own_adam`).

Over the population:

6. the mean of the agents' updates changes η, and the moving average follows (`improve_rule`);
7. agents that have consumed their experience budget, or whose meta-gradient was not finite, are
   reset (`meta.population.reset_agents`).

`agent_meta_step` makes steps 1 to 5 for JAX environments. With host environments, steps 1 and 2
are in `meta.host_groups`, and `agent_meta_update` makes steps 3 to 5.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

import disco
import environments
from agents.rule_agent import LearnerState, to_trajectory
from disco.types import Metrics
from disco.values import zero_where_all_illegal
from disco_common import keys
from disco_common.keys import Purpose
from meta.config import DiscoveryConfig, MetaConfig
from meta.groups import AgentGroup
from meta.inner_loop import InnerLoopResiduals, differentiable_inner_loop, inner_loop
from meta.objective import ValueFunctionState, meta_loss
from meta.population import Member, meta_optimizer
from meta.sharding import AGENTS, split_batch
from training import collection
from training.collection import ActorState
from training.passes import agents_per_pass, map_agents

AgentMetrics = dict[str, Shaped[Array, "_agents"]]


def agent_meta_step(
    config: DiscoveryConfig,
    group: AgentGroup,
    rule: disco.DiscoveredRule,
    meta_step: Int[Array, ""],
    member: Member,
    index: Int[Array, ""],
) -> tuple[Member, Float[Array, "R"], Metrics]:
    """Make steps 1 to 5 for one agent of JAX environments.

    Returns:
      The agent after the meta-step, its update of the rule, and metrics.
    """
    key = keys.key(config.seed, Purpose.TRAIN, meta_step, index)
    learned = learn_and_validate(config, group, rule, meta_step, member, key)
    member, update, metrics = agent_meta_update(
        config,
        group,
        rule,
        learned.member,
        member.agent.learner,
        learned.residuals,
        learned.trajectory,
    )
    return member, update, metrics | learned.metrics


class Learned(NamedTuple):
    """An agent after K updates, without an axis over agents.

    Attributes:
      member: the agent.
      residuals: of the updates.
      trajectory: of the agent after the updates.
      metrics: of the updates and of their episodes.
    """

    member: Member
    residuals: InnerLoopResiduals
    trajectory: disco.Trajectory
    metrics: Metrics


def learn_and_validate(
    config: DiscoveryConfig,
    group: AgentGroup,
    rule: disco.DiscoveredRule,
    meta_step: Int[Array, ""],
    member: Member,
    key: PRNGKeyArray,
) -> Learned:
    """Make steps 1 and 2 for one agent of JAX environments."""
    agent, dynamics = group.agent_with(rule), group.dynamics
    assert isinstance(dynamics, environments.JaxEnvironment)
    inner_loop_key, validation_key = jax.random.split(key)
    task_params = group.task_params_of(member.lifetime.task)
    agent_state, value, residuals, episodes, learning = inner_loop(
        agent,
        dynamics,
        group.value_function,
        member.agent,
        member.value,
        task_params,
        inner_loop_key,
        config.meta.num_updates,
    )
    assert member.validation is not None
    assert agent_state.actor is not None
    actor = member.validation
    if config.meta.validation_from_training:
        actor = with_training_states(actor, agent_state.actor, meta_step)
    actor, validated, validation_episodes = collection.collect(
        agent,
        dynamics,
        task_params,
        agent.acting_state(agent_state.learner),
        actor,
        validation_key,
        config.meta.validation_length,
    )
    member = dataclasses.replace(member, agent=agent_state, value=value, validation=actor)
    metrics = {f"agent_{name}": x for name, x in learning.items()}
    metrics |= {
        "validation_reward": validation_episodes.reward_sum / validation_episodes.steps,
        "episode_return_sum": episodes.return_sum,
        "episodes": episodes.count,
    }
    return Learned(member, residuals, to_trajectory(validated), metrics)


def with_training_states(
    validation: ActorState, training: ActorState, meta_step: Int[Array, ""]
) -> ActorState:
    """Let some validation environments go on from the states of the training environments.

    In turn, an eighth of them at most per meta-step. Otherwise all start their first episode
    together, and where episodes have one length, all are of one age for good.
    """
    num_validation, num_training = len(validation.episode_return), len(training.episode_return)
    number = min(num_training, max(1, num_validation // 8))
    places = (meta_step * number + jnp.arange(number)) % num_validation
    return jax.tree.map(lambda x, new: x.at[places].set(new[:number]), validation, training)


def agent_meta_update(
    config: DiscoveryConfig,
    group: AgentGroup,
    rule: disco.DiscoveredRule,
    member: Member,
    learner_before: LearnerState,
    residuals: InnerLoopResiduals,
    trajectory: disco.Trajectory,
) -> tuple[Member, Float[Array, "R"], Metrics]:
    """Make steps 3 to 5 for one agent.

    Args:
      config: of the discovery.
      group: of the agent.
      rule: with R meta-parameters.
      member: the agent after the K updates; without an axis over agents.
      learner_before: the agent's learner before them.
      residuals: of the updates, `[K, ...]`; a batch has `[K, T + 1, B, ...]`.
      trajectory: of the agent after the updates: T = `meta.validation_length` steps, B =
        `meta.validation_trajectories`.

    Returns:
      The agent after the meta-step, its update of the rule `[R]`, and scalar metrics.
    """
    trajectory = split_batch(trajectory)
    gradient, metrics, logits = meta_gradient(
        config, group, rule, member.value, learner_before, residuals, trajectory
    )
    value = group.value_function.update(member.value, logits, trajectory)
    norm = jnp.linalg.norm(gradient)
    update, meta_optimizer = scale_by_own_adam(config.meta, gradient, norm, member.meta_optimizer)
    steps = group.unrolls_per_meta_step(config.meta) * group.agent.config.steps_per_update
    lifetime = dataclasses.replace(member.lifetime, steps=member.lifetime.steps + steps)
    is_finite, is_spent = jnp.isfinite(norm), lifetime.steps >= lifetime.budget
    member = dataclasses.replace(
        member, value=value, lifetime=lifetime, meta_optimizer=meta_optimizer
    )
    # `finite`, `reset` and `task` are read by `sum_over_agents` and `Discovery`.
    metrics |= {
        "meta_gradient_norm": norm,
        "finite": is_finite.astype(jnp.float32),
        "reset": (is_spent | ~is_finite).astype(jnp.float32),
        "task": lifetime.task,
        "steps_since_reset": lifetime.steps,
    }
    return member, update, metrics


def meta_gradient(
    config: DiscoveryConfig,
    group: AgentGroup,
    rule: disco.DiscoveredRule,
    value: ValueFunctionState,
    learner_before: LearnerState,
    residuals: InnerLoopResiduals,
    trajectory: disco.Trajectory,
) -> tuple[Float[Array, "R"], Metrics, Float[Array, "V_plus_1 B A"]]:
    """Return ∇_η of the meta-loss, its metrics, and the policy's logits on the trajectory.

    The parameters before the K updates, the updates' batches and the trajectory of validation are
    constants: what η did to them in earlier meta-steps is not differentiated. So are frozen layers,
    whose derivatives are 0.
    """

    def loss_of(rule: disco.DiscoveredRule):
        rule = _with_frozen_layers(rule, config.frozen_layers(rule.parameters))
        learner, target_statistics = differentiable_inner_loop(
            group.agent, rule, learner_before, residuals, config.meta.segment_length
        )
        outputs = dict(group.agent.network.unroll(learner.params, trajectory))
        outputs["logits"] = zero_where_all_illegal(outputs["logits"])
        _, advantage, _ = group.value_function.evaluate(value, outputs["logits"], trajectory)
        loss, metrics = meta_loss(
            config.objective, outputs, advantage, trajectory, target_statistics
        )
        return loss, (metrics, outputs["logits"])

    (_, (metrics, logits)), gradient = jax.value_and_grad(loss_of, has_aux=True)(rule)
    gradient, _ = ravel_pytree(gradient)
    return gradient, metrics, logits


def _with_frozen_layers(rule: disco.DiscoveredRule, names: Sequence[str]) -> disco.DiscoveredRule:
    """Return the rule with some layers as constants."""
    frozen = {name: jax.lax.stop_gradient(rule.parameters[name]) for name in names}
    return dataclasses.replace(rule, parameters={**rule.parameters, **frozen}) if frozen else rule


def scale_by_own_adam(
    config: MetaConfig,
    gradient: Float[Array, "R"],
    norm: Float[Array, ""],
    state: optax.OptState,
) -> tuple[Float[Array, "R"], optax.OptState]:
    """Return an agent's update of the rule, and its optimiser's state.

    A non-finite meta-gradient is masked out: the update is 0 and the state does not change.
    """
    is_finite = jnp.isfinite(norm)
    gradient = jnp.where(is_finite, gradient, 0.0)
    update, new_state = meta_optimizer(config).update(gradient, state)
    new_state = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), new_state, state)
    return jnp.where(is_finite, jnp.asarray(update), 0.0), new_state


class Contribution(NamedTuple):
    """The contribution of a group's agents to the rule's update.

    Attributes:
      scaled_gradient_sum: of the agents' scaled meta-gradients by the rule's R meta-parameters,
        `[D, R]`, on each of the D devices along the mesh's axis `agents`.
      count: number of agents in that sum, those with a finite meta-gradient, `[D]`.
      metrics: of each agent, `[agents]`.
    """

    scaled_gradient_sum: Float[Array, "D R"]
    # Tuples have a method of that name, which nobody calls here.
    count: Float[Array, "D"]  # pyright: ignore[reportIncompatibleMethodOverride]
    metrics: AgentMetrics


def group_meta_step(
    config: DiscoveryConfig,
    group: AgentGroup,
    rule: disco.DiscoveredRule,
    meta_step: Int[Array, ""],
    members: Member,
    indices: Int[Array, "agents"],
    is_counted: Bool[Array, "agents"],
) -> tuple[Member, Contribution]:
    """Make steps 1 to 5 for the agents of a group on one device."""
    members, updates, metrics = map_agents(
        lambda row: agent_meta_step(config, group, rule, meta_step, *row),
        (members, indices),
        agents_per_pass(config.meta.agents_at_once, len(indices)),
    )
    return members, sum_over_agents(updates, metrics, is_counted)


def sum_over_agents(
    updates: Float[Array, "agents R"], metrics: AgentMetrics, is_counted: Bool[Array, "agents"]
) -> Contribution:
    """Return the contribution of the agents of a group on one device.

    `updates` are 0 where the meta-gradient is not finite; `is_counted` is False for copies that pad
    the group.
    """
    return Contribution(
        scaled_gradient_sum=jnp.tensordot(is_counted.astype(updates.dtype), updates, 1)[None],
        count=jnp.sum(is_counted.astype(jnp.float32) * metrics["finite"])[None],
        metrics=metrics,
    )


def improve_rule(
    config: MetaConfig,
    rule: disco.DiscoveredRule,
    average: disco.DiscoveredRule,
    meta_step: Int[Array, ""],
    contributions: Sequence[Contribution],
) -> tuple[disco.DiscoveredRule, disco.DiscoveredRule]:
    """Return the rule after the mean of all agents' updates, and the moving average of rules.

    For use inside `shard_map_over_agents`: the mean is over the agents of all devices. In it, each
    group's contribution has the sum of the updates of this device's agents, `[1, R]`, and their
    number, `[1]`.
    """
    gradient = sum(part.scaled_gradient_sum[0] for part in contributions)
    count = sum(part.count for part in contributions)
    # One vector: the only message between the devices of agents, except for metrics.
    total = jax.lax.psum(jnp.concatenate([gradient, count]), AGENTS)
    gradient, count = total[:-1], total[-1]
    parameters, unravel = ravel_pytree(rule)
    parameters -= config.learning_rate / jnp.maximum(count, 1.0) * gradient
    done = meta_step.astype(jnp.result_type(float))
    decay = jnp.minimum(config.average_decay, done / (done + 1.0))
    average = unravel(decay * ravel_pytree(average)[0] + (1.0 - decay) * parameters)
    return unravel(parameters), average
