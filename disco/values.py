"""Values: their transform, their categorical encoding and their off-policy estimates.

A value v is transformed by the signed hyperbolic function h, and predicted either as one number
h(v) or as a categorical distribution over equally spaced bins of h(v).
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from disco.types import Leaf, Outputs, Trajectory, taken

# The published code adds this number to the distance of two bins before it divides by it.
_BIN_DISTANCE_EPSILON = 1e-5


def signed_hyperbolic(x: Float[Array, "*s"], eps: float = 1e-3) -> Float[Array, "*s"]:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x (Pohlen et al. 2018, arXiv 1805.11593)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + eps * x


def signed_log(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return sign(x) ln(|x| + 1)."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def signed_parabolic(x: Float[Array, "*s"], eps: float = 1e-3) -> Float[Array, "*s"]:
    """Return the inverse of `signed_hyperbolic`.

    Its usual form subtracts two large numbers and loses two digits of float32 by it. This is the
    same function with the difference written as a quotient.
    """
    shifted = eps + 1.0 + jnp.abs(x)
    root = 2.0 * shifted / (1.0 + jnp.sqrt(1.0 + 4.0 * eps * shifted))
    return jnp.sign(x) * (jnp.square(root) - 1.0)


def decode(logits: Float[Array, "*s N"], max_value: float) -> Float[Array, "*s"]:
    """Return the mean of a categorical distribution over N equally spaced bins of [-max, max]."""
    bins = jnp.linspace(-max_value, max_value, logits.shape[-1], dtype=logits.dtype)
    return jax.nn.softmax(logits) @ bins


def decode_value(logits: Float[Array, "*s N"], max_value: float) -> Float[Array, "*s"]:
    """Return the value that categorical logits over bins of h(value) encode."""
    return signed_parabolic(decode(logits, max_value))


def two_hot(x: Float[Array, "*s"], num_bins: int, max_value: float) -> Float[Array, "*s N"]:
    """Encode x, clipped to [-max, max], as weights of the two bins around it.

    N is odd, so that 0 is a bin; `max_value` is the last bin.
    """
    distance = 2.0 * max_value / (num_bins - 1)
    position = jnp.clip(x, -max_value, max_value) / distance
    lower, upper = jnp.floor(position), jnp.ceil(position)
    lower_weight = (upper - position) * distance
    lower_weight /= (upper - lower) * distance + _BIN_DISTANCE_EPSILON
    bins = jnp.arange(num_bins, dtype=x.dtype) - num_bins // 2
    bins = jax.lax.broadcast_to_rank(bins, x.ndim + 1)
    at_lower = (bins == lower[..., None]).astype(x.dtype)
    at_upper = (bins == upper[..., None]).astype(x.dtype)
    # On a bin lower == upper: lower_weight is 0 and all the weight is the second term's.
    return lower_weight[..., None] * at_lower + (1.0 - lower_weight)[..., None] * at_upper


def value_loss_to(
    output: Float[Array, "*s N"], target: Float[Array, "*s"], max_value: float
) -> Float[Array, "*s"]:
    """Return the loss of a value prediction, with a target that is already transformed by h.

    It is the cross-entropy with the target's two-hot encoding for N > 1 bins, and half the squared
    error for a scalar prediction (N = 1). No gradient flows through the target.
    """
    target = jax.lax.stop_gradient(target)
    if output.shape[-1] == 1:
        return 0.5 * jnp.square(target - output[..., 0])
    code = two_hot(target, output.shape[-1], max_value)
    return -jnp.sum(code * jax.nn.log_softmax(output), axis=-1)


def masked_mean(x: Float[Array, "*s"], mask: Bool[Leaf, "*s"]) -> Float[Array, ""]:
    """Return the mean of the numbers whose mask is True; 0 if there are none."""
    mask = jnp.asarray(mask)
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask), 1).astype(x.dtype)


def select_action(
    x: Float[Array, "_rows B A *s"], action: Int[Leaf, "T B"]
) -> Float[Array, "T B *s"]:
    """Return x at the actions taken, for the first T rows of x.

    A sum over selected entries replaces a gather, whose derivative is a scatter, slow on every
    backend. Non-finite values of other actions, as logits of illegal ones, have no effect.
    """
    num_actions = x.shape[2]
    rows = x[: action.shape[0]]
    if num_actions == 1:
        return rows[:, :, 0]
    is_taken = jax.nn.one_hot(action, num_actions, dtype=bool)
    is_taken = is_taken.reshape(is_taken.shape + (1,) * (x.ndim - 3))
    return jnp.sum(jnp.where(is_taken, rows, jnp.zeros_like(rows)), axis=2)


def output_taken(outputs: Outputs, name: str, action: Int[Leaf, "T B"]) -> Float[Array, "T B *s"]:
    """Return an output per action at the actions taken: given by the agent, or selected."""
    if taken(name) in outputs:
        return outputs[taken(name)]
    return select_action(outputs[name], action)


@chex.dataclass(frozen=True)
class ActionValueEstimates:
    """Off-policy estimates from action values. A bar denotes the target network.

    Attributes:
      value: `[T+1, B]`, V = sum_a pi q.
      target_value: `[T+1, B]`, V bar = sum_a pi q bar.
      importance_ratio: `[T, B]`, rho = pi / mu at the action taken, not clipped.
      q_target: `[T, B]`, the Retrace return G.
      advantage: `[T, B]`, G - V bar.
      action_advantage: `[T+1, B, A]`, q bar - V bar.
      td: `[T, B]`, G - q(s_t, a_t).
    """

    value: Float[Array, "T_plus_1 B"]
    target_value: Float[Array, "T_plus_1 B"]
    importance_ratio: Float[Array, "T B"]
    q_target: Float[Array, "T B"]
    advantage: Float[Array, "T B"]
    action_advantage: Float[Array, "T_plus_1 B A"]
    td: Float[Array, "T B"]


def importance_ratio(
    logits: Float[Array, "T_plus_1 B A"], trajectory: Trajectory
) -> Float[Array, "T B"]:
    """Return pi(a_t | s_t) / mu(a_t | s_t)."""
    log_pi, log_mu = (
        select_action(jax.nn.log_softmax(x), trajectory.action)
        for x in (logits[:-1], trajectory.behaviour_logits)
    )
    return jnp.exp(log_pi - log_mu)


def retrace(
    logits: Float[Array, "T_plus_1 B A"],
    action_value: Float[Array, "T_plus_1 B A"],
    target_action_value: Float[Array, "T_plus_1 B A"],
    trajectory: Trajectory,
    *,
    discount: float,
    lambda_: float,
    value: Float[Array, "T_plus_1 B"] | None = None,
    target_value: Float[Array, "T_plus_1 B"] | None = None,
    max_ratio: float = 1.0,
) -> ActionValueEstimates:
    """Return Retrace estimates (Munos et al. 2016, arXiv 1606.02647), cut where an episode ends.

    Args:
      logits: of the policy to evaluate.
      action_value: q.
      target_action_value: q bar, of the target network.
      trajectory: of the behaviour policy.
      discount: gamma, multiplied by the environment's discount.
      lambda_: decay of the traces.
      value: V; by default sum_a pi q.
      target_value: V bar; by default sum_a pi q bar.
      max_ratio: c bar, the bound of importance ratios in the traces.
    """
    policy = jax.nn.softmax(logits)
    if value is None:
        value = jnp.sum(policy * action_value, axis=-1)
    if target_value is None:
        target_value = jnp.sum(policy * target_action_value, axis=-1)
    rho = importance_ratio(logits, trajectory)
    ended = trajectory.last.astype(rho.dtype)
    # Whether the row continues the previous transition's episode; row 0 is not used.
    continues = 1.0 - jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])
    trace = lambda_ * jnp.minimum(max_ratio, rho) * continues
    taken_target_q = select_action(target_action_value, trajectory.action)
    reward = trajectory.reward.astype(value.dtype)
    discounts = discount * trajectory.discount.astype(value.dtype)

    def step(following, x):
        reward, discounts, value, action_value, trace = x
        estimate = reward + discounts * (value - trace * action_value + trace * following)
        return estimate, estimate

    # Beyond the last state nothing is known but its value.
    last = reward[-1] + discounts[-1] * target_value[-1]
    rows = reward[:-1], discounts[:-1], target_value[1:-1], taken_target_q[1:], trace[1:]
    _, before = jax.lax.scan(step, last, rows, reverse=True)
    q_target = jnp.concatenate([before, last[None]])
    return jax.lax.stop_gradient(
        ActionValueEstimates(
            value=value,
            target_value=target_value,
            importance_ratio=rho,
            q_target=q_target,
            advantage=q_target - target_value[:-1],
            action_advantage=target_action_value - target_value[..., None],
            td=q_target - select_action(action_value, trajectory.action),
        )
    )


def estimates_from_outputs(
    outputs: Outputs, target_outputs: Outputs, trajectory: Trajectory, rule: Any
) -> ActionValueEstimates:
    """Return Retrace estimates from the outputs `logits` and `q`, a categorical value of h(q).

    The rule has `max_value`, `discount` and `lambda_`.
    """
    q, target_q = (
        decode_value(jax.lax.stop_gradient(x["q"]), rule.max_value)
        for x in (outputs, target_outputs)
    )
    return retrace(
        outputs["logits"],
        q,
        target_q,
        trajectory,
        discount=rule.discount,
        lambda_=rule.lambda_,
    )


def action_value_loss(
    outputs: Outputs, td: Float[Array, "T B"], action: Int[Leaf, "T B"], max_value: float
) -> Float[Array, "T B"]:
    """Return the loss of the output `q` at the actions taken, a categorical value of h(q).

    `td` is G - q(s_t, a_t), the error of the prediction.
    """
    q = output_taken(outputs, "q", action)
    target = signed_hyperbolic(decode_value(jax.lax.stop_gradient(q), max_value) + td)
    return value_loss_to(q, target, max_value)


@chex.dataclass(frozen=True)
class ValueEstimates:
    """Off-policy estimates from state values.

    Attributes:
      importance_ratio: `[T, B]`, rho, not clipped.
      value_target: `[T, B]`, V-trace's v_s.
      advantage: `[T, B]`, weighted by min(max_ratio, rho), for the policy gradient.
      td: `[T, B]`, value_target - value.
    """

    importance_ratio: Float[Array, "T B"]
    value_target: Float[Array, "T B"]
    advantage: Float[Array, "T B"]
    td: Float[Array, "T B"]


def vtrace(
    logits: Float[Array, "T_plus_1 B A"],
    value: Float[Array, "T_plus_1 B"],
    target_value: Float[Array, "T_plus_1 B"],
    trajectory: Trajectory,
    *,
    discount: float,
    lambda_: float,
    max_ratio: float = 1.0,
) -> ValueEstimates:
    """Return V-trace estimates (Espeholt et al. 2018, arXiv 1802.01561), cut where episodes end.

    Values to bootstrap from are `target_value`. Gamma, `discount`, is multiplied by the
    environment's discount; `max_ratio` is rho bar and c bar, at least 1. The others are as of
    `retrace`; `value` and `target_value` have no default.
    """
    rho = importance_ratio(logits, trajectory)
    trace = lambda_ * (1.0 - trajectory.last.astype(rho.dtype))
    reward = trajectory.reward.astype(rho.dtype)
    discounts = discount * trajectory.discount.astype(rho.dtype)
    ratio = jnp.minimum(max_ratio, rho)
    one_step = ratio * (reward + discounts * target_value[1:] - target_value[:-1])
    errors = discounted_sums(one_step, discounts * (trace * ratio))
    value_target = errors + target_value[:-1]
    following = jnp.concatenate([value_target[1:], target_value[-1:]])
    # Beyond the last state nothing is known but its value.
    bootstrap = jnp.asarray(trace).at[-1].set(0.0)
    q = reward + discounts * (bootstrap * following + (1.0 - bootstrap) * target_value[1:])
    return jax.lax.stop_gradient(
        ValueEstimates(
            importance_ratio=rho,
            value_target=value_target,
            advantage=ratio * (q - target_value[:-1]),
            td=value_target - value[:-1],
        )
    )


def discounted_sums(x: Float[Array, "T B"], discount: Float[Array, "T B"]) -> Float[Array, "T B"]:
    """Return G with G_t = x_t + discount_t G_{t+1}, where what follows the last row is 0."""

    def step(following, row):
        total = row[0] + row[1] * following
        return total, total

    return jax.lax.scan(step, jnp.zeros_like(x[0]), (x, discount), reverse=True)[1]


def entropy(log_p: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    """Return the entropy of p, in nats."""
    return -jnp.sum(probability_times(jnp.exp(log_p), log_p), axis=-1)


def kl_divergence(log_p: Float[Array, "*s X"], log_q: Float[Array, "*s X"]) -> Float[Array, "*s"]:
    """Return KL(p || q), in nats."""
    return jnp.sum(probability_times(jnp.exp(log_p), log_p - log_q), axis=-1)


def probability_times(p: Float[Array, "*s"], x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return p x, and 0 where the probability p is 0, also if x is infinite or not a number."""
    return p * select_straight_through(p > 0.0, x)


