"""Discovery on varied tasks, by evolution strategies or others: hours on two cores.

    python -m launch.discover --config=varied --workdir=runs/varied
    python -m launch.discover --config=varied:anchored,meta_gradient --workdir=runs/meta_gradient

Agents adapt to the scales of inputs and rewards (`agents.scales`), which differ ten thousand times
between these tasks. What the rule is left to find is what to make of an agent's progress: its
meta-network reads it, and scales the agent's steps. Agents update four times as often as those of
`grid57_laptop`, from half as large batches. Some tasks have other networks, numbers of environments
and updates (`FAMILIES`), so that no rule depends on one.
"""

import dataclasses
from collections.abc import Mapping

from disco.anchored import PRIOR
from launch.configs import grid57_laptop
from launch.support.discovery_config import DiscoveryRunConfig, ProbeConfig, RuleConfig
from meta.config import EvolutionConfig, PopulationConfig

# The replay holds 8,192 steps, so that the shortest lifetime goes on when it is full. Rules of
# lifetimes that end before let agents forget what they had learned once it is.
LIFETIMES = (12_800, 25_600, 51_200)
# By the kind of task and its encoding, each of which is a program of its own anyway.
NETWORKS = (
    "varied/*_mdp_features: torso=64x64 head=64",
    "varied/*_chain_coordinates: torso=64x64 head=64",
    "varied/*_rooms_view: torso=128 head=128",
    "varied/*_pendulum_state: torso=128 head=128",
)
FAMILIES = (
    *NETWORKS,
    "varied/*_cart_state: num_environments=8 batch_size=16",
    "varied/*_grid_coordinates: num_environments=8 batch_size=16",
    "varied/*_mdp_projected_64: num_environments=4 batch_size=16",
    "varied/*_bandit_features: num_environments=8 unroll_length=8 batch_size=32",
    "varied/*_grid_projected_64: num_environments=4 unroll_length=8 batch_size=16",
)

_SLOW = ("lifetime/input", "lifetime/lstm", "trajectory/lifetime_gate")
_FORMS = ("published", "anchored", "progress")
# The same population, and what each estimator needs. Meta-gradients and persistent ES let all
# agents make their updates at the same time; the latter has a place for each kind of task.
_ESTIMATORS: Mapping[str, Mapping[str, int]] = {
    "open_es": {"size": 128, "num_tasks": 16, "meta_steps": 300},
    "cma_es": {"size": 128, "num_tasks": 16, "meta_steps": 300},
    "persistent_es": {"size": 128, "num_tasks": 16, "meta_steps": 1200},
    "meta_gradient": {"size": 32, "num_tasks": 4, "meta_steps": 10_000},
    "hybrid": {"size": 32, "num_tasks": 4, "meta_steps": 10_000},
}


def get_config(form_and_estimator: str = "progress,open_es") -> DiscoveryRunConfig:
    """Return the settings of the run.

    Args:
      form_and_estimator: a form of the rule, and one of `meta.config.ESTIMATORS`, which need not be
        given. The forms are `published`, from a random start; `anchored`, which starts as the
        hand-set rule; `progress`, which also reads seven numbers of the agent's progress and the
        advantage, and scales the agent's steps.

    Raises:
      ValueError: if there is no such form or estimator.
    """
    form, _, estimator = form_and_estimator.partition(",")
    estimator = estimator or "open_es"
    if form not in _FORMS or estimator not in _ESTIMATORS:
        raise ValueError(
            f"varied:{form_and_estimator} is not known; expected one of {', '.join(_FORMS)}, and"
            f" after a comma one of {', '.join(_ESTIMATORS)}."
        )
    own, laptop = _ESTIMATORS[estimator], grid57_laptop.get_config()
    is_evolution = estimator.endswith("_es")
    lifetimes = LIFETIMES if is_evolution else LIFETIMES[1:]
    if is_evolution:
        meta = {"average_decay": 0.9, "agents_at_once": 4}
    else:
        # Meta-gradients of all layers make the rule worse (docs/measurements/varied.md).
        is_of_prior = estimator == "meta_gradient" and form != "published"
        meta = {"learning_rate": 1e-3, "layers": (PRIOR,) if is_of_prior else ()}
    return dataclasses.replace(
        laptop,
        estimator=estimator,
        suite="varied_256",
        meta_steps=own["meta_steps"],
        checkpoint_interval=1 if is_evolution else 200,
        log_interval=1 if is_evolution else 10,
        rule=_rule(form, laptop.rule),
        agent=dataclasses.replace(
            laptop.agent.with_replay(0.75, num_environments=2),
            learning_rate=0.01,
            replay_capacity=512,
            lifetime=0 if is_evolution else lifetimes[-1],
            adapts_steps=True,
            adapts_rewards=True,
        ),
        families=FAMILIES if estimator in ("open_es", "cma_es") else NETWORKS,
        population=PopulationConfig(size=own["size"], lifetimes=lifetimes),
        meta=dataclasses.replace(laptop.meta, **meta),
        evolution=EvolutionConfig(
            num_tasks=own["num_tasks"],
            sigma=0.3,
            learning_rate=0.06,
            layers=_layers(form, estimator),
            truncation=3_200,
        ),
        probe=ProbeConfig(interval=0),
    )


def _layers(form: str, estimator: str) -> tuple[str, ...]:
    """Return the names of the layers that evolve; none for all."""
    if form != "published":
        return (PRIOR,)
    return _SLOW if estimator == "hybrid" else ()


def _rule(form: str, laptop: RuleConfig) -> RuleConfig:
    """Return the settings of a rule's form."""
    if form == "published":
        none = {"prior_outputs": 0, "agent_features": 0, "prior_features": 0}
        sizes = dataclasses.replace(laptop.sizes, **none)
        return RuleConfig(sizes=sizes, num_bins=laptop.num_bins, max_value=laptop.max_value)
    progress = {"prior_outputs": 4, "agent_features": 7, "prior_features": 3}
    own = progress if form == "progress" else {}
    sizes = dataclasses.replace(laptop.sizes, **own)
    return dataclasses.replace(laptop, sizes=sizes, discount=0.99, advantage_weight=1.5)
