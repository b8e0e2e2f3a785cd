"""A network in plain JAX learns CartPole by a discovered rule.

python -m examples.plain_jax
"""

import jax
import jax.numpy as jnp

from examples.training import learn

HIDDEN = 64


def make_network(key, observation_size, output_shapes):
    """Return the network's parameters, and a function of them."""
    num_actions = output_shapes["logits"][0]

    def layer(name, inputs, outputs):
        subkey = jax.random.fold_in(key, sum(name.encode()))
        return {
            "w": jax.random.normal(subkey, (inputs, outputs)) / jnp.sqrt(inputs),
            "b": jnp.zeros(outputs),
        }

    params = {
        "torso": layer("torso", observation_size, HIDDEN),
        "action": layer("action", HIDDEN + num_actions, HIDDEN),
        **{name: layer(name, HIDDEN, shape[-1]) for name, shape in output_shapes.items()},
    }

    def apply(params, observation):
        def linear(name, x):
            return x @ params[name]["w"] + params[name]["b"]

        state = jax.nn.relu(linear("torso", observation))
        # One row per action, for the outputs that the rule needs per action.
        actions = jnp.broadcast_to(
            jnp.eye(num_actions), (*state.shape[:-1], num_actions, num_actions)
        )
        states = jnp.repeat(state[..., None, :], num_actions, axis=-2)
        by_action = jax.nn.relu(linear("action", jnp.concatenate([states, actions], axis=-1)))
        return {
            name: linear(name, state if len(shape) == 1 else by_action)
            for name, shape in output_shapes.items()
        }

    return params, apply


if __name__ == "__main__":
    learn(make_network)
