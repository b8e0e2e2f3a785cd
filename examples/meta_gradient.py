"""A minimal meta-gradient: the gradient of an agent's final loss in the parameters of its rule.

The inner loop: an initial agent learns Catch for a few updates by a rule. The meta-loss is the
policy-gradient loss of the resulting agent on new experience. The outer loop: Adam updates the rule
by the meta-loss's gradient, which flows through the inner loop's updates and their optimiser, Adam.
Each meta-step starts from the same initial agent (DiscoRL, Methods, "Meta-gradient").
`launch.discover` is the complete algorithm.

python -m examples.meta_gradient
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import optax

import disco
import environments
from agents.policy_agent import PolicyAgent
from agents.rule_agent import to_trajectory
from examples.plain_jax import make_network
from training import collection

BATCH_SIZE, UNROLL_LENGTH, NUM_UPDATES = 16, 9, 4


def main() -> list[float]:
    """Make a few meta-updates of a rule, and return the norms of their meta-gradients."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", default="grid57", help="rule file, or a name in the zoo")
    parser.add_argument("--meta_steps", type=int, default=5)
    args = parser.parse_args()
    return discover(disco.load(args.rule), args.meta_steps)


def policy_loss(logits, trajectory):
    """Return REINFORCE's loss without discounting, in the unmasked transitions."""
    log_pi = jax.nn.log_softmax(logits)
    log_pi = jnp.take_along_axis(log_pi, trajectory.action[..., None], axis=-1)[..., 0]
    rewards_to_go = jnp.cumsum(trajectory.reward[::-1], axis=0)[::-1]
    return -jnp.mean(jnp.where(trajectory.mask, log_pi * rewards_to_go, 0.0))


def discover(rule: Any, meta_steps: int) -> list[float]:  # To Optax, rules are pytrees of arrays.
    """Update a rule by meta-gradients, and return their norms."""
    environment = environments.make("catch/5x5")
    dynamics, task = environment.dynamics, environment.params
    assert isinstance(dynamics, environments.JaxEnvironment)
    num_actions = environments.num_actions(dynamics)
    size = 5 * 5

    def apply_flat(params, observation):
        return apply(params, observation.reshape(*observation.shape[:-2], size))

    params, apply = make_network(jax.random.key(0), size, rule.output_shapes(num_actions))
    policy = PolicyAgent(lambda params, x, memory: (apply_flat(params, x)["logits"], memory))

    def unroll(params, trajectory):
        return apply_flat(params, trajectory.observation)

    # Without eps_root the meta-gradient is NaN: the gradients of unused parameters are 0, where the
    # square root in Adam has no derivative.
    optimizer = optax.adam(1e-3, eps_root=1e-8)

    def play(agent, actor, key):
        actor, batch, _ = collection.unroll(
            policy, dynamics, task, agent, actor, key, UNROLL_LENGTH
        )
        # The gradient does not flow through the collection of experience.
        return actor, jax.lax.stop_gradient(to_trajectory(batch))

    def meta_loss(rule, key):
        def update(carry, key):
            agent, rule_state, opt_state, actor = carry
            actor, trajectory = play(agent, actor, key)
            # `rule.gradient` can be differentiated in the rule; jax.grad(rule.loss) cannot.
            grads, aux = rule.gradient(agent, rule_state, trajectory, unroll)
            updates, opt_state = optimizer.update(grads, opt_state)
            return (optax.apply_updates(agent, updates), aux.state, opt_state, actor), None

        actor = collection.start(policy, dynamics, task, key, BATCH_SIZE)
        initial = (params, rule.init(params), optimizer.init(params), actor)
        *keys, last_key = jax.random.split(key, NUM_UPDATES + 1)
        (agent, _, _, actor), _ = jax.lax.scan(update, initial, jnp.stack(keys))
        _, trajectory = play(agent, actor, last_key)
        return policy_loss(unroll(agent, trajectory)["logits"][:-1], trajectory)

    meta_optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-4))
    meta_state = meta_optimizer.init(rule)
    meta_gradient = jax.jit(jax.value_and_grad(meta_loss))
    norms = []
    for step in range(meta_steps):
        loss, gradient = meta_gradient(rule, jax.random.key(step))
        updates, meta_state = meta_optimizer.update(gradient, meta_state)
        rule = optax.apply_updates(rule, updates)
        norms.append(float(optax.tree.norm(gradient)))
        print(f"meta-step {step}: loss {float(loss):.4f}, meta-gradient's norm {norms[-1]:.3g}")
    return norms


if __name__ == "__main__":
    main()
