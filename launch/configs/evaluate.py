"""Evaluation at the size of a laptop: minutes on two cores.

The settings depend on the family of the first environment or suite that is named: `--suite=crafter`
without `--config` has those of `get_config("crafter")`. Learning rates of the small tasks are where
Disco103 and actor-critic do well; networks are small, and images are cut into patches.
"""

from ml_collections import ConfigDict

from agents.networks import NetworkConfig
from agents.rule_agent import AgentConfig
from evaluation.config import EvaluationConfig
from launch.configuration import to_config

_IMAGES = ("atari", "atari100k", "procgen", "procgen_unseen", "crafter", "dmlab", "dmlab_test")


def get_settings(family: str = "") -> EvaluationConfig:
    """The evaluation as a dataclass.

    Args:
      family: what stands before the slash in an environment's name; "" or any other one for the
        settings of vectors and grids.
    """
    if family in (*_IMAGES, "nethack"):
        return EvaluationConfig(
            agent=AgentConfig(
                network=NetworkConfig(
                    torso=(64,), channels=(16, 32), blocks=1, patch=4, model=64, head=(64,)
                ),
                learning_rate=3e-4,
                num_environments=8,
                unroll_length=16,
                batch_size=16,
                replay_ratio=0.5,
                replay_capacity=1_024,
                frame_stack=1 if family == "nethack" else 4,
            ),
            seeds=2,
            # Episodes are long, and those of untrained agents in NetHack the longest.
            budget=60_000 if family == "nethack" else 20_000,
            score_window=0.5,
            baselines=("actor_critic",),
            baseline_learning_rates=(3e-4,),
        )
    if family in ("minatar", "sokoban"):
        return EvaluationConfig(
            agent=AgentConfig(
                network=NetworkConfig(torso=(256,), channels=(16,), blocks=0, model=64, head=(64,)),
                learning_rate=1e-2,
                num_environments=8,
                unroll_length=16,
                batch_size=16,
                replay_ratio=0.5,
                replay_capacity=1_024,
            ),
            seeds=3,
            budget=200_000,
            baselines=("actor_critic",),
            baseline_learning_rates=(1e-3,),
        )
    if family == "bsuite":
        # One environment, as bsuite's scores ask for, and much replay, as its budgets are small.
        return EvaluationConfig(
            agent=AgentConfig(
                network=NetworkConfig(torso=(256,), model=64, head=(64,)),
                learning_rate=1e-2,
                num_environments=1,
                unroll_length=16,
                batch_size=16,
                replay_ratio=1.0,
                replay_capacity=1_024,
            ),
            seeds=3,
            budget=30_000,
            baselines=("actor_critic",),
        )
    if family in ("control_proprio", "control_vision"):
        # Actions are vectors, among which rules cannot choose.
        return EvaluationConfig(seeds=3, budget=50_000, baselines=())
    return EvaluationConfig()


def get_config(family: str = "") -> ConfigDict:
    """For `--config`."""
    return to_config(get_settings(family))
