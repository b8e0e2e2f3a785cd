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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, PRNGKeyArray

import disco
from agents.ppo.losses import DRIFTS, Drift
from disco import AnchoredMemory, AnchoredRule, DiscoveredMemory, DiscoveredRule
from disco.moments import Moments
from evaluation.report.drawing import Drawing
from evaluation.report.page import Section
from evaluation.results import divide
from evaluation.studies.plots import bars, line_panels

PROBABILITY, NUM_ACTIONS = 0.25, 4  # Of the action taken; the others share the rest.
AGES = (0, 10, 100, 1_000, 10_000)  # Updates.


def push(
    rule: DiscoveredRule,
    ratio: Float[np.ndarray, "ratios"],
    advantage: Float[np.ndarray, "advantages"],
    *,
    updates: int,
    deviation: float = 1.0,
) -> Float[np.ndarray, "advantages ratios"]:
    """Return the target's probability of the action taken minus the policy's.

    The transition terminates its episode, and all action values are 0, so that its advantage is its
    reward.

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

    over_ratios = jax.vmap(of_one, in_axes=(None, 0))
    found = jax.jit(jax.vmap(over_ratios, in_axes=(0, None)))(
        jnp.asarray(advantage, jnp.float32), jnp.asarray(ratio, jnp.float32)
    )
    return np.asarray(found)


def push_of_drift(
    drift: Drift,
    ratio: Float[np.ndarray, "ratios"],
    advantage: Float[np.ndarray, "advantages"],
    clip: float = 0.2,
) -> Float[np.ndarray, "advantages ratios"]:
    """Return the derivative of `r A - drift` by the logit of the action taken, as `push`."""

    def objective(log_ratio: Float[Array, ""], advantage: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.exp(log_ratio) * advantage - drift(log_ratio, advantage, clip)

    by_log_ratio = jax.vmap(jax.grad(objective), in_axes=(0, None))
    found = jax.vmap(by_log_ratio, in_axes=(None, 0))(
        jnp.log(jnp.asarray(ratio, jnp.float32)), jnp.asarray(advantage, jnp.float32)
    )
    return (1.0 - PROBABILITY) * np.asarray(found)


def weights_of(
    rule: DiscoveredRule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
) -> dict[str, Float[np.ndarray, "T B"]]:
    """Return the weights of the policy target's prior that are outputs of the meta-network.

    Empty if the rule's weights are constants.
    """
    if not isinstance(rule, AnchoredRule) or not rule.sizes.prior_outputs:
        return {}
    weights = rule.prior_weights(_prior_of(rule, outputs, target_outputs, trajectory, state))
    return {name: np.asarray(x)[..., 0] for name, x in weights.items() if not isinstance(x, float)}


@jax.jit
def _prior_of(
    rule: AnchoredRule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
) -> Float[Array, "T B P"] | None:
    return rule.targets(outputs, target_outputs, trajectory, state)[0].prior


def weights_by_age(
    rule: DiscoveredRule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
) -> dict[str, list[tuple[int, float]]]:
    """Return the weights' mean over transitions if the agent had made a number of updates."""
    memory = state.memory
    if not isinstance(memory, AnchoredMemory) or memory.updates is None:
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
) -> dict[str, dict[str, float]]:
    """Return Spearman's rank correlation of each weight with each quantity, 0 for constants."""

    def correlation(x: Float[np.ndarray, "T B"], y: Float[np.ndarray, "T B"]) -> float:
        if np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
            return 0.0
        result: Any = scipy.stats.spearmanr(x.ravel(), y.ravel())
        return float(result.statistic)

    return {
        name: {other: correlation(x, y) for other, y in quantities.items()}
        for name, x in weights.items()
    }


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
        f"{name}, {age} updates" if len(ages) > 1 else name: push(
            rule, ratios, advantages, updates=age
        )
        for age in ages
    }
    for drift, title in (("clip", "PPO"), ("dpo", "DPO")):
        pushes[title] = push_of_drift(DRIFTS[drift], ratios, advantages)
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
            "by_ratio": line_panels(ratios, panels, "ratio", "push / push at ratio 1"),
            "by_advantage": line_panels(advantages, {"ratio 1": by_advantage}, "advantage", "push"),
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
    return line_panels(ages, panels, "1 + updates", "weight", log="xy")


def correlations_figure(found: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Return a panel for each weight, with its correlation with each quantity."""
    return bars({name: {other: (x, 0.0) for other, x in of.items()} for name, of in found.items()})


def influence(
    rule: disco.Rule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
    prediction: Float[Array, "rows B A Y"],
    key: PRNGKeyArray,
) -> dict[str, Float[np.ndarray, "rows"]]:
    """Return how much a change of z at a later state changes the current targets, by distance.

    z of one state at a time is perturbed with normal noise of z's own standard deviation.

    Args:
      rule: any; one that does not read z is not influenced by it.
      outputs: of an agent on the trajectory, `[T+1, B, ...]`.
      target_outputs: of its target network; None for a rule that has none.
      trajectory: of T transitions.
      state: of the rule.
      prediction: z to pass to the rule, and to perturb.
      key: for the noise.

    Returns:
      By kind of target (every array of `targets` with a value per transition), the root mean square
      change at distances 0 to T, over all pairs of a transition and a later state of the same
      episode; NaN if there is no such pair.
    """
    rows = trajectory.action.shape[0] + 1
    noise = jnp.std(prediction) * jax.random.normal(key, prediction.shape)

    def targets(z: Array) -> dict[str, Array]:
        made, _ = rule.targets({**outputs, "z": z}, target_outputs, trajectory, state)
        return {
            jax.tree_util.keystr(path).strip(".[]'"): x
            for path, x in jax.tree.leaves_with_path(made)
            if jnp.shape(x)[:2] == trajectory.action.shape
        }

    # The last one is unperturbed, by the same program, so that differences are not from rounding.
    perturbed = jnp.arange(rows + 1) % rows
    scales = jnp.ones(rows + 1).at[-1].set(0.0)

    @jax.jit
    def all_targets():
        return jax.lax.map(
            lambda x: targets(prediction.at[x[0]].add(x[1] * noise[x[0]])), (perturbed, scales)
        )

    found = {name: np.asarray(x) for name, x in all_targets().items()}
    squares = {
        name: np.square(x[:-1] - x[-1]).reshape(rows, *trajectory.action.shape, -1).mean(axis=-1)
        for name, x in found.items()
    }
    return _root_mean_by_distance(squares, np.asarray(trajectory.last))


def _root_mean_by_distance(
    squares: dict[str, Float[np.ndarray, "rows T B"]], last: np.ndarray
) -> dict[str, Float[np.ndarray, "rows"]]:
    """Return root means over pairs of a transition and a later state of the same episode.

    Args:
      squares: by the later state, and the transition.
      last: whether an episode ends with each transition, `[T, B]`.
    """
    num_transitions = len(last)
    ends = last.cumsum(axis=0)
    ends = np.concatenate([np.zeros_like(ends[:1]), ends])  # Before each state.
    later, now = np.meshgrid(
        np.arange(num_transitions + 1), np.arange(num_transitions), indexing="ij"
    )
    same = (later >= now)[..., None] & (ends[later] == ends[now])
    distance = np.broadcast_to((later - now)[..., None], same.shape)
    counts = np.bincount(distance[same], minlength=num_transitions + 1)
    return {
        name: np.sqrt(divide(np.bincount(distance[same], x[same], num_transitions + 1), counts))
        for name, x in squares.items()
    }


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
