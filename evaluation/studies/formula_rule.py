"""A rule whose policy target is a formula of few numbers, in place of a meta-network.

The target is that of `disco.AnchoredRule`. Each of `OUTPUTS` is a sum of terms, products of
`features`; f_η is the sum of `ADDED`, features of each action, times such sums.
`evaluation.studies.formulas` fits a formula to a rule. Rule files have it as JSON.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import disco
from disco import meta_network, moments, rule_files
from disco.anchored import AGENT_FEATURES, features_of_taken
from disco.meta_network import Inputs, LifetimeState, RawTargets
from disco_common import json_lines
from disco_common.pytrees import register_dataclass, static
from evaluation.studies import ablations

OUTPUTS: tuple[str, ...] = ("log_odds_c", "log_k", "log_m", "log_step")
ADDED: tuple[str, ...] = ("taken", "probability", "action_advantage")
_OF_TRANSITION = ("log_probability", "log_ratio", "normalized_advantage", "td")
_MOST_DEVIATIONS = 3.0
# With which an output is the log-odds of c, or the logarithm of a weight.
_NEUTRAL = (("policy_prior", 0.5), ("advantage_weight", 1.0), ("action_advantage_weight", 1.0))

Terms = Mapping[str, float]
"""The coefficients of a sum's terms: `"1"`, names of features, or products `"a*b"` of them."""


def feature_names(sizes: disco.MetaNetworkSizes) -> tuple[str, ...]:
    """Return the names of `features` of a rule."""
    return AGENT_FEATURES[: sizes.agent_features] + _OF_TRANSITION


def features(inputs: Inputs, memory: disco.AnchoredMemory) -> dict[str, Float[Array, "T B"]]:
    """Return what a formula may read of a transition.

    Returns:
      The numbers that the rule reads of the agent's progress (`disco.anchored.agent_features`); the
      logarithms of the action's probability and ratio (`disco.anchored.prior_features`); its
      advantage, normalised, and the TD error by the deviation of advantages, from -3 to 3.
    """
    scale = moments.deviation(memory.advantage) + 1e-6
    log_probability, log_ratio, _ = features_of_taken(inputs)
    found = dict(zip(AGENT_FEATURES, inputs.of_agent, strict=False)) | {
        "log_probability": log_probability,
        "log_ratio": log_ratio,
        "normalized_advantage": _clipped(inputs.normalized_advantage),
        "td": _clipped(inputs.estimates.td / scale),
    }
    return {name: jnp.broadcast_to(x, log_ratio.shape) for name, x in found.items()}


def added_features(inputs: Inputs) -> dict[str, Float[Array, "T B A"]]:
    """Return what a formula may add to the target's logits.

    Returns:
      1 for the action taken, the policy's probability, and the action's normalised advantage, from
      -3 to 3.
    """
    policy = jax.nn.softmax(inputs.outputs["logits"][:-1])
    taken = jax.nn.one_hot(inputs.trajectory.action, policy.shape[-1], dtype=policy.dtype)
    advantage = _clipped(inputs.normalized_action_advantage[:-1])
    return dict(zip(ADDED, (taken, policy, advantage), strict=True))


