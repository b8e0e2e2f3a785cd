"""The compiled functions of the device backend."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, PyTree

import environments
from agents.protocol import Agent
from disco_common import compilation, keys
from disco_common.keys import Purpose
from training import iteration
from training.collection import EpisodeStatistics
from training.iteration import TrainingState
from training.passes import (
    StaticAgent,
    advance_agents,
    map_agents,
    runs_per_pass,
    split_agent,
    stack_agents,
)
from training.schedule import TrainingConfig, require_consistent

_AXIS = "runs"


class RunInputs(NamedTuple):
    """The inputs of a program that differ between runs; leaves have a leading axis of runs.

    Attributes:
      task_params: of the environments' task.
      code: a checksum of the task's name.
      seed: of all randomness.
      arrays: of the run's own agent; empty if all runs have the arrays that the functions get.
    """

    task_params: PyTree[Array]
    code: Int[Array, "*runs"]
    seed: Int[Array, "*runs"]
    arrays: tuple[Array, ...] = ()


class Totals(NamedTuple):
    """Sums over each run's interval so far, leaves `[runs]`.

    Attributes:
      episodes: sums over the episodes that ended.
      metrics: sums over the updates, by kind of update and name.
    """

    episodes: EpisodeStatistics
    metrics: dict[str, dict[str, Float[Array, "*runs"]]]


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled functions that train one agent in environments of one dynamics.

    An agent's arrays are arguments. So agents that differ in arrays only (rules of equal sizes, a
    grid of learning rates) share one compilation, and so do equal programs.

    Attributes:
      dynamics: of the environments.
      agent: without its arrays (`split_agent`).
      per_pass: runs per device and vectorised pass.
      replay_steps: upper bound of a replay's environment steps; None for no bound.
    """

    dynamics: environments.JaxEnvironment
    agent: StaticAgent
    per_pass: int
    replay_steps: int | None = None

    @compilation.jit_compiled_fast(static_argnums=0)
    def init(self, arrays: Sequence[Array], inputs: RunInputs) -> TrainingState:
        """Return the stacked states of the runs before their first unroll."""

        def init_one(arrays, inputs: RunInputs):
            key = keys.key(inputs.seed, Purpose.INITIALIZE, inputs.code, 0)
            agent = self.agent.with_arrays(inputs.arrays or arrays)
            return iteration.init(agent, self.dynamics, inputs.task_params, key, self.replay_steps)

        def shard(arrays, inputs):
            return map_agents(partial(init_one, arrays), inputs, self.per_pass)

        return _on_all_devices(shard)(arrays, inputs)

    def no_totals(
        self, arrays: Sequence[Array], inputs: RunInputs, states: TrainingState
    ) -> Totals:
        """Return the sums over no unrolls; arguments as `advance`'s."""
        state, one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (states, inputs)
        )
        totals = Program._totals_of_one.eval_shape(self, arrays, state, one, jnp.int32(0))
        zeros = jax.tree.map(lambda x: jnp.zeros((*inputs.seed.shape, *x.shape), x.dtype), totals)
        return jax.device_put(zeros, over_runs())

    @partial(jax.jit, static_argnums=0, donate_argnums=3)
    def advance(
        self,
        arrays: Sequence[Array],
        inputs: RunInputs,
        states: TrainingState,
        totals: Totals,
        first: int | Int[Array, ""],
        number: int | Int[Array, ""],
    ) -> tuple[TrainingState, Totals]:
        """Return the runs' states and sums after `number` unrolls more than the `first` ones.

        `arrays` are of the agent, unless the runs have their own; `states`, from `init` or the last
        call, are donated. Any number of unrolls uses one compiled program.
        """

        def shard(replicated, per_run):
            arrays, first, number = replicated

            def advance_run(run, inputs: RunInputs):
                def add(i, run):
                    state, totals = run
                    state, new = self._advance_one(arrays, state, inputs, first + i)
                    return state, jax.tree.map(jnp.add, totals, new)

                return jax.lax.fori_loop(0, number, add, run)

            states, totals, inputs = per_run
            return advance_agents(advance_run, (states, totals), inputs, self.per_pass)

        return _on_all_devices(shard)((arrays, first, number), (states, totals, inputs))

    def _advance_one(
        self,
        arrays: Sequence[Array],
        state: TrainingState,
        inputs: RunInputs,
        unroll: Int[Array, ""],
    ) -> tuple[TrainingState, Totals]:
        """Advance one run by one unroll."""
        agent = self.agent.with_arrays(inputs.arrays or arrays)
        key = keys.key(inputs.seed, Purpose.TRAIN, inputs.code, unroll)
        state, episodes, metrics = iteration.advance(
            agent, self.dynamics, inputs.task_params, state, key, unroll
        )
        return state, Totals(episodes=episodes, metrics=metrics)

    @partial(jax.jit, static_argnums=0)  # Whose traces are kept, for equal programs.
    def _totals_of_one(
        self, arrays: Sequence[Array], state: TrainingState, inputs: RunInputs, unroll: Array
    ) -> Totals:
        return self._advance_one(arrays, state, inputs, unroll)[1]


