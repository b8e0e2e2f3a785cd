"""Ablations: rules that do not read a part of what they would read.

After DiscoRL, figures 3 and 4e. `launch/configs/ablations.py` discovers rules of which a part is
ablated; rule files say so, and `read` and `load` read these files, too.
"""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

import disco
from disco import anchored, rule_files
from disco.checks import OutputShapes
from disco.meta_network import Inputs, LifetimeState
from disco.types import Metrics
from disco_common.pytrees import register_dataclass, static


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Ablated(disco.AnchoredRule):
    """A rule that reads zeros in place of what is hidden from it.

    Further fields as in `disco.AnchoredRule`, whose `reads_predictions` hides y and z.

    Attributes:
      reads_values: whether it reads values, returns and advantages.
      has_lifetime: whether the lifetime RNN is stepped; otherwise it keeps its initial state.
    """

    reads_values: bool = static(True)
    has_lifetime: bool = static(True)

    def read(self, inputs: Inputs, memory: disco.AnchoredMemory) -> Inputs:
        inputs = super().read(inputs, memory)
        if self.reads_values:
            return inputs
        names = ("estimates", "normalized_advantage", "normalized_action_advantage")
        hidden: dict[str, Any] = {
            name: jax.tree.map(jnp.zeros_like, getattr(inputs, name)) for name in names
        }
        if len(inputs.of_agent) > 1:  # The first alone is not of values and rewards.
            blind = dataclasses.replace(inputs, **hidden)
            none = anchored.agent_features(self.init_memory(), blind)
            hidden["of_agent"] = inputs.of_agent[0], *none[1 : len(inputs.of_agent)]
        return dataclasses.replace(inputs, **hidden)

    def _advanced(
        self, memory: disco.AnchoredMemory, lifetime: LifetimeState
    ) -> disco.AnchoredMemory:
        return super()._advanced(memory, lifetime if self.has_lifetime else memory.lifetime)


FORMS = (*anchored.FORMS, Ablated)


def read(
    name: str | os.PathLike, sha256: str | None = None
) -> tuple[disco.DiscoveredRule, dict[str, Any]]:
    """Return a rule, ablated or not, and its file's header; see `disco.load`."""
    return rule_files.read(name, sha256, FORMS)


def load(name: str | os.PathLike) -> disco.DiscoveredRule:
    """Return a rule, ablated or not; see `disco.load`."""
    return read(name)[0]


def create(
    key: PRNGKeyArray, sizes: disco.MetaNetworkSizes, is_published: bool, **settings: Any
) -> disco.DiscoveredRule:
    """Return a random rule of the simplest form that has these settings, ablated or not.

    Arguments and errors are those of `disco.DiscoveredRule.create`.
    """
    form, own = anchored.form_of(sizes, settings, FORMS)
    return form.create(key, sizes, is_published, **own)


def without_predictions(rule: disco.DiscoveredRule) -> disco.AnchoredRule:
    """Return a rule with y and z hidden from all its targets."""
    form = type(rule) if isinstance(rule, disco.AnchoredRule) else disco.AnchoredRule
    return form(**{**vars(rule), "reads_predictions": False})


@register_dataclass
@dataclasses.dataclass(frozen=True)
class WithoutBootstrapping(disco.Rule):
    """A discovered rule whose targets of y and z do not depend on y and z (DiscoRL, figure 4e).

    `without_predictions` hides y and z from all targets instead.
    """

    rule: disco.DiscoveredRule

    @property
    def target_params_coefficient(self) -> float | None:  # pyright: ignore
        return self.rule.target_params_coefficient

    def output_shapes(self, num_actions: int) -> OutputShapes:
        return self.rule.output_shapes(num_actions)

    def init_memory(self) -> Any:
        return self.rule.init_memory()

    def targets(
        self,
        outputs: disco.Outputs,
        target_outputs: disco.Outputs | None,
        trajectory: disco.Trajectory,
        state: disco.RuleState,
    ) -> tuple[disco.DiscoveredTargets, disco.RuleState]:
        blind = without_predictions(self.rule)
        memory = disco.AnchoredMemory(**vars(state.memory))
        blind_state = dataclasses.replace(state, memory=memory)
        hidden, _ = blind.targets(outputs, target_outputs, trajectory, blind_state)
        full, new_state = self.rule.targets(outputs, target_outputs, trajectory, state)
        return dataclasses.replace(full, y=hidden.y, z=hidden.z), new_state

    def transition_losses(
        self, outputs: disco.Outputs, targets: Any, trajectory: disco.Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        return self.rule.transition_losses(outputs, targets, trajectory)
