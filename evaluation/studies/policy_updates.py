"""How a discovered rule changes a policy, and what its targets depend on.

The loss of a rule is a KL divergence from its policy target, so that its negative derivative by the
logit of the action taken is the target's probability minus the policy's. `push` has it for one
transition of known advantage and ratio, the new policy's probability over the behaviour policy's,
as Lu et al. (2022, arXiv 2210.05639, section 5) show the drift of Discovered Policy Optimisation,
whose derivative, and PPO's, `push_of_drift` has.

`influence` says how a change of a future prediction changes the current targets (DiscoRL, figure
4); `evaluation.studies.ablations` has a rule from which this influence on its predictions is
removed, to be trained for comparison.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, PRNGKeyArray

import disco
from agents.ppo.losses import DRIFTS, Drift
from disco import AnchoredMemory, AnchoredRule, DiscoveredMemory, DiscoveredRule
from disco.moments import Moments
from evaluation.report.drawing import Curve, draw_line_panels
from evaluation.report.page import Section

PROBABILITY, NUM_ACTIONS = 0.25, 4  # Of the action taken; the others share the rest.
AGES = (0, 10, 100, 1_000, 10_000)  # Updates.


def push(
    rule: DiscoveredRule,
    ratio: Float[np.ndarray, "*#s"],
    advantage: Float[np.ndarray, "*#s"],
    *,
    updates: int,
    deviation: float = 1.0,
) -> Float[np.ndarray, "*s"]:
    """Return the target's probability of the action taken minus the policy's.

    The transition terminates its episode, and all action values are 0, so that its advantage is its
    reward. Ratios and advantages are broadcast.

    Args:
      rule: which.
      ratio: of the action's probabilities under the policy and under the behaviour policy; more
        than `PROBABILITY`.
      advantage: of the action.
      updates: of the agent so far.
      deviation: moving standard deviation of the agent's advantages, whose mean is 0.

    Raises:
      ValueError: if a ratio is so small that the behaviour policy's probability exceeds 1.
    """
    if np.min(ratio) <= PROBABILITY:
        raise ValueError(f"ratio is {np.min(ratio)}; expected more than {PROBABILITY}.")
    logits = _logits(jnp.float32(PROBABILITY))
    shapes = rule.output_shapes(NUM_ACTIONS)
    outputs = {name: jnp.zeros((2, 1, *shape)) for name, shape in shapes.items()}
    outputs["logits"] = jnp.broadcast_to(logits, (2, 1, NUM_ACTIONS))
    state = disco.RuleState(target_params={}, memory=_memory(rule, updates, deviation))

    def of_one(advantage: Float[Array, ""], ratio: Float[Array, ""]) -> Float[Array, ""]:
        trajectory = disco.Trajectory(
            observation=None,
            action=jnp.zeros((1, 1), jnp.int32),
            reward=advantage[None, None],
            discount=jnp.zeros((1, 1)),
            last=jnp.ones((1, 1), bool),
            behaviour_logits=_logits(PROBABILITY / ratio)[None, None],
            mask=jnp.ones((1, 1), bool),
        )
        targets, _ = rule.targets(outputs, outputs, trajectory, state)
        return jax.nn.softmax(targets.pi[0, 0])[0] - PROBABILITY

    found = jax.jit(jnp.vectorize(of_one))(*map(jnp.float32, np.broadcast_arrays(advantage, ratio)))
    return np.asarray(found)


def push_of_drift(
    drift: Drift,
    ratio: Float[np.ndarray, "*#s"],
    advantage: Float[np.ndarray, "*#s"],
    clip: float = 0.2,
) -> Float[np.ndarray, "*s"]:
    """Return the derivative of `r A - drift` by the logit of the action taken, as `push`."""

    def objective(log_ratio: Float[Array, ""], advantage: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.exp(log_ratio) * advantage - drift(log_ratio, advantage, clip)

    numbers = map(jnp.float32, np.broadcast_arrays(np.log(ratio), advantage))
    return (1.0 - PROBABILITY) * np.asarray(jnp.vectorize(jax.grad(objective))(*numbers))


def weights_of(
    rule: AnchoredRule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
) -> dict[str, Float[np.ndarray, "T B"]]:
    """Return the weights of the policy target's prior that are outputs of the meta-network."""
    all_targets = jax.jit(AnchoredRule.targets)
    prior = all_targets(rule, outputs, target_outputs, trajectory, state)[0].prior
    weights = rule.prior_weights(prior)
    return {name: np.asarray(x)[..., 0] for name, x in weights.items() if not isinstance(x, float)}


def weights_by_age(
    rule: AnchoredRule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
) -> dict[str, list[tuple[int, float]]]:
    """Return the weights' mean over transitions if the agent had made a number of updates.

    Empty if the rule does not read that number.
    """
    memory = state.memory
    if memory.updates is None:
        return {}
    found: dict[str, list[tuple[int, float]]] = {}
    for age in AGES:
        aged = dataclasses.replace(memory, updates=jnp.full_like(memory.updates, age))
        of_age = disco.RuleState(target_params=state.target_params, memory=aged)
        for name, x in weights_of(rule, outputs, target_outputs, trajectory, of_age).items():
            found.setdefault(name, []).append((age, float(np.mean(x))))
    return found