def _clipped(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    return jnp.clip(x, -_MOST_DEVIATIONS, _MOST_DEVIATIONS)


def column(term: str, known: Mapping[str, Any]) -> Any:
    """Return the numbers of a term, the product of its features."""
    return math.prod((known[name] for name in term.split("*") if name != "1"), start=1.0)


def total(terms: Terms, known: Mapping[str, Float[Array, "T B"]]) -> Float[Array, "T B"]:
    """Return the sum of terms."""
    parts = [coefficient * column(term, known) for term, coefficient in terms.items()]
    return sum(parts, start=jnp.zeros_like(known["log_ratio"]))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FormulaRule(ablations.Ablated):
    """A rule whose weights and additions are sums of terms.

    Its meta-network is not computed. `parameters` are of the smallest one, zeros, as rule files
    have them. An output that the formula has is the logarithm itself, as `policy_prior` is 0.5 and
    the weights are 1 there. Raises ValueError if the formula is malformed.

    Attributes:
      formula: JSON, for each of the first `sizes.prior_outputs` of `OUTPUTS` and of any of `ADDED`
        the coefficients of `Terms`.
    """

    formula: str = static("{}")

    @classmethod
    def like(cls, rule: disco.AnchoredRule, formula: Mapping[str, Terms]) -> "FormulaRule":
        """Return the rule of a formula, with a rule's other settings; agents have no y, z, aux_pi.

        Raises ValueError if the formula does not fit.
        """
        sizes = _smallest(rule.sizes)
        zeros = jax.tree.map(jnp.zeros_like, meta_network.init(jax.random.key(0), sizes))
        changes = dict.fromkeys(("y_cost", "z_cost", "aux_policy_cost"), 0.0)
        changes |= dict(_NEUTRAL[: sizes.prior_outputs]) | {"reads_predictions": False}
        changes |= {"parameters": zeros, "sizes": sizes, "formula": json_lines.dumps(formula)}
        return cls(**{**vars(rule), **changes})

    def _require_form(self) -> None:
        super()._require_form()
        names, outputs = feature_names(self.sizes), OUTPUTS[: self.sizes.prior_outputs]
        known, formula = {*names, "1"}, self.terms
        if not set(outputs) <= set(formula) <= {*outputs, *ADDED}:
            raise ValueError(f"formula has {list(formula)}; expected {outputs}, or {ADDED} too.")
        for terms in formula.values():
            if not set("*".join(terms).split("*")) <= known | {""}:
                raise ValueError(f"formula has the terms {list(terms)}; known are {names}.")

    @property
    def terms(self) -> dict[str, Terms]:
        """The coefficients, by output and by term."""
        found = json_lines.loads(self.formula)
        sums = found.values() if isinstance(found, dict) else [None]
        for terms in sums:
            numbers = terms.values() if isinstance(terms, dict) else [""]
            if not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers):
                raise ValueError(f"formula is {self.formula[:100]!r}; expected sums of terms.")
        return found

    def computed(
        self, inputs: Inputs, memory: disco.AnchoredMemory
    ) -> tuple[RawTargets, Float[Array, "T B P"] | None, LifetimeState]:
        known = features(inputs, memory)
        sums = {name: total(terms, known) for name, terms in self.terms.items()}
        added = {name: x for name, x in added_features(inputs).items() if name in sums}
        pi = sum(
            (sums[x][..., None] * added[x] for x in added),
            jnp.zeros_like(inputs.normalized_action_advantage[:-1]),
        )
        none = jnp.zeros_like(known["log_ratio"])[..., None]
        raw = RawTargets(pi=pi, y=none, z=none, summary=none, embedding=none)
        outputs = [sums[name] for name in OUTPUTS[: self.sizes.prior_outputs]]
        prior = jnp.stack(outputs, axis=-1) if outputs else None
        return raw, prior, memory.lifetime


def _smallest(sizes: disco.MetaNetworkSizes) -> disco.MetaNetworkSizes:
    """Return the sizes of the smallest meta-network with as many outputs."""
    kept = "action_features", "prior_outputs", "agent_features"
    widths = {name: min(x, 1) for name, x in vars(disco.MetaNetworkSizes()).items()}
    return disco.MetaNetworkSizes(**widths | {name: getattr(sizes, name) for name in kept})


FORMS = (*ablations.FORMS, FormulaRule)


def read(
    name: str | os.PathLike, sha256: str | None = None
) -> tuple[disco.DiscoveredRule, dict[str, Any]]:
    """Return a rule of any form, also a formula, and its file's header; see `disco.load`."""
    return rule_files.read(name, sha256, FORMS)


def load(name: str | os.PathLike) -> disco.DiscoveredRule:
    """Return a rule of any form; see `disco.load`."""
    return read(name)[0]
