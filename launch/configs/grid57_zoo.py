"""Discovery of the zoo's rule on `grid57`: about half an hour on two cores.

It differs from `grid57_laptop` in its number of meta-steps, and in its population of 57 agents, one
per task, so that each meta-gradient is the mean over all tasks. The rule that ships as `grid57` was
discovered with it before `grid57_laptop` started from a rule that learns (see its card).
"""

import dataclasses

from ml_collections import ConfigDict

from launch.configs import grid57_laptop
from launch.configuration import to_config
from launch.settings import DiscoverSettings


def get_settings() -> DiscoverSettings:
    """Return the settings of the run."""
    laptop = grid57_laptop.get_settings()
    return dataclasses.replace(
        laptop,
        meta_steps=1000,
        population=dataclasses.replace(laptop.population, size=57),
    )


def get_config() -> ConfigDict:
    """Return the config for `--config`."""
    return to_config(get_settings())
