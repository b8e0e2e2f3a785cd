"""The cost of one agent in a meta-step, counted in the meta-step's program.

Nothing is compiled or allocated: the functions of a `Discovery` are traced on shapes. For host
environments, these are the functions that `meta.host_groups` calls: the K updates, the meta-update,
and the policy at each step.
"""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

import disco
import environments
from agents import history
from agents.rule_agent import to_trajectory
from benchmarks.counting import Work, count, num_bytes, peak_bytes
from launch.support.settings import DiscoverSettings
from meta import inner_loop
from meta.discovery import Discovery
from meta.groups import Group
from meta.meta_step import agent_meta_update
from meta.state import DiscoveryState, Member
from training import batches
from training.host_collection import NUM_HALVES
from training.memory_budget import plan


class _Shapes(NamedTuple):
    """Shapes of the arguments of one agent's functions."""

    rule: disco.DiscoveredRule
    member: Member
    batch: disco.Trajectory
    residuals: inner_loop.InnerLoopResiduals  # Of K updates.
    validation: disco.Trajectory


@dataclasses.dataclass(frozen=True)
class AgentCost:
    """The cost of one agent in a meta-step.

    Attributes:
      family: of its environments.
      count: number of agents of its group.
      acting: work of its policy.
      updates: work of its K updates, and of its meta-value function on their batches.
      meta_gradient: work of the backward pass through the updates, and of the meta-value function's
        last update.
      of_updates, of_meta_gradient: work of parts of these, by name.
      environment_steps: number of simulated steps.
      policy_calls: number of sequential calls, each for half of its environments.
      transferred: bytes of trajectories from the host to its devices; 0 with JAX environments.
      replay: bytes of its full replay on the host; 0 with JAX environments.
      all_reduced: bytes of the arrays that its devices sum over each other, if it has several.
    """

    family: str
    count: int
    acting: Work
    updates: Work
    meta_gradient: Work
    of_updates: dict[str, Work]
    of_meta_gradient: dict[str, Work]
    environment_steps: int
    policy_calls: int
    transferred: int
    replay: int
    all_reduced: int

    @property
    def work(self) -> Work:
        """All work."""
        return self.acting + self.updates + self.meta_gradient


def agent_cost(settings: DiscoverSettings, discovery: Discovery, group: Group) -> AgentCost:
    """Return the cost of an agent of a group."""
    agent, meta, num_updates = group.agent, settings.meta, settings.meta.num_updates
    shapes = _shapes(settings, discovery, group)
    update, meta_update = _programs(discovery, group, shapes)
    rule, member, batch, residuals, validation = shapes
    learner, params = member.agent.learner, member.agent.learner.params
    outputs = jax.eval_shape(agent.network.unroll, params, batch)

    def pull_back(rule, outputs, batch, state, cotangent):
        return jax.vjp(lambda r, o: r.targets(o, o, batch, state)[0], rule, outputs)[1](cotangent)

    targets = (outputs, batch, learner.rule_state)
    num_playing, play_length = meta.validation_trajectories, meta.validation_length
    if unrolls := group.validation_unrolls(meta):
        num_playing, play_length = agent.config.num_environments, unrolls * play_length
    play = _policy(group, params, num_playing) * play_length
    act = _policy(group, params, agent.config.num_environments) * agent.config.unroll_length
    cotangent = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), residuals.update)
    return AgentCost(
        family=group.names[0].partition("/")[0],
        count=len(group.indices),
        acting=act * num_updates + play,
        updates=count(update.function, *update.arguments) * num_updates,
        meta_gradient=count(meta_update.function, *meta_update.arguments),
        of_updates={
            "rule": count(lambda r, o, b, s: r.targets(o, o, b, s), rule, *targets) * num_updates,
            "meta-value function": count(
                group.value_function.update, member.value, outputs["logits"], batch
            )
            * (num_updates if group.value_function.config.learns_from_batches else 0),
        },
        of_meta_gradient={
            "rule": count(pull_back, rule, *targets, cotangent.targets) * num_updates
        },
        environment_steps=num_updates * agent.config.steps_per_update + num_playing * play_length,
        policy_calls=NUM_HALVES * (num_updates * agent.config.unroll_length + play_length),
        transferred=num_bytes((residuals.batch, validation)) if group.is_host else 0,
        replay=_replay_bytes(group),
        all_reduced=_all_reduced(group, num_updates, rule, member),
    )


def _all_reduced(group: Group, num_updates: int, rule: disco.DiscoveredRule, member: Member) -> int:
    """Return the bytes of the arrays that an agent's devices sum over each other.

    Each update sums its gradients. Its backward pass sums the derivatives with respect to the rule,
    the parameters and the target network's; the meta-loss the parameters'.
    """
    params, value_params = member.agent.learner.params, member.value.params
    learned = [value_params] if group.value_function.config.learns_from_batches else []
    in_update = num_bytes((learned, rule, 3 * [params]))
    return num_updates * in_update + num_bytes((value_params, params))


