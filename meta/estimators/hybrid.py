"""A hybrid: an evolution of what is slow to show, and meta-gradients of what is fast.

Some layers of a meta-network act over a whole lifetime, such as a policy's temperature and pace.
These evolve, by OpenES (`meta.estimators.evolution`); meta-gradients of a few updates
(`meta.estimators.meta_gradient`) improve all other layers. Every so many meta-steps, the first one
included, a meta-step begins with a generation of fresh agents that learn by the newest rule with
the evolving layers perturbed. Neither changes the other's layers (`DiscoveryConfig.frozen_layers`).
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

import disco
import environments
from meta.config import DiscoveryConfig
from meta.estimators.candidates import Generation
from meta.estimators.evolution import Evolution
from meta.estimators.meta_gradient import MetaGradient
from meta.estimators.protocol import Metrics, finite_mean
from meta.meta_step import AgentMetrics
from meta.population import DiscoveryState


@chex.dataclass(frozen=True)
class HybridState:
    """The state of a run.

    Attributes:
      discovery: that of the meta-gradients, with the rule.
      search: that of the evolution, evosax's, whose mean has the rule's evolving layers.
    """

    discovery: DiscoveryState
    search: Any


class Hybrid:
    """A discovery by both (`meta.estimators.protocol.Discovery`), in JAX environments."""

    has_hosts = False
    can_stop_within = False
    host_replay_bytes = 0

    def __init__(
        self,
        config: DiscoveryConfig,
        tasks: tuple[environments.Environment, ...],
        rule: disco.DiscoveredRule,
        devices: Sequence[Any] | None = None,
    ):
        """Prepare a run from a rule.

        Raises:
          ValueError: as of both parts, and if all layers evolve.
        """
        self._evolution = Evolution(config, tasks, rule)
        self._meta_gradient = MetaGradient(config, tasks, rule, devices)
        self._interval = config.evolution.interval
        if {*config.evolution.layers} == {*rule.parameters}:
            raise ValueError(
                "evolution.layers has all layers of the rule; expected some without estimator"
                f" {config.estimator!r}'s meta-gradients, or estimator 'open_es'."
            )

    @functools.cached_property
    def abstract_state(self) -> HybridState:
        search = self._evolution.abstract_state.search
        return HybridState(discovery=self._meta_gradient.abstract_state, search=search)

    @functools.cached_property
    def agents_stacked(self) -> HybridState:
        search = self._evolution.agents_stacked.search
        return HybridState(discovery=self._meta_gradient.agents_stacked, search=search)

    def check(self) -> None:
        """Check that the run can be made; raises as both parts."""
        self._evolution.check()
        self._meta_gradient.check()

    def init(self) -> HybridState:
        search = self._evolution.init().search
        return HybridState(discovery=self._meta_gradient.init(), search=search)

    def restored(self, state: HybridState) -> HybridState:
        restored = self._meta_gradient.restored(state.discovery)
        return dataclasses.replace(state, discovery=restored)

    def compile(self) -> None:
        self._meta_gradient.compile()

    def step(
        self, state: HybridState, report: Callable[[float], None] = lambda part: None
    ) -> tuple[HybridState, tuple[tuple[AgentMetrics, ...], Generation | None]]:
        """Make a generation if it is due, and a meta-step by meta-gradients.

        Raises:
          StoppedBySignal: after a stop signal within the generation; the state is unchanged.
        """
        discovery, search, made = state.discovery, state.search, None
        meta_step = int(discovery.meta_step)
        if meta_step % self._interval == 0:
            # The two parts order the devices in meshes of their own.
            rule = jax.tree.map(jnp.asarray, jax.device_get(discovery.rule))
            number = meta_step // self._interval
            rule, search, made = self._evolution.generation(number, rule, search, report)
            rule = jax.device_put(jax.device_get(rule), self._meta_gradient.sharding.rule)
            discovery = dataclasses.replace(discovery, rule=rule)
        discovery, metrics = self._meta_gradient.step(discovery)
        return HybridState(discovery=discovery, search=search), (metrics, made)

    def summarize(
        self, window: Sequence[tuple[tuple[AgentMetrics, ...], Generation | None]]
    ) -> Metrics:
        """Return the metrics of the meta-gradients, and those of the window's generations.

        `mean_return` and `update_norm` are None if there was no generation.
        """
        made = [generation for _, generation in window if generation is not None]
        returns = [x for generation in made for x in generation.returns.ravel()]
        return {
            **self._meta_gradient.summarize([metrics for metrics, _ in window]),
            "mean_return": finite_mean(np.array(returns)),
            "update_norm": finite_mean(np.array([generation.norm for generation in made])),
        }

    def environment_steps(self, meta_steps: int) -> int:
        """Return the environment steps of all agents' learning in the first meta-steps."""
        generations = self._generations(meta_steps)
        return self._meta_gradient.environment_steps(
            meta_steps
        ) + self._evolution.environment_steps(generations)

    def _generations(self, meta_steps: int) -> int:
        return -(-meta_steps // self._interval)

    def average_rule(self, state: HybridState) -> tuple[disco.DiscoveredRule, dict[str, int]]:
        """Return the moving average of the rules, and the environment steps by task."""
        average, steps = self._meta_gradient.average_rule(state.discovery)
        generations = self._generations(int(state.discovery.meta_step))
        evolved = self._evolution.steps_by_task(generations)
        return average, dict(collections.Counter(steps) + collections.Counter(evolved))

    def close(self) -> None:
        self._meta_gradient.close()
