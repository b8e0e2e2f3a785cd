"""What one agent and one meta-step cost, computed from the program that makes it.

Nothing is compiled or allocated: the functions of a `Discovery` are traced on shapes. Of host
environments, those are what `meta.host_group` calls: K updates, their judgement, and the policy at
each step.
"""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

import disco
from agents import history
from benchmarks.counting import Work, count, num_bytes, peak_bytes
from launch.settings import DiscoverSettings
from meta import lifetime
from meta.discovery import Discovery, DiscoveryState
from meta.groups import Group
from meta.population import Individual
from training.host_collection import NUM_HALVES
from training.host_experience import example_trajectory
from training.host_replay import Planned, num_bytes_of


class _Shapes(NamedTuple):
    """Of what the functions of one agent take."""

    rule: disco.DiscoveredRule
    individual: Individual
    batch: disco.Trajectory
    memoir: lifetime.Memoir  # Of K updates.
    validation: disco.Trajectory


@dataclasses.dataclass(frozen=True)
class AgentCost:
    """One agent's share of a meta-step.

    Attributes:
      family: of its environments.
      count: agents of the population like it.
      acting: work of its policy.
      updates: of its K updates and those of its meta-value function.
      meta_gradient: of the way back through them, and of the meta-value function's last update.
      of_updates, of_meta_gradient: what parts of these take.
      environment_steps: simulated.
      policy_calls: one after the other, each for half of its environments.
      fed: bytes of trajectories that go from the host to its devices; 0 with JAX environments.
      replay: bytes of its replay on the host, full; 0 with JAX environments.
      added_up: bytes of what its devices add up with each other, if it has several.
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
    fed: int
    replay: int
    added_up: int

    @property
    def work(self) -> Work:
        """All of it."""
        return self.acting + self.updates + self.meta_gradient


def agent_cost(settings: DiscoverSettings, discovery: Discovery, group: Group) -> AgentCost:
    """The cost of an agent of a group."""
    agent, meta, num_updates = group.agent, settings.meta, settings.meta.num_updates
    shapes = _shapes(settings, discovery, group)
    update, judge = _programs(discovery, group, shapes)
    rule, individual, batch, memoir, validation = shapes
    learner, params = individual.agent.learner, individual.agent.learner.params
    outputs = jax.eval_shape(agent.network.unroll, params, batch)

    def pull_back(rule, outputs, batch, state, cotangent):
        return jax.vjp(lambda r, o: r.targets(o, o, batch, state)[0], rule, outputs)[1](cotangent)

    targets = (outputs, batch, learner.rule)
    play = _policy(group, params, meta.validation_trajectories) * meta.validation_length
    act = _policy(group, params, agent.config.num_environments) * agent.config.unroll_length
    cotangent = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), memoir.update)
    return AgentCost(
        family=group.names[0].partition("/")[0],
        count=len(group.places),
        acting=act * num_updates + play,
        updates=count(update.function, *update.arguments) * num_updates,
        meta_gradient=count(judge.function, *judge.arguments),
        of_updates={
            "rule": count(lambda r, o, b, s: r.targets(o, o, b, s), rule, *targets) * num_updates,
            "meta-value function": count(
                group.value_function.update, individual.value, outputs["logits"], batch
            )
            * num_updates,
        },
        of_meta_gradient={
            "rule": count(pull_back, rule, *targets, cotangent.targets) * num_updates
        },
        environment_steps=num_updates * agent.config.steps_per_update
        + meta.validation_trajectories * meta.validation_length,
        policy_calls=NUM_HALVES
        * (num_updates * agent.config.unroll_length + meta.validation_length),
        fed=num_bytes((memoir.batch, validation)) if group.is_host else 0,
        replay=_replay_bytes(group),
        # An update adds up its gradients; the way back through it the derivatives with respect to
        # the rule, the parameters and the target network's; the judgement the parameters'.
        added_up=num_updates * num_bytes((individual.value.params, rule, 3 * [params]))
        + num_bytes((individual.value.params, params)),
    )


class DeviceMemory(NamedTuple):
    """Bytes that an agent takes on each of its devices.

    Attributes:
      state: the agent with all its optimisers, and a copy of its learner from before the updates.
      memories: of the K updates.
      batches: one to learn from, and the validation trajectories.
      passing: intermediate results of an update or of the meta-gradient, the larger; only those
        agents have them that are computed at once.
    """

    state: int
    memories: int
    batches: int
    passing: int

    @property
    def lasting(self) -> int:
        """What every agent of a device takes."""
        return self.state + self.memories + self.batches


def device_memory(
    settings: DiscoverSettings, discovery: Discovery, group: Group, devices_per_agent: int = 1
) -> DeviceMemory:
    """The memory of an agent of a group, whose batches are split over so many devices."""
    shapes = _shapes(settings, discovery, group, devices_per_agent)
    return DeviceMemory(
        state=num_bytes(shapes.individual) + num_bytes(shapes.individual.agent.learner),
        memories=num_bytes(shapes.memoir),
        batches=num_bytes((shapes.batch, shapes.validation)),
        passing=max(
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
    individual = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state.groups[number]
    )
    player = dataclasses.replace(
        agent, config=dataclasses.replace(agent.config, unroll_length=meta.validation_length)
    )
    rule = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state.rule)
    batch = example_trajectory(agent, agent.config.batch_size // devices_per_agent)
    _, memoir, _ = jax.eval_shape(
        partial(lifetime.remember, agent), rule, individual.agent.learner, batch
    )
    return _Shapes(
        rule=rule,
        individual=individual,
        batch=batch,
        memoir=jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((meta.num_updates, *x.shape), x.dtype), memoir
        ),
        validation=example_trajectory(player, meta.validation_trajectories // devices_per_agent),
    )


@functools.cache
def _state(discovery: Discovery) -> DiscoveryState:
    return discovery.abstract_state


class Program(NamedTuple):
    """A function and the shapes that it is called with."""

    function: Callable
    arguments: tuple


class Programs(NamedTuple):
    """What an agent makes in a meta-step besides acting: K times an update, then its judgement."""

    update: Program
    judge: Program


def programs(
    settings: DiscoverSettings, discovery: Discovery, group: Group, devices_per_agent: int = 1
) -> Programs:
    """Of an agent of a group, whose batches are split over so many devices."""
    shapes = _shapes(settings, discovery, group, devices_per_agent)
    return _programs(discovery, group, shapes)


def _programs(discovery: Discovery, group: Group, shapes: _Shapes) -> Programs:
    rule, individual, batch, memoir, validation = shapes

    def judge(rule, individual, before, memoir, validation):
        return discovery._judge(group, rule, individual, before, memoir, validation)

    return Programs(
        update=Program(
            partial(lifetime.update, group.agent, group.value_function),
            (rule, individual.agent, individual.value, batch),
        ),
        judge=Program(judge, (rule, individual, individual.agent.learner, memoir, validation)),
    )


def _policy(group: Group, params: Any, num_environments: int) -> Work:
    """The policy's work for one step of so many environments; the simulators' is not counted."""
    agent, spec = group.agent, group.agent.environment.observation_spec()
    seen = dataclasses.replace(agent.network.history, burn_in=0)
    size = max(1, num_environments // NUM_HALVES)
    observation = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((x.shape[0], size, *x.shape[2:]), x.dtype),
        jax.eval_shape(lambda: history.example(seen, spec)),
    )
    if not seen.is_history:
        observation = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation
        )
    memory = jax.eval_shape(lambda: agent.network.initial_memory(size))
    return count(agent.network.policy, params, observation, memory) * NUM_HALVES


def _replay_bytes(group: Group) -> int:
    agent = group.agent
    if not (group.is_host and agent.config.num_replayed):
        return 0
    capacity = agent.config.replay_capacity
    planned = Planned("", example_trajectory(agent), agent.network.history, capacity)
    return num_bytes_of(planned)
