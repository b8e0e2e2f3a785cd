"""Discovery by evolution strategies on varied tasks: hours on two cores.

    python -m launch.discover --config=launch/configs/varied.py --workdir=runs/varied

Agents adapt to the scales of inputs and rewards (`agents.scales`), which differ ten thousand times
between these tasks. What the rule is left to find is what to make of an agent's progress: its
meta-network reads it, and scales the agent's steps. Agents update four times as often as those of
`grid57_laptop`, from half as large batches. Some tasks have other networks, numbers of environments
and updates (`FAMILIES`), so that no rule depends on one.
"""

import dataclasses

from launch.configs import grid57_laptop
from launch.support.discovery_config import DiscoveryRunConfig, ProbeConfig
from meta.config import EvolutionConfig, PopulationConfig

# By the kind of task and its encoding, each of which is a program of its own anyway.
FAMILIES = (
    "varied/*_mdp_features: torso=64x64 head=64",
    "varied/*_chain_coordinates: torso=64x64 head=64",
    "varied/*_rooms_view: torso=128 head=128",
    "varied/*_pendulum_state: torso=128 head=128",
    "varied/*_cart_state: num_environments=8 batch_size=16",
    "varied/*_grid_coordinates: num_environments=8 batch_size=16",
    "varied/*_mdp_projected_64: num_environments=4 batch_size=16",
    "varied/*_bandit_features: num_environments=8 unroll_length=8 batch_size=32",
    "varied/*_grid_projected_64: num_environments=4 unroll_length=8 batch_size=16",
)


def get_config() -> DiscoveryRunConfig:
    """Return the settings of the run."""
    laptop = grid57_laptop.get_config()
    sizes = dataclasses.replace(laptop.rule.sizes, prior_outputs=4, agent_features=6)
    return dataclasses.replace(
        laptop,
        estimator="open_es",
        suite="varied_256",
        meta_steps=300,
        checkpoint_interval=1,
        log_interval=1,
        rule=dataclasses.replace(laptop.rule, sizes=sizes, advantage_weight=1.5),
        agent=dataclasses.replace(
            laptop.agent.with_replay(0.75, num_environments=2),
            learning_rate=0.01,
            lifetime=0,
            adapts_steps=True,
            adapts_rewards=True,
        ),
        families=FAMILIES,
        population=PopulationConfig(size=128, lifetimes=(12_800, 25_600, 51_200, 102_400)),
        meta=dataclasses.replace(
            laptop.meta, learning_rate=0.02, average_decay=0.9, agents_at_once=4
        ),
        evolution=EvolutionConfig(
            sigma=0.1, layers=("trajectory/policy_prior",), generations_per_lifetime=40
        ),
        probe=ProbeConfig(interval=0),
    )
