"""A Haiku network learns CartPole by a discovered rule.

python -m examples.haiku_module
"""

import haiku as hk
import jax
import jax.numpy as jnp

from examples.training import learn

HIDDEN = 64


def make_network(key, observation_size, output_shapes):
    """Return the network's parameters, and a function of them."""
    num_actions = output_shapes["logits"][0]

    @hk.without_apply_rng
    @hk.transform
    def network(observation):
        state = jax.nn.relu(hk.Linear(HIDDEN, name="torso")(observation))
        # One row per action, for the outputs that the rule needs per action.
        actions = jnp.broadcast_to(
            jnp.eye(num_actions), (*state.shape[:-1], num_actions, num_actions)
        )
        states = jnp.repeat(state[..., None, :], num_actions, axis=-2)
        joined = jnp.concatenate([states, actions], axis=-1)
        by_action = jax.nn.relu(hk.Linear(HIDDEN, name="action")(joined))
        return {
            name: hk.Linear(shape[-1], name=name)(state if len(shape) == 1 else by_action)
            for name, shape in output_shapes.items()
        }

    return network.init(key, jnp.zeros(observation_size)), network.apply


if __name__ == "__main__":
    learn(make_network)
