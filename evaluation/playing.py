"""Acting of a trained agent."""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray, PyTree

import disco
import environments
from agents.history import History
from agents.protocol import Agent, Batch, Mode
from disco_common import compilation
from training import collection
from training.host_collection import HostActor
from training.passes import StaticAgent, split_agent


def play(
    agent: Agent,
    learner: Any,
    task: environments.Environment,
    num_steps: int,
    num_environments: int,
    seed: int,
) -> Batch:
    """Return an agent's transitions: NumPy arrays `[num_steps, num_environments, ...]`.

    Raises:
      SimulatorError: if a simulator failed.
    """
    environments.require_declared_outputs(task)
    key, acting_state = jax.random.key(seed), jax.device_put(agent.acting_state(learner))
    if task.is_host:
        assert isinstance(task.dynamics, environments.HostEnvironment)
        actor = HostActor(
            agent, task.dynamics, task.params, num_environments, seed, mode=Mode.EVALUATION
        )
        try:
            return actor.collect(acting_state, key, num_steps).batch
        finally:
            actor.close()
    static, arrays = split_agent(agent)
    assert isinstance(task.dynamics, environments.JaxEnvironment)
    return jax.device_get(
        _unroll(
            static,
            task.dynamics,
            num_steps,
            num_environments,
            arrays,
            acting_state,
            task.params,
            key,
        )
    )


@compilation.jit_compiled_fast(static_argnums=(0, 1, 2, 3))
def _unroll(
    static: StaticAgent,
    dynamics: environments.JaxEnvironment,
    num_steps: int,
    num_environments: int,
    arrays: Any,
    acting_state: Any,
    task: PyTree,
    key: PRNGKeyArray,
) -> Batch:
    agent = static.with_arrays(arrays)
    start_key, act_key = jax.random.split(key)
    start = collection.start(agent, dynamics, task, start_key, num_environments)
    return collection.collect(
        agent, dynamics, task, acting_state, start, act_key, num_steps, Mode.EVALUATION
    )[1]


def frames(agent: Agent, batch: Batch | disco.Trajectory) -> Any:
    """Return the environment's observations `[T+1, B, ...]`, without those before the first row."""
    observation: Any = batch.observation
    if isinstance(observation, History):
        rows_before = agent.requirements.history.rows_before
        return jax.tree.map(lambda x: x[rows_before:], observation.frames)
    return observation
