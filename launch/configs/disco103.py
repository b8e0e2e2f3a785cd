"""Discovery of Disco103: two agents on each of Atari's, ProcGen's and DMLab-30's environments.

206 agents on 103 environments (DiscoRL, Methods: 60 hours on 2,048 TPUv3 cores). All other settings
are those of `disco57`, also the lifetimes in frames: 50, 25, 12.5 and 5 million actions in Atari
and DMLab, four times as many in ProcGen, which repeats no actions. Agents on DMLab have a memory,
as in IMPALA, and no stacked frames. It needs DeepMind Lab, and was not tested as a whole. Without
DeepMind Lab:

    --config.suite=atari57,procgen16 --config.population.size=146
"""

import dataclasses

from launch.configs import disco57
from launch.support.discovery_config import DiscoveryRunConfig


def get_config() -> DiscoveryRunConfig:
    """Return the settings of the run."""
    smaller = disco57.get_config()
    return dataclasses.replace(
        smaller,
        suite="atari57,procgen16,dmlab30",
        families=("dmlab: memory=256 frame_stack=1",),
        population=dataclasses.replace(smaller.population, size=206),
    )
