"""Small discovery runs for the tests of the meta-gradient and of discovery."""

import dataclasses
from typing import Any

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco import MetaNetworkSizes
from meta.config import DiscoveryConfig, MetaConfig, PopulationConfig, ValueFunctionConfig
from meta.estimators.meta_gradient import MetaGradient
from meta.estimators.protocol import Metrics
from meta.run import Observer
from tests.disco.common import parameters_of

SIZES = MetaNetworkSizes(
    prediction=6,
    prediction_embedding=4,
    action_features=10,
    action_hidden=4,
    action_embedding=2,
    trajectory=8,
    lifetime=8,
    lifetime_input=4,
    prior_outputs=1,
    agent_features=1,
)
NUM_UPDATES = 2
AGENT = RuleAgentConfig(
    network=NetworkConfig(torso=(8,), model=8, head=()),
    learning_rate=1e-2,
    num_environments=2,
    unroll_length=5,
    batch_size=4,
    replay_ratio=0.5,
    replay_capacity=8,
)
STEPS = NUM_UPDATES * AGENT.steps_per_update  # Of an agent, in a meta-step.


def small_rule(seed: int = 0) -> disco.AnchoredRule:
    """With all that a rule can have; the golden vectors are of the published form."""
    return disco.AnchoredRule(
        parameters_of(SIZES, seed), SIZES, num_bins=11, max_value=5.0, policy_prior=0.9
    )


def small_discovery(
    suite: str | tuple[environments.Environment, ...] = "catch/5x5,catch/4x3",
    *,
    population: PopulationConfig,
    seed: int = 0,
    devices: Any = None,
    devices_per_agent: int = 1,
    **meta: Any,
) -> MetaGradient:
    """A discovery run whose meta-step takes milliseconds, once it is compiled."""
    tasks = suite
    if isinstance(tasks, str):
        tasks = tuple(environments.make(name) for name in tasks.split(","))
    config = DiscoveryConfig(
        agent=AGENT,
        value_function=ValueFunctionConfig(hidden=(8,)),
        population=population,
        meta=dataclasses.replace(
            MetaConfig(num_updates=NUM_UPDATES, validation_trajectories=2, validation_length=6),
            **meta,
        ),
        seed=seed,
        devices_per_agent=devices_per_agent,
    )
    return MetaGradient(config, tasks, small_rule(), devices)


class Reporting(Observer):
    """Keeps the reports of a run."""

    def __init__(self, reports: list[Metrics]):
        self._reports = reports

    def on_report(self, metrics: Metrics) -> None:
        self._reports.append(metrics)