def _on_all_devices(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function whose second argument and result are sharded over runs."""
    specs = (P(), P(_AXIS))
    return jax.shard_map(function, mesh=mesh(), in_specs=specs, out_specs=specs[1], check_vma=False)


@functools.cache
def mesh() -> Mesh:
    """Return all devices, as one axis of runs."""
    return Mesh(np.array(jax.devices()), (_AXIS,))


def over_runs() -> NamedSharding:
    """Return the sharding of arrays whose leading axis, of runs, is on all devices."""
    return NamedSharding(mesh(), P(_AXIS))


def prepare(
    agents: Sequence[Agent],
    tasks: Sequence[environments.Environment],
    seeds: Sequence[int],
    settings: TrainingConfig,
) -> tuple[Program, tuple[Array, ...], RunInputs]:
    """Return the program that trains some runs, the arrays that all agents share, and its inputs.

    The runs are placed on all devices, padded to a multiple of the runs of a pass. All passes have
    equal sizes, so that a run's results do not depend on the other runs. The padding repeats the
    first runs; its results are ignored.

    Args:
      agents: of each run; they differ in arrays only.
      tasks: of each run, of equal dynamics.
      seeds: of each run.
      settings: the length of each run.

    Raises:
      ValueError: if the agents differ in more than arrays, or ask for what contradicts itself.
    """
    requirements, dynamics, shared, own = agents[0].requirements, tasks[0].dynamics, (), ()
    assert isinstance(dynamics, environments.JaxEnvironment)
    require_consistent(requirements)
    if len({id(one) for one in agents}) > 1:
        static, own = stack_agents(agents)
    else:
        static, shared = split_agent(agents[0])
    per_pass = runs_per_pass(settings.runs_at_once, len(tasks), mesh().size)
    is_large = requirements.replay is not None and requirements.replay.capacity > settings.num_steps
    program = Program(dynamics, static, per_pass, settings.num_steps if is_large else None)
    (group,) = environments.group_by_dynamics(tasks)
    block = mesh().size * per_pass
    index = np.arange(-(-len(tasks) // block) * block) % len(tasks)
    codes = np.array([keys.code(task.name) for task in tasks], np.uint32)
    inputs = RunInputs(
        task_params=jax.tree.map(lambda x: x[index], group.task_params),
        code=jnp.asarray(codes[index]),
        seed=jnp.asarray(np.array(seeds, np.uint32)[index]),
        arrays=tuple(x[index] for x in own),
    )
    return program, shared, jax.device_put(inputs, over_runs())


_UNROLLS_PER_CALL = 50


class Lifetimes:
    """Agents that learn one task at the same time, in parts of their lifetimes.

    All have the same random numbers, so that differences are the agents'.

    Attributes:
      steps_per_unroll: environment steps of each agent in an unroll.
    """

    def __init__(
        self,
        agents: Sequence[Agent],
        task: environments.Environment,
        seed: int,
        settings: TrainingConfig,
    ):
        """Prepare agents, which differ in arrays only; raises as `prepare`."""
        compilation.limit_programs()  # A discovery makes them for tasks of many dynamics.
        self._number, self.steps_per_unroll = len(agents), agents[0].requirements.steps_per_unroll
        self._program, self._shared, self._inputs = prepare(
            agents, [task] * len(agents), [seed] * len(agents), settings
        )

    @property
    def abstract_states(self) -> TrainingState:
        """Shapes, dtypes and shardings of the agents' states."""
        shapes = Program.init.jitted().eval_shape(self._program, self._shared, self._inputs)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=over_runs()), shapes
        )

    def init(self) -> TrainingState:
        """Return the agents' states at their start."""
        return self._program.init(self._shared, self._inputs)

    def advance(
        self,
        states: TrainingState,
        begin: int,
        end: int,
        report: Callable[[int], None] = lambda steps: None,
    ) -> tuple[TrainingState, EpisodeStatistics]:
        """Learn from unroll `begin` to `end`; `states` are donated.

        `report` is called every few seconds with the environment steps of all agents so far; what
        it raises ends the call.

        Returns:
          The states, and sums over each agent's episodes that ended, on the host.
        """
        totals = self._program.no_totals(self._shared, self._inputs, states)
        for first in range(begin, end, _UNROLLS_PER_CALL):
            unrolls = min(_UNROLLS_PER_CALL, end - first)
            states, totals = self._program.advance(
                self._shared, self._inputs, states, totals, jnp.int32(first), jnp.int32(unrolls)
            )
            jax.block_until_ready(totals)
            report((first + unrolls - begin) * self.steps_per_unroll * self._number)
        episodes = jax.device_get(totals.episodes)
        return states, jax.tree.map(lambda x: x[: self._number], episodes)
