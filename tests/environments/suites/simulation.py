"""Returns of simple policies in grid-worlds, for the tests."""

import jax
import jax.numpy as jnp
import numpy as np

from environments import TaskGroup, stream
from environments.suites.grid_worlds import ORTHOGONAL
from tests.environments.streams import dynamics_of

FAR = 500.0  # farther than any way is long


def random_and_greedy_returns(group: TaskGroup, *, steps: int, batch: int = 8, seed: int = 0):
    """Mean episode return of random actions and of greedy ones, each float `[tasks]`.

    Greedy: by the shortest way to the nearest good, around what costs.
    """
    dynamics = dynamics_of(group)
    number = dynamics.action_spec().num_values
    tasks = jax.tree.map(np.asarray, group.task_params)
    distances = jnp.asarray(
        np.stack(
            [
                _all_distances(dynamics, jax.tree.map(lambda leaf, i=i: leaf[i], tasks))
                for i in range(len(group.names))
            ]
        ),
        jnp.float32,
    )

    def greedy_action(task, distances, state, key):
        target = dynamics.neighbours(ORTHOGONAL)[state.agent]
        target = jnp.where(task.walls[target], state.agent, target)
        good = state.present & (task.reward > 0)
        bad = state.present & (task.reward < 0)
        to_go = jnp.where(good, distances[target][:, state.cell], 2 * FAR).min(axis=1)
        # Objects in the way count as a detour; noise far smaller than a step breaks ties.
        harm = ((target[:, None] == state.cell) & bad).any(axis=1)
        score = to_go + FAR * harm.astype(float) + jax.random.uniform(key, to_go.shape, maxval=0.1)
        return jnp.argmin(score).astype(jnp.int32)

    def returns(task, distances, greedy, key):
        """Sum of the returns of the episodes that ended, and their number."""
        reset_key, scan_key = jax.random.split(key)
        state, timestep = dynamics.reset(task, reset_key)

        def step(carry, key):
            state, timestep, running, total, episodes = carry
            action_key, step_key = jax.random.split(key)
            action = jnp.where(
                greedy,
                greedy_action(task, distances, state, action_key),
                jax.random.randint(action_key, (), 0, number, jnp.int32),
            )
            state, timestep = stream(dynamics, task, state, timestep, action, step_key)
            running = running + timestep.reward
            last = timestep.last()
            total = total + jnp.where(last, running, 0.0)
            running = jnp.where(last, 0.0, running)
            return (state, timestep, running, total, episodes + last.astype(int)), None

        carry = (state, timestep, jnp.float32(0), jnp.float32(0), jnp.int32(0))
        (*_, total, episodes), _ = jax.lax.scan(step, carry, jax.random.split(scan_key, steps))
        return total, episodes

    greedy = jnp.arange(2 * batch) >= batch
    keys = jax.random.split(jax.random.key(seed), (len(group.names), 2 * batch))
    over_batch = jax.vmap(returns, in_axes=(None, None, 0, 0))
    over_tasks = jax.jit(jax.vmap(over_batch, in_axes=(0, 0, None, 0)))
    total, episodes = (
        np.asarray(x) for x in over_tasks(group.task_params, distances, greedy, keys)
    )
    total, episodes = total.reshape(-1, 2, batch).sum(-1), episodes.reshape(-1, 2, batch).sum(-1)
    mean = total / np.maximum(episodes, 1)
    return mean[:, 0], mean[:, 1]


def _all_distances(dynamics, task) -> np.ndarray:
    """Steps between all cells, around walls and hazards that have fixed cells."""
    hazards = task.used & ~task.random & (task.reward < 0)
    blocked = task.walls.copy()
    blocked[task.cell[hazards]] = True
    neighbours = np.asarray(dynamics.neighbours(ORTHOGONAL))
    table = np.where(np.eye(blocked.size, dtype=bool), 0.0, FAR)
    while True:
        shorter = np.minimum(table, 1.0 + table[neighbours].min(axis=1))
        shorter[blocked] = FAR
        if (shorter == table).all():
            return table
        table = shorter
