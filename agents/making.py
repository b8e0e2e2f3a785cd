"""Agents of environments whose learning rate is an array, so that it compiles nothing anew."""

import dataclasses
from typing import Any

import jax.numpy as jnp

import environments


def make_agent(kind: Any, config: Any, task: environments.Environment) -> Any:
    """Return the agent of a config for a task.

    Agents that differ in nothing but the learning rate share a compiled program.

    Args:
      kind: the agent's class. It has `create(config, dynamics)` and a field `learning_rate`.
      config: with a field `learning_rate`.
      task: to learn.

    Raises:
      ValueError: if its actions are not discrete.
    """
    agent = kind.create(dataclasses.replace(config, learning_rate=1.0), task.dynamics)
    return dataclasses.replace(agent, learning_rate=jnp.float32(config.learning_rate))


def with_images_of(config: Any, task: environments.Environment) -> environments.Environment:
    """Return a task with the images that a config chooses, where the task offers several.

    Args:
      config: with `images`, side and channels; empty for the task's own.
      task: to learn.
    """
    return environments.with_images(task, *config.images) if config.images else task
