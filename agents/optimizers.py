"""Optimisers of agents: DiscoRL's Adam (its Methods), Dreamer's LaProp."""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float


class AdamState(NamedTuple):
    """Moving moments of the gradient, and the number of updates."""

    count: chex.Array
    mu: optax.Updates
    nu: optax.Updates


def scale_by_adam_through_first_moment(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Return Adam whose second moment is a constant when the update is differentiated.

    Its updates equal those of `optax.scale_by_adam`. A meta-gradient flows through the first moment
    only; the derivative of the second moment would divide by vanishing gradients. With a `b1` of 0
    it is the RMSProp of `optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True)`.
    """

    def init(params):
        zeros = optax.tree.zeros_like(params)
        return AdamState(count=jnp.zeros((), jnp.int32), mu=zeros, nu=jax.tree.map(jnp.copy, zeros))

    def update(updates, state, params=None):
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment(jax.lax.stop_gradient(updates), state.nu, b2, 2)
        nu = jax.lax.stop_gradient(nu)
        count = optax.safe_increment(state.count)
        mean = optax.tree.bias_correction(mu, b1, count)
        scale = optax.tree.bias_correction(nu, b2, count)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mean, scale)
        return updates, AdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def clip_by_norm(max_norm: float) -> optax.GradientTransformation:
    """Return `optax.clip_by_global_norm` with a derivative also at a gradient of zero."""

    def update(updates, params):
        del params
        square = optax.tree.norm(updates, squared=True)
        is_longer = square > max_norm**2
        scale = jnp.where(is_longer, max_norm / jnp.sqrt(jnp.where(is_longer, square, 1.0)), 1.0)
        return jax.tree.map(lambda x: scale * x, updates)

    return optax.stateless(update)


OPTIMIZERS = {
    "adam": scale_by_adam_through_first_moment,
    "rmsprop": partial(scale_by_adam_through_first_moment, b1=0.0, b2=0.99),
}


def clip_elementwise(max_abs: float) -> optax.GradientTransformation:
    """Return `optax.clip` whose derivative stores one bit per element as residual.

    The derivative of `jnp.clip` stores two floats per element, a third of the residuals that a
    meta-gradient needs of an update.
    """
    return optax.stateless(
        lambda updates, params: jax.tree.map(
            lambda x: jax.lax.clamp(jnp.array(-max_abs, x.dtype), x, jnp.array(max_abs, x.dtype)),
            updates,
        )
    )


def agent_optimizer(
    learning_rate: optax.ScalarOrSchedule,
    max_abs_update: float = 1.0,
    weight_decay: float = 0.0,
    schedule: optax.Schedule | None = None,
    kind: str = "adam",
    max_gradient_norm: float = 0.0,
) -> optax.GradientTransformation:
    """Return one of `OPTIMIZERS` with elementwise clipping of its update and weight decay.

    The decay is decoupled. The schedule is from the number of updates to the fraction of the
    learning rate. Gradients are first clipped to a global norm; 0 is for no clipping.
    """
    parts = [OPTIMIZERS[kind](), clip_elementwise(max_abs_update)]
    if max_gradient_norm:
        parts.insert(0, clip_by_norm(max_gradient_norm))
    if weight_decay:
        parts.append(optax.add_decayed_weights(weight_decay))
    parts.append(optax.scale_by_learning_rate(learning_rate))
    if schedule is not None:
        parts.append(optax.scale_by_schedule(schedule))
    return optax.chain(*parts)


def gradient_clipping(max_norm: float) -> optax.GradientTransformation:
    """Return `optax.clip_by_global_norm`; 0 is for no clipping."""
    return optax.clip_by_global_norm(max_norm) if max_norm else optax.identity()


def scheduled_adamw(
    learning_rate: optax.ScalarOrSchedule,
    *,
    num_updates: int = 0,
    num_warmup: int = 0,
    weight_decay: float = 0.0,
    max_gradient_norm: float = 0.0,
    b2: float = 0.999,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """Return AdamW whose rate and weight decay rise from 0 and fall to 0, both linearly.

    They rise in `num_warmup` updates and fall in `num_updates`, if these are not 0. Gradients are
    first clipped to a global norm; 0 is for no clipping.
    """

    def factor(count: chex.Numeric) -> jax.Array:
        rate = jnp.ones((), jnp.result_type(float))
        if num_warmup:
            rate = jnp.minimum((count + 1) / num_warmup, 1.0).astype(rate.dtype)
        if num_updates:
            rate *= jnp.maximum(1.0 - count / num_updates, 0.0).astype(rate.dtype)
        return rate

    return optax.chain(
        gradient_clipping(max_gradient_norm),
        optax.scale_by_adam(b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_schedule(factor),
        optax.scale_by_learning_rate(learning_rate),
    )


def cosine_schedule(
    num_updates: int | Float[Array, ""], end: float, num_warmup: int = 0
) -> optax.Schedule:
    """Return a linear warm-up from 0 to 1, followed by half a cosine from 1 to `end`.

    The two end after `num_warmup` and `num_updates` updates. optax's schedule is the same, but its
    length cannot be an argument of a compiled program.
    """

    def schedule(count):
        dtype = jnp.result_type(float)
        count, last = (jnp.asarray(x, dtype) for x in (count, num_updates))
        length = jnp.maximum(last - num_warmup, 1.0)
        passed = jnp.minimum(count - num_warmup, length)
        fraction = (1.0 - end) * (0.5 * (1.0 + jnp.cos(jnp.pi * passed / length))) + end
        if not num_warmup:
            return fraction
        return jnp.where(count < num_warmup, count / num_warmup, fraction)

    return schedule


def clip_to_parameters(clipping: float = 0.3, eps: float = 1e-3) -> optax.GradientTransformation:
    """Return adaptive gradient clipping per tensor.

    The norm of a tensor's gradient is clipped to `clipping` times the norm of the tensor, but at
    least `clipping * eps`. (`optax.adaptive_grad_clip` clips per unit.)
    """

    def clip(gradient, parameter):
        most = clipping * jnp.maximum(eps, jnp.linalg.norm(parameter))
        return gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient) / most)

    return optax.stateless_with_tree_map(clip)


def laprop(
    learning_rate: float = 4e-5,
    warmup: int = 1000,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-20,
    clipping: float = 0.3,
) -> optax.GradientTransformation:
    """Return the optimiser of Hafner et al. 2025: clipped gradients, normalised, then averaged.

    The learning rate rises linearly from 0, that of the first update, in `warmup` updates. For the
    decay `b2` of the average of squares the paper says 0.99, its code 0.999.
    """
    schedule = optax.linear_schedule(0.0, learning_rate, warmup) if warmup else learning_rate
    return optax.chain(
        clip_to_parameters(clipping),
        optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        optax.ema(b1, debias=True),
        optax.scale_by_learning_rate(schedule),
    )
