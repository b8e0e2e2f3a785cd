"""Discovery of the zoo's rule: meta-gradients from a rule whose prior was evolved.

    python -m launch.discover --config=launch/configs/grid57_zoo.py \
        --config.rule.start=runs/evolution/rule.npz --workdir=runs/zoo_0

A few minutes on two cores after the start. It differs from `grid57_laptop` in its tasks (generated
ones, too), in its number of meta-steps, in a larger meta learning rate, and in the agents' learning
rate, which the evolution found (`launch.evolve`; `docs/measurements/discovery.md`).
"""

import dataclasses

from launch.configs import grid57_laptop
from launch.support.discovery_config import DiscoveryRunConfig

LEARNING_RATE = 0.02


def get_config() -> DiscoveryRunConfig:
    """Return the settings of the run."""
    laptop = grid57_laptop.get_config()
    return dataclasses.replace(
        laptop,
        suite="grid57,grid_generated,mdp_generated",
        meta_steps=120,
        agent=dataclasses.replace(laptop.agent, learning_rate=LEARNING_RATE),
        meta=dataclasses.replace(laptop.meta, learning_rate=1e-3),
        probe=dataclasses.replace(laptop.probe, interval=60, num_tasks=24),
    )