def correlations(
    weights: Mapping[str, Float[np.ndarray, "T B"]],
    quantities: Mapping[str, Float[np.ndarray, "T B"]],
) -> dict[Any, dict[Any, float]]:
    """Return Spearman's rank correlation of each weight with each quantity, 0 for constants."""
    columns = {name: x.ravel() for name, x in (*weights.items(), *quantities.items())}
    found = pd.DataFrame(columns).corr(method="spearman").fillna(0.0)
    return found.loc[list(weights), list(quantities)].to_dict("index")


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
    ratios, signs = np.insert(ratios, one, 1.0), np.array([[1.0], [-1.0]])
    ages = (0, 1_000) if rule.sizes.agent_features else (0,)
    pushes: dict[str, Callable[..., Any]] = {
        f"{name}, {age} updates" if len(ages) > 1 else name: partial(push, rule, updates=age)
        for age in ages
    }
    for drift, title in (("clip", "PPO"), ("dpo", "DPO")):
        pushes[title] = partial(push_of_drift, DRIFTS[drift])
    by_ratio = {x: of(ratios, signs) for x, of in pushes.items()}
    by_ratio = {x: y / np.abs(y[:, [one]]) for x, y in by_ratio.items()}
    by_advantage = {x: of(np.ones(1), advantages) for x, of in pushes.items()}
    panels = {
        title: {x: Curve(ratios, y[row]) for x, y in by_ratio.items()}
        for row, title in enumerate(("advantage 1", "advantage -1"))
    }
    at_1 = {"ratio 1": {x: Curve(advantages, y) for x, y in by_advantage.items()}}
    section = PushSection(
        name=f"What {name} makes of an action",
        plots={
            "by_ratio": draw_line_panels(panels, xlabel="ratio", ylabel="push / push at ratio 1"),
            "by_advantage": draw_line_panels(at_1, xlabel="advantage", ylabel="push"),
        },
    )
    numbers = {
        "ratio": ratios.tolist(),
        "by_ratio": {x: y.tolist() for x, y in by_ratio.items()},
        "advantage": advantages.tolist(),
        "by_advantage": {x: y.tolist() for x, y in by_advantage.items()},
    }
    return section, numbers


def influence(
    rule: disco.Rule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
    key: PRNGKeyArray,
) -> dict[str, Float[np.ndarray, "rows"]]:
    """Return how much a change of z at a later state changes the current targets, by distance.

    z of one state at a time is perturbed with normal noise of z's own standard deviation.

    Args:
      rule: that reads z.
      outputs: of an agent on the trajectory, `[T+1, B, ...]`.
      target_outputs: of its target network; None for a rule that has none.
      trajectory: of T transitions.
      state: of the rule.
      key: for the noise.

    Returns:
      By kind of target (every array of `targets` with a value per transition), the root mean square
      change at distances 0 to T, over all pairs of a transition and a later state of the same
      episode; NaN if there is no such pair.
    """
    shape, z = trajectory.action.shape, outputs["z"]
    rows = shape[0] + 1
    noise = jnp.std(z) * jax.random.normal(key, z.shape)

    def targets(row: Array, scale: Array) -> dict[str, Array]:
        changed = {**outputs, "z": z.at[row].add(scale * noise[row])}
        made, _ = rule.targets(changed, target_outputs, trajectory, state)
        return {
            jax.tree_util.keystr(path).strip(".[]'"): x
            for path, x in jax.tree.leaves_with_path(made)
            if jnp.shape(x)[:2] == shape
        }

    # The last one is unperturbed, by the same program, so that differences are not from rounding.
    perturbed = jnp.arange(rows + 1) % rows, jnp.ones(rows + 1).at[-1].set(0.0)
    found = jax.jit(lambda x: jax.lax.map(lambda one: targets(*one), x))(perturbed)
    episode = np.cumsum(np.concatenate([np.zeros((1, shape[1]), int), trajectory.last]), axis=0)
    other = episode[:, None] != episode[None, :-1]  # [later state, transition, B]
    by_distance = {}
    for name, x in found.items():
        squares = np.square(x[:-1] - x[-1]).reshape(rows, *shape, -1).mean(axis=-1)
        same = np.ma.array(squares, mask=other)
        means = [np.ma.filled(same.diagonal(-k).mean(), np.nan) for k in range(rows)]
        by_distance[name] = np.sqrt(np.array(means, float))
    return by_distance


def _logits(probability: Float[Array, ""]) -> Float[Array, "actions"]:
    """Return the logits of a policy with this probability of the first action."""
    others = (1.0 - probability) / (NUM_ACTIONS - 1)
    return jnp.log(jnp.full(NUM_ACTIONS, others).at[0].set(probability))


def _memory(rule: DiscoveredRule, updates: int, deviation: float) -> DiscoveredMemory:
    """Return an initial memory, but for the age and the moments."""
    memory = rule.init_memory()
    zero = jnp.zeros_like(memory.advantage.first)
    moments = Moments(first=zero, second=zero + deviation**2, decay_product=zero)
    if isinstance(memory, AnchoredMemory) and memory.updates is not None:
        memory = dataclasses.replace(memory, updates=jnp.full_like(memory.updates, updates))
    return dataclasses.replace(memory, advantage=moments, td=moments)
