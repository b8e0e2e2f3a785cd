"""A Flax network learns CartPole by a discovered rule.

python -m examples.flax_nnx
"""

import jax.numpy as jnp
from flax import nnx

from examples.training import learn

HIDDEN = 64


class Agent(nnx.Module):
    """Outputs per state from a torso, outputs per action from torso and action."""

    def __init__(self, observation_size, output_shapes, rngs):
        self.num_actions = output_shapes["logits"][0]
        self.output_ranks = nnx.static({name: len(s) for name, s in output_shapes.items()})
        self.torso = nnx.Linear(observation_size, HIDDEN, rngs=rngs)
        self.action = nnx.Linear(HIDDEN + self.num_actions, HIDDEN, rngs=rngs)
        self.heads = nnx.Dict(
            {name: nnx.Linear(HIDDEN, s[-1], rngs=rngs) for name, s in output_shapes.items()}
        )

    def __call__(self, observation):
        """Return all outputs, for any leading axes."""
        state = nnx.relu(self.torso(observation))
        actions = jnp.broadcast_to(
            jnp.eye(self.num_actions), (*state.shape[:-1], self.num_actions, self.num_actions)
        )
        states = jnp.repeat(state[..., None, :], self.num_actions, axis=-2)
        by_action = nnx.relu(self.action(jnp.concatenate([states, actions], axis=-1)))
        return {
            name: self.heads[name](state if rank == 1 else by_action)
            for name, rank in self.output_ranks.items()
        }


def make_network(key, observation_size, output_shapes):
    """Return the module's parameters, and a function of them."""
    agent = Agent(observation_size, output_shapes, nnx.Rngs(key))
    structure, params = nnx.split(agent)
    return params, lambda params, observation: nnx.merge(structure, params)(observation)


if __name__ == "__main__":
    learn(make_network)
