"""Discovery of the zoo's rule: meta-gradients from a rule whose prior was evolved.

    python -m launch.discover --config=launch/configs/grid57_zoo.py \
        --config.rule.start=runs/evolution/rule.npz --workdir=runs/zoo_0

A few minutes on two cores after the start. It differs from `grid57_laptop` in its tasks (generated
ones, too), in its number of meta-steps, in a larger meta learning rate, and in the agents' learning
rate, which the evolution found (`launch.evolve`; `docs/measurements/discovery.md`).
"""

import dataclasses

from ml_collections import ConfigDict

from disco_common.configuration import to_config
from launch.configs import grid57_laptop
from launch.support.settings import DiscoverSettings

LEARNING_RATE = 0.02


def get_settings() -> DiscoverSettings:
    """Return the settings of the run."""
    laptop = grid57_laptop.get_settings()
    return dataclasses.replace(
        laptop,
        suite="grid57,grid_generated,mdp_generated",
        meta_steps=120,
        agent=dataclasses.replace(laptop.agent, learning_rate=LEARNING_RATE),
        meta=dataclasses.replace(laptop.meta, learning_rate=1e-3),
        probe=dataclasses.replace(laptop.probe, interval=60, num_tasks=24),
    )


def get_config() -> ConfigDict:
    """Return the config for `--config`."""
    return to_config(get_settings())
