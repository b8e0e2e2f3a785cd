"""Dreamer's optimisers."""

import jax
import jax.numpy as jnp
import optax


def clip_to_parameters(clipping: float = 0.3, eps: float = 1e-3) -> optax.GradientTransformation:
    """Return adaptive gradient clipping per tensor.

    The norm of a tensor's gradient is clipped to `clipping` times the norm of the tensor, but at
    least `clipping * eps`. (`optax.adaptive_grad_clip` clips per unit.)
    """

    def update(updates, state, params=None):
        assert params is not None

        def clip(gradient, parameter):
            most = clipping * jnp.maximum(eps, jnp.linalg.norm(parameter))
            return gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient) / most)

        return jax.tree.map(clip, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def laprop(
    learning_rate: float = 4e-5,
    warmup: int = 1000,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-20,
    clipping: float = 0.3,
) -> optax.GradientTransformation:
    """Return the Nature version's optimiser: clipped gradients, normalised, then averaged.

    Args:
      learning_rate: after the warm-up.
      warmup: updates in which it rises linearly from 0; the first update has 0.
      b1: decay of the average of normalised gradients.
      b2: decay of the average of squares. The paper says 0.99, its code 0.999.
      eps: added to the root of the average of squares.
      clipping: see `clip_to_parameters`.
    """
    schedule = optax.linear_schedule(0.0, learning_rate, warmup) if warmup else learning_rate
    return optax.chain(
        clip_to_parameters(clipping),
        optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        optax.ema(b1, debias=True),
        optax.scale_by_learning_rate(schedule),
    )


def clipped_adam(
    learning_rate: float, eps: float, max_gradient_norm: float
) -> optax.GradientTransformation:
    """Return the arXiv version's optimiser of world model, actor or critic (Table W.1)."""
    return optax.chain(
        optax.clip_by_global_norm(max_gradient_norm), optax.adam(learning_rate, eps=eps)
    )
