"""What an agent does, without learning; and a strip of pictures of it.

A strip shows an episode of the agent at its run's end, where its observations are pictures
(`agents.pictures`).
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

import disco
import environments
from agents import compilation, pictures
from agents.agent import Agent
from agents.frames import History
from agents.host_acting import HostActor, make_act

_STEPS = 200  # At most, of an episode.


def play(
    agent: Agent,
    params: disco.Params,
    task: environments.Environment,
    num_steps: int,
    num_environments: int,
    seed: int,
) -> disco.Trajectory:
    """What an agent does: NumPy arrays `[num_steps + 1, num_environments, ...]`.

    Raises:
      SimulatorError: if a simulator failed.
    """
    key = jax.random.key(seed)
    if task.is_host:
        assert isinstance(task.dynamics, environments.HostEnvironment)
        act = _make_act(agent.network)
        actor = HostActor(task.dynamics, agent.network, act, task.task, num_environments, seed)
        try:
            return actor.collect(params, key, num_steps).trajectory
        finally:
            actor.close()
    return jax.device_get(_rollout(agent, num_steps, num_environments, params, task.task, key))


_make_act = functools.lru_cache(maxsize=8)(make_act)


@compilation.jit_compiled_fast(static_argnums=(0, 1, 2))
def _rollout(
    agent: Agent,
    num_steps: int,
    num_environments: int,
    params: disco.Params,
    task: PyTree,
    key: PRNGKeyArray,
) -> disco.Trajectory:
    start_key, act_key = jax.random.split(key)
    start = agent.start(task, start_key, num_environments)
    return agent.act(params, task, start, act_key, num_steps)[1]


def one_environment(trajectory: disco.Trajectory, number: int) -> disco.Trajectory:
    """The part of one environment, still with an axis B."""
    which = slice(number, number + 1)
    return dataclasses.replace(
        jax.tree.map(lambda x: x[:, which], dataclasses.replace(trajectory, core_state=None)),
        core_state=jax.tree.map(lambda x: x[which], trajectory.core_state),
    )


def frames(agent: Agent, trajectory: disco.Trajectory) -> Any:
    """The environment's observations `[T+1, B, ...]`, also where the agent sees histories."""
    observation: Any = trajectory.observation
    if isinstance(observation, History):
        return jax.tree.map(lambda x: x[agent.network.seen.rows_before :], observation.frames)
    return observation


def strip(
    agent: Agent,
    params: disco.Params,
    task: environments.Environment,
    seed: int,
    num_frames: int,
) -> bytes:
    """Pictures of an episode that the agent plays, or of its beginning, side by side.

    Args:
      agent: that plays.
      params: of its network.
      task: that it plays; its observations are pictures.
      seed: of the episode.
      num_frames: at most, evenly spaced.

    Returns:
      A PNG file.

    Raises:
      SimulatorError: if a simulator failed.
    """
    trajectory = play(agent, params, task, _STEPS, 1, seed)
    ends = np.flatnonzero(trajectory.last[:, 0])
    num_steps = int(ends[0]) + 1 if len(ends) else _STEPS
    reward = float(np.sum(trajectory.reward[:num_steps, 0]))
    seen = frames(agent, trajectory)[: num_steps + 1, 0]
    return pictures.strip(seen, reward, num_frames, is_whole=len(ends) > 0)
