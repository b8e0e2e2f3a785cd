"""`grid_generated`: 256 grid-worlds to discover rules on, each drawn from its number.

The variants, mazes and probabilities of `grid57`, with rewards of other scales and, in half of the
tasks, noise in every reward. All tasks share `DYNAMICS`. Many tasks from a distribution, instead
of a few: Jackson et al. (2023), "Discovering general reinforcement learning algorithms with
adversarial environment design" (GROOVE, arXiv 2310.02782), choose among such levels, too.
"""

import functools

import jax.numpy as jnp
import numpy as np

from environments.base import Environment
from environments.noise import NoisyRewards, NoisyTask, log_uniform
from environments.protocols import DISCORL, LPG, SuiteProtocol
from environments.suites import grid57

SEED = 256
DYNAMICS = NoisyRewards(grid57.DYNAMICS)
SCALES = (0.5, 2.0)  # Of rewards, log-uniform.
NOISES = (0.05, 1.0)  # Standard deviation by the scale of rewards, log-uniform.

SUITES = {"grid_generated": grid57.names("grid_generated", 256, digits=3)}
PROTOCOLS = {"grid_generated": SuiteProtocol(papers=(DISCORL, LPG))}


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of the suite, for example `grid_generated/000_dense_fixed`."""
    number = SUITES["grid_generated"].index(name)
    rng = np.random.default_rng([SEED, number, 1])
    scale = log_uniform(rng, *SCALES)
    noise = scale * log_uniform(rng, *NOISES)
    # Ten variants take turns: of each, every second task has noise.
    has_noise = number // 10 % 2 == 1
    params = NoisyTask(
        task=grid57.draw(name, SEED, scale=scale), noise=jnp.float32(noise if has_noise else 0.0)
    )
    return Environment(name=name, dynamics=DYNAMICS, params=params)