@jax.custom_jvp
def select_straight_through(
    condition: Bool[Array, "*s"], x: Float[Array, "*s"]
) -> Float[Array, "*s"]:
    """Return x where the condition holds, else 0; the derivative is 1 everywhere.

    For numbers that are multiplied by 0 where it does not hold: without a selection in the
    derivative, compilers round it as if there were no condition.
    """
    return jnp.where(condition, x, jnp.zeros_like(x))


@select_straight_through.defjvp
def _select_jvp(primals, tangents):
    return select_straight_through(*primals), tangents[1]


def zero_where_all_illegal(logits: Float[Array, "*s A"]) -> Float[Array, "*s A"]:
    """Return logits, and 0 in states without a legal action, in which all are -inf."""
    has_action = ~jnp.all(logits == -jnp.inf, axis=-1, keepdims=True)
    return select_straight_through(jnp.broadcast_to(has_action, logits.shape), logits)


def mean_of_legal(
    logits: Float[Array, "*s"], axis: int | None = None, *, keepdims: bool = False
) -> Float[Array, "..."]:
    """Return the mean over an axis, or over all of them, of the logits that are not -inf."""
    is_legal = logits != -jnp.inf
    number = jnp.sum(is_legal, axis=axis, keepdims=keepdims, dtype=logits.dtype)
    mean = jnp.mean(jnp.where(is_legal, logits, 0.0), axis=axis, keepdims=keepdims)
    # The factor is exactly 1 where all actions are legal.
    return mean * ((logits.size // max(mean.size, 1)) / jnp.maximum(number, 1.0))
