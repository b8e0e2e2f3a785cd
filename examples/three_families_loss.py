"""The loss of three_families, a formula, in plain JAX.

`jax.grad(loss, has_aux=True)` of a policy's `logits` [T+1, B, A], all of them legal, and of action
values `q` [T+1, B, A, 21], categorical; `target_q` are those by a moving mean of the agent's
parameters, of decay 0.9. `batch` has `action`, `reward`, `discount` (0 where the transition
terminates its episode), `last` and `mask` (False between two episodes), [T, B], and
`behaviour_logits` [T, B, A]. The memory of a new agent is `MEMORY`.
"""

import jax
import jax.numpy as jnp

BINS = jnp.linspace(-15.0, 15.0, 21)
MEMORY = {"updates": jnp.zeros(()), "advantage": jnp.zeros(3)}


def _value(logits):
    x = jax.nn.softmax(logits) @ BINS
    s = jnp.abs(x) + 1.001
    return jnp.sign(x) * ((2.0 * s / (1.0 + jnp.sqrt(1.0 + 0.004 * s))) ** 2 - 1.0)


def _moved(old, x, mask, decay=0.99):
    return decay * old + (1.0 - decay) * jnp.mean(jnp.stack([x**0, x, x**2]), (1, 2), where=mask)


def _targets(logits, q, target_q, batch, memory):
    log_pi, bar = jax.nn.log_softmax(logits), _value(target_q)
    v = jnp.sum(jnp.exp(log_pi) * bar, -1)
    chosen = jax.nn.one_hot(batch["action"], logits.shape[-1])
    log_rho = jnp.sum(chosen * (log_pi[:-1] - jax.nn.log_softmax(batch["behaviour_logits"])), -1)
    gamma, q_bar = 0.997 * batch["discount"], jnp.sum(chosen * bar[:-1], -1)
    trace = jnp.roll(0.9 * jnp.minimum(1.0, jnp.exp(log_rho)), -1, 0)
    rows = batch["reward"] + gamma * v[1:] - q_bar, jnp.where(batch["last"], 0.0, gamma * trace)
    errors = jax.lax.scan(lambda e, x: 2 * (x[0] + x[1] * e,), 0 * v[0], rows, reverse=True)[1]
    returns, advantage = q_bar + errors, q_bar + errors - v[:-1]
    new = {"updates": memory["updates"] + 1.0}
    new["advantage"] = _moved(memory["advantage"], advantage, batch["mask"])
    _, mean, square = new["advantage"] / new["advantage"][0]
    deviation = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) + 1e-12)
    age = jnp.log1p(memory["updates"]) / 10.0
    advantages = jnp.log10(jnp.maximum(deviation, 1e-3))
    c = jax.nn.sigmoid(-1.798 + 0.3417 * advantages + 9.668 * age)
    k = jnp.exp(-0.1233 - 1.429 * advantages + 0.9348 * age)
    m = jnp.exp(-7.327 + 9.344 * age)
    target = k * advantage[..., None] * chosen + m * (bar - v[..., None])[:-1]
    target += c * (logits - jnp.mean(logits, -1, keepdims=True))[:-1]
    return jax.nn.log_softmax(target), returns, new, 1.0


def loss(logits, q, target_q, batch, memory):
    """Return the loss, and [memory, factor of the optimiser's step]."""
    log_target, g, *after = jax.lax.stop_gradient(_targets(logits, q, target_q, batch, memory))
    kl = jnp.sum(jnp.exp(log_target) * (log_target - jax.nn.log_softmax(logits[:-1])), -1)
    h = jnp.sign(g) * (jnp.sqrt(jnp.abs(g) + 1.0) - 1.0) + 1e-3 * g
    distance = jnp.abs(jnp.clip(h, BINS[0], BINS[-1])[..., None] - BINS) / (BINS[1] - BINS[0])
    q_taken = jnp.take_along_axis(q[:-1], batch["action"][..., None, None], -2)[..., 0, :]
    q_loss = -jnp.sum(jnp.maximum(0.0, 1.0 - distance) * jax.nn.log_softmax(q_taken), -1)
    return jnp.mean(kl + 0.2 * q_loss, where=batch["mask"]), after
