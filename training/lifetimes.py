"""Whole lifetimes of many agents that differ in arrays only, of which only the returns are kept.

A search over rules or settings asks what agents learn by each of them, and for nothing else. So
there are no records, checkpoints or saved agents, and on an accelerator one compiled program trains
all agents on all tasks of equal dynamics at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import environments
from agents.protocol import Agent, Experience
from disco_common import stopping
from training.collection import EpisodeStatistics
from training.device_program import Program, RunInputs, mesh
from training.memory_budget import require_memory_for_runs
from training.passes import runs_per_pass
from training.settings import TrainingSettings, require_consistent
from training.static_agent import stack_agents

_UNROLLS_PER_CALL = 50


def mean_returns(
    agents: Sequence[Agent],
    tasks: Sequence[environments.Environment],
    seed: int,
    settings: TrainingSettings,
    report: Callable[[int], None] = lambda steps: None,
) -> Float[np.ndarray, "agents tasks"]:
    """Train each agent on each task; return the mean returns of the episodes that are scored.

    Runs on one task have the same random numbers, so that differences are the agents'.

    The agents are equal but for their arrays, and the tasks have equal dynamics. `report` is called
    every few seconds with the environment steps of all runs so far.

    Returns:
      Mean returns; NaN where no scored episode ended.

    Raises:
      OutputError: if an environment returns something else than it declares.
      StoppedBySignal: after a stop signal; nothing is kept.
      ValueError: if the agents differ in more than arrays, or the runs do not fit in memory.
    """
    agent, dynamics, number = agents[0], tasks[0].dynamics, len(agents) * len(tasks)
    assert isinstance(dynamics, environments.JaxEnvironment)
    require_consistent(agent.experience)
    for task in tasks:
        environments.require_declared_outputs(task)
    require_memory_for_runs(
        f"{number} agents", agent, dynamics, number, settings.num_steps, settings.runs_at_once
    )
    static, stacked = stack_agents(agents)
    per_pass = runs_per_pass(settings.runs_at_once, number, mesh().size)
    program = Program(dynamics, static, per_pass, settings.num_steps)
    inputs = program.place(
        [*tasks] * len(agents),
        [seed] * number,
        tuple(jnp.repeat(x, len(tasks), axis=0) for x in stacked),
    )
    episodes: Any = _episodes(program, inputs, agent.experience, number, settings, report)
    with np.errstate(invalid="ignore"):
        returns = (episodes.return_sum / episodes.count)[:number]
    return returns.reshape(len(agents), len(tasks))


def _episodes(
    program: Program,
    inputs: RunInputs,
    experience: Experience,
    num_runs: int,
    settings: TrainingSettings,
    report: Callable[[int], None],
) -> EpisodeStatistics:
    """Return sums over the episodes of each run that are scored."""
    per_unroll = experience.steps_per_unroll
    last = settings.num_unrolls(per_unroll)
    scored_from = settings.scored_from // per_unroll
    states = program.init((), inputs)
    totals = no_totals = program.no_totals((), inputs, states)
    for begin, end in ((0, scored_from), (scored_from, last)):
        totals = no_totals
        for first in range(begin, end, _UNROLLS_PER_CALL):
            unrolls = min(_UNROLLS_PER_CALL, end - first)
            states, totals = program.advance(
                (), inputs, states, totals, jnp.int32(first), jnp.int32(unrolls)
            )
            jax.block_until_ready(totals)
            report((first + unrolls) * per_unroll * num_runs)
            stopping.raise_if_requested()
    return jax.device_get(totals.episodes)
