"""The part of an analysis on a rule's policy updates: figures and numbers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from agents.ppo.losses import DRIFTS
from disco.discovered import DiscoveredRule
from evaluation.report.drawing import Drawing
from evaluation.report.page import Section
from evaluation.studies import plots, policy_updates


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushSection(Section):
    """The section on how a rule changes a policy.

    Its figures are the push by the ratio of policies, for a good and for a bad action (`by_ratio`),
    and by the advantage (`by_advantage`).
    """

    template: ClassVar[str] = "push.html"


def push_section(name: str, rule: DiscoveredRule) -> tuple[PushSection, dict[str, Any]]:
    """Return the section on how a rule changes a policy, and its numbers as JSON values."""
    ratios, advantages = np.geomspace(0.4, 3.0, 27), np.linspace(-2.0, 2.0, 41)
    one = int(np.searchsorted(ratios, 1.0))
    ratios = np.insert(ratios, one, 1.0)
    ages = (0, 1_000) if rule.sizes.agent_features else (0,)
    pushes = {
        f"{name}, {age} updates" if len(ages) > 1 else name: policy_updates.push(
            rule, ratios, advantages, updates=age
        )
        for age in ages
    }
    for drift, title in (("clip", "PPO"), ("dpo", "DPO")):
        pushes[title] = policy_updates.push_of_drift(DRIFTS[drift], ratios, advantages)
    signs = [int(np.argmin(np.abs(advantages - x))) for x in (1.0, -1.0)]
    by_ratio = {x: y[signs] / np.abs(y[signs, one])[:, None] for x, y in pushes.items()}
    by_advantage = {x: y[:, one] for x, y in pushes.items()}
    panels = {
        title: {x: y[row] for x, y in by_ratio.items()}
        for row, title in enumerate(("advantage 1", "advantage -1"))
    }
    section = PushSection(
        name=f"What {name} makes of an action",
        plots={
            "by_ratio": plots.line_panels(ratios, panels, "ratio", "push / push at ratio 1"),
            "by_advantage": plots.line_panels(
                advantages, {"ratio 1": by_advantage}, "advantage", "push"
            ),
        },
    )
    numbers = {
        "ratio": ratios.tolist(),
        "by_ratio": {x: y.tolist() for x, y in by_ratio.items()},
        "advantage": advantages.tolist(),
        "by_advantage": {x: y.tolist() for x, y in by_advantage.items()},
    }
    return section, numbers


def by_age_figure(by_age: Mapping[str, Sequence[tuple[int, float]]]) -> Drawing:
    """Return a panel for each weight, by updates; for the policy's, its distance from 1."""
    ages = 1.0 + np.array([age for age, _ in next(iter(by_age.values()))])
    panels = {}
    for name, found in by_age.items():
        weights = np.array([weight for _, weight in found])
        if name == "policy_prior":  # Which goes to 1.
            name, weights = "1 - policy_prior", 1.0 - weights
        panels[name] = {"weight": weights}
    return plots.line_panels(ages, panels, "1 + updates", "weight", log="xy")


def correlations_figure(found: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Return a panel for each weight, with its correlation with each quantity."""
    return plots.bars(
        {name: {other: (x, 0.0) for other, x in of.items()} for name, of in found.items()}
    )
