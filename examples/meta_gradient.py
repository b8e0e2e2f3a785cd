"""A meta-gradient: how a rule must change for its agents to learn faster.

python -m examples.meta_gradient
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import disco
from examples.plain_jax import make_network


def main(name: str = "grid57", meta_steps: int = 5) -> list[float]:
    """Improve a rule on a bandit with contexts; return the norms of the meta-gradients."""
    rule: Any = disco.load(name)  # To Optax a pytree of arrays.
    initial, apply = make_network(jax.random.key(0), 3, rule.output_shapes(3))
    optimizer = optax.adam(1e-3, eps_root=1e-8)  # With eps_root 0 the meta-gradient is NaN.

    def unroll(params, trajectory):
        return apply(params, trajectory.observation)

    def play(params, key):  # Episodes of one step; the action of the context's number is right.
        observation = jax.nn.one_hot(jax.random.randint(key, (9, 32), 0, 3), 3)
        logits = apply(params, observation[:-1])["logits"]
        action = jax.random.categorical(jax.random.fold_in(key, 1), logits)
        ones = jnp.ones(action.shape, bool)
        reward = jnp.take_along_axis(observation[:-1], action[..., None], axis=-1)[..., 0]
        return disco.Trajectory(
            observation=observation,
            action=action,
            reward=reward,
            discount=0.0 * reward,
            last=ones,
            mask=ones,
            behaviour_logits=jax.lax.stop_gradient(logits),
        )

    def meta_loss(rule, key):
        def update(agent, key):
            params, state, opt_state = agent
            # Not jax.grad(rule.loss): its targets are constants for the rule.
            grads, aux = rule.gradient(params, state, play(params, key), unroll)
            updates, opt_state = optimizer.update(grads, opt_state)
            return (optax.apply_updates(params, updates), aux.state, opt_state), None

        agent = initial, rule.init(initial), optimizer.init(initial)
        (params, _, _), _ = jax.lax.scan(update, agent, jax.random.split(key, 20))
        policy = jax.nn.softmax(apply(params, jnp.eye(3))["logits"])
        return -jnp.mean(jnp.diag(policy))  # Minus the expected reward after learning.

    meta_optimizer, norms = optax.adam(1e-3), []
    meta_state, meta_gradient = meta_optimizer.init(rule), jax.jit(jax.value_and_grad(meta_loss))
    for step in range(meta_steps):
        loss, gradient = meta_gradient(rule, jax.random.key(step))
        updates, meta_state = meta_optimizer.update(gradient, meta_state)
        rule = optax.apply_updates(rule, updates)
        norms.append(float(optax.tree.norm(gradient)))
        print(f"meta-step {step}: reward {-loss:.3f}, norm of the meta-gradient {norms[-1]:.3g}")
    return norms


if __name__ == "__main__":
    main()
