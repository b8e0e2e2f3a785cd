"""The outputs of a rule's policy prior, by the points between which they are linear.

The weights of the policy target's prior (`AnchoredRule.prior_weights`) are computed from outputs
of the meta-network, which are linear in what they read of the agent and of the action taken. So
their values at a few points say what they are everywhere, for transitions for which the
meta-network's LSTM adds nothing.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import disco
from disco import anchored


class Point(NamedTuple):
    """What the outputs of a rule's prior read.

    Attributes:
      updates: of the agent.
      deviation: of its advantages.
      probability: of the action taken.
      ratio: to its probability when it was taken.
    """

    updates: int = 1_000
    deviation: float = 0.3
    probability: float = 0.25
    ratio: float = 1.0


_BIRTH = {"at birth": Point(updates=0)}
_OF_AGENT = {
    "after 1000 updates": Point(),
    "advantages ten times as large": Point(deviation=3.0),
}
_OF_ACTION = {
    "an action of a tenth of the probability": Point(probability=0.025),
    "an action twice as probable as when it was taken": Point(ratio=2.0),
}


def points_of(rule: disco.AnchoredRule) -> dict[str, Point]:
    """Return points between which the outputs of a rule's prior follow, as they are linear."""
    sizes = rule.sizes
    of_agent = list(_OF_AGENT.items())[: sizes.agent_features]
    return {**_BIRTH, **dict(of_agent), **dict(list(_OF_ACTION.items())[: sizes.prior_features])}


def _features(rule: disco.AnchoredRule) -> Float[np.ndarray, "R R"]:
    """Return what the prior's head reads at each point, after a 1 for its bias."""
    rows = []
    for point in points_of(rule).values():
        age, deviation, probability, ratio = map(jnp.float32, point)
        of_agent = anchored.agent_features(age, deviation)
        log_probability = jnp.log(probability)
        of_action = anchored.prior_features(log_probability, log_probability - jnp.log(ratio))
        used = of_agent[: rule.sizes.agent_features] + of_action[: rule.sizes.prior_features]
        rows.append([1.0, *map(float, used)])
    return np.array(rows)


def with_prior(rule: disco.AnchoredRule, change: Float[np.ndarray, "R P"]) -> disco.AnchoredRule:
    """Return a rule whose prior's outputs are changed by these numbers at its points."""
    head = rule.parameters[anchored.PRIOR]
    bias, *slopes = np.linalg.solve(_features(rule), change)
    changed = {
        "w": head["w"].at[-len(slopes) :].add(jnp.asarray(slopes, head["w"].dtype)),
        "b": head["b"] + jnp.asarray(bias, head["b"].dtype),
    }
    return dataclasses.replace(rule, parameters={**rule.parameters, anchored.PRIOR: changed})


def weights(rule: disco.AnchoredRule) -> dict[str, dict[str, float]]:
    """Return the prior's weights that are outputs, by name, at each point.

    They are those of transitions for which the meta-network's LSTM adds nothing.
    """
    head = rule.parameters[anchored.PRIOR]
    slopes = head["w"][-(rule.sizes.agent_features + rule.sizes.prior_features) :]
    outputs = jnp.asarray(_features(rule)) @ jnp.concatenate([head["b"][None], slopes])
    return {
        name: dict(zip(points_of(rule), x[:, 0].tolist(), strict=True))
        for name, x in rule.prior_weights(outputs).items()
        if isinstance(x, jnp.ndarray)
    }
