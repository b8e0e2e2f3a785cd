"""An Equinox network learns CartPole by a discovered rule.

python -m examples.equinox_module
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from examples.training import learn

HIDDEN = 64


class Agent(eqx.Module):
    """Outputs per state from a torso, outputs per action from torso and action."""

    torso: eqx.nn.Linear
    action: eqx.nn.Linear
    heads: dict[str, eqx.nn.Linear]
    output_ranks: dict[str, int] = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)

    def __init__(self, key, observation_size, output_shapes):
        self.num_actions = num_actions = output_shapes["logits"][0]
        torso_key, action_key, *head_keys = jax.random.split(key, 2 + len(output_shapes))
        self.torso = eqx.nn.Linear(observation_size, HIDDEN, key=torso_key)
        self.action = eqx.nn.Linear(HIDDEN + num_actions, HIDDEN, key=action_key)
        self.heads = {
            name: eqx.nn.Linear(HIDDEN, shape[-1], key=head_key)
            for (name, shape), head_key in zip(output_shapes.items(), head_keys, strict=True)
        }
        self.output_ranks = {name: len(shape) for name, shape in output_shapes.items()}

    def __call__(self, observation):
        """Return all outputs of one state."""
        state = jax.nn.relu(self.torso(observation))
        by_action = jax.vmap(
            lambda action: jax.nn.relu(self.action(jnp.concatenate([state, action])))
        )(jnp.eye(self.num_actions))
        return {
            name: self.heads[name](state) if rank == 1 else jax.vmap(self.heads[name])(by_action)
            for name, rank in self.output_ranks.items()
        }


def make_network(key, observation_size, output_shapes):
    """Return the module's parameters, and a function of them."""
    params, structure = eqx.partition(
        Agent(key, observation_size, output_shapes), eqx.is_inexact_array
    )

    def apply(params, observation):
        agent = eqx.combine(params, structure)
        for _ in range(observation.ndim - 1):
            agent = jax.vmap(agent)
        return agent(observation)

    return params, apply


if __name__ == "__main__":
    learn(make_network)