class DeviceMemory(NamedTuple):
    """The memory of an agent on each of its devices, in bytes.

    Attributes:
      state: the agent with all its optimisers, and a copy of its learner from before the updates.
      residuals: of the K updates.
      batches: one batch to learn from, and the validation trajectories.
      temporary: intermediate results of an update or of the meta-gradient, whichever is larger;
        only for the agents of a vectorised pass.
    """

    state: int
    residuals: int
    batches: int
    temporary: int

    @property
    def persistent(self) -> int:
        """The memory of every agent of a device."""
        return self.state + self.residuals + self.batches


def device_memory(
    settings: DiscoverSettings, discovery: Discovery, group: Group, devices_per_agent: int = 1
) -> DeviceMemory:
    """Return the memory of an agent of a group on each of its devices."""
    shapes = _shapes(settings, discovery, group, devices_per_agent)
    return DeviceMemory(
        state=num_bytes(shapes.member) + num_bytes(shapes.member.agent.learner),
        residuals=num_bytes(shapes.residuals),
        batches=num_bytes((shapes.batch, shapes.validation)),
        temporary=max(
            peak_bytes(program.function, *program.arguments)
            for program in _programs(discovery, group, shapes)
        ),
    )


def _shapes(
    settings: DiscoverSettings, discovery: Discovery, group: Group, devices_per_agent: int = 1
) -> _Shapes:
    agent, meta = group.agent, settings.meta
    state = _state(discovery)
    (number,) = (i for i, other in enumerate(discovery.groups) if other is group)
    member = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state.groups[number]
    )
    rule = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state.rule)

    def trajectory(batch_size: int, length: int) -> disco.Trajectory:
        return to_trajectory(
            batches.example(agent, group.dynamics, batch_size // devices_per_agent, length)
        )

    batch = trajectory(agent.config.batch_size, agent.config.unroll_length)
    _, residuals, _ = jax.eval_shape(
        lambda rule, learner, batch: inner_loop.update_with_residuals(
            group.agent_with(rule), learner, batch
        ),
        rule,
        member.agent.learner,
        batch,
    )
    return _Shapes(
        rule=rule,
        member=member,
        batch=batch,
        residuals=jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((meta.num_updates, *x.shape), x.dtype), residuals
        ),
        validation=trajectory(meta.validation_trajectories, meta.validation_length),
    )


@functools.cache
def _state(discovery: Discovery) -> DiscoveryState:
    return discovery.abstract_state


class Program(NamedTuple):
    """A function and the shapes that it is called with."""

    function: Callable
    arguments: tuple


class Programs(NamedTuple):
    """The programs of an agent in a meta-step, without acting: K updates, then the meta-update."""

    update: Program
    meta_update: Program


def programs(
    settings: DiscoverSettings, discovery: Discovery, group: Group, devices_per_agent: int = 1
) -> Programs:
    """Return the programs of an agent of a group, for the batches of one of its devices."""
    shapes = _shapes(settings, discovery, group, devices_per_agent)
    return _programs(discovery, group, shapes)


def _programs(discovery: Discovery, group: Group, shapes: _Shapes) -> Programs:
    rule, member, batch, residuals, validation = shapes

    return Programs(
        update=Program(
            lambda rule, *arguments: inner_loop.update(
                group.agent_with(rule), group.value_function, *arguments
            ),
            (rule, member.agent, member.value, batch),
        ),
        meta_update=Program(
            partial(agent_meta_update, discovery.config, group),
            (rule, member, member.agent.learner, residuals, validation),
        ),
    )


def _policy(group: Group, params: Any, num_environments: int) -> Work:
    """Return the policy's work for one step of some environments, without the simulators'."""
    agent, spec = group.agent, group.dynamics.observation_spec()
    history_spec = dataclasses.replace(agent.network.history, burn_in=0)
    size = max(1, num_environments // NUM_HALVES)
    observation = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((x.shape[0], size, *x.shape[2:]), x.dtype),
        jax.eval_shape(lambda: history.example(history_spec, spec)),
    )
    if not history_spec.is_history:
        observation = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation
        )
    memory = jax.eval_shape(lambda: agent.network.initial_memory(size))
    return count(agent.network.policy, params, observation, memory) * NUM_HALVES


def _replay_bytes(group: Group) -> int:
    dynamics = group.dynamics
    if not isinstance(dynamics, environments.HostEnvironment):
        return 0
    if not group.agent.config.num_replayed:
        return 0
    return plan("", group.agent, dynamics).num_bytes
