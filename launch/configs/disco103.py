"""Discovery of Disco103: two agents on each of Atari's, ProcGen's and DMLab-30's environments.

206 agents on 103 environments (DiscoRL, Methods: 60 hours on 2,048 TPUv3 cores); all else as in
`disco57`, lifetimes included: 50, 25, 12.5 and 5 million actions, which are as many steps in
ProcGen, where no action is repeated. Agents on DMLab see no stacked frames and have a memory, as
IMPALA's. It needs DeepMind Lab, and could not be run here as a whole; without it:

    --config.suite=atari57,procgen16 --config.population.size=146
"""

import dataclasses

from ml_collections import ConfigDict

from launch.configs import disco57
from launch.configuration import to_config
from launch.settings import DiscoverSettings


def get_settings() -> DiscoverSettings:
    """The run as a dataclass."""
    smaller = disco57.get_settings()
    return dataclasses.replace(
        smaller,
        suite="atari57,procgen16,dmlab30",
        families=("dmlab: memory=256 frame_stack=1",),
        population=dataclasses.replace(smaller.population, size=206),
    )


def get_config() -> ConfigDict:
    """For `--config`."""
    return to_config(get_settings())
