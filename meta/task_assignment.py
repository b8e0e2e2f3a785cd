"""Assignment of tasks to the agents of the population."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int


def group_sizes(num_tasks: Sequence[int], population_size: int) -> list[int]:
    """Return the number of agents of each group of tasks, if there are fewer agents than tasks.

    The sizes are proportional to the numbers of tasks, rounded, and at least 1.

    Args:
      num_tasks: of each group.
      population_size: at least the number of groups, at most the number of tasks.
    """
    shares = population_size * np.array(num_tasks) / sum(num_tasks)
    sizes = np.maximum(1, np.floor(shares).astype(int))
    while sizes.sum() < population_size:
        sizes[np.argmax(shares - sizes)] += 1
    while sizes.sum() > population_size:
        sizes[np.argmax(np.where(sizes > 1, sizes - shares, -np.inf))] -= 1
    return sizes.tolist()


def initial_tasks(num_agents: int, num_tasks: int) -> Int[np.ndarray, "agents"]:
    """Return the task of each agent of a group's first generation."""
    return np.arange(num_agents) % num_tasks


def reassign_tasks(
    tasks: Int[np.ndarray, "agents"],
    is_reset: Bool[np.ndarray, "agents"],
    task_meta_steps: Int[np.ndarray, "tasks"],
    keeps_tasks: bool = False,
) -> Int[np.ndarray, "agents"]:
    """Return the task of each agent of a group after some agents are reset.

    Of the tasks that the fewest other agents have, an agent that is reset takes the least-trained
    one. If every task has the same number of agents, each agent keeps its task.

    Args:
      tasks: the agents' tasks before, as indices.
      is_reset: which agents are reset.
      task_meta_steps: the meta-steps that agents have spent on each task.
      keeps_tasks: whether each agent keeps its task also where some tasks have one agent more than
        others.
    """
    is_covered = keeps_tasks and len(tasks) >= len(task_meta_steps)
    if is_covered or len(tasks) % len(task_meta_steps) == 0:
        return tasks
    tasks = tasks.copy()
    num_agents = np.bincount(tasks[~is_reset], minlength=len(task_meta_steps))
    for agent in np.flatnonzero(is_reset):
        tasks[agent] = np.lexsort((task_meta_steps, num_agents))[0]
        num_agents[tasks[agent]] += 1
    return tasks
