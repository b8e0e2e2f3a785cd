"""A Keras model learns CartPole by a discovered rule.

python -m examples.keras_module
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # Keras reads it when it is imported.

import jax
import keras
from keras import ops

from examples.training import learn

HIDDEN = 64


class Agent(keras.Model):
    """Outputs per state from a torso, outputs per action from torso and action."""

    def __init__(self, output_shapes):
        super().__init__()
        self.num_actions = output_shapes["logits"][0]
        self.output_ranks = {name: len(shape) for name, shape in output_shapes.items()}
        self.torso = keras.layers.Dense(HIDDEN, activation="relu")
        self.action = keras.layers.Dense(HIDDEN, activation="relu")
        self.heads = {name: keras.layers.Dense(shape[-1]) for name, shape in output_shapes.items()}

    def call(self, observation):
        """Return all outputs, for any leading axes."""
        state = self.torso(observation)
        leading = (*state.shape[:-1], self.num_actions)
        actions = ops.broadcast_to(ops.eye(self.num_actions), (*leading, self.num_actions))
        states = ops.broadcast_to(state[..., None, :], (*leading, HIDDEN))
        by_action = self.action(ops.concatenate([states, actions], axis=-1))
        return {
            name: self.heads[name](state if rank == 1 else by_action)
            for name, rank in self.output_ranks.items()
        }


def make_network(key, observation_size, output_shapes):
    """Return the model's parameters, and a function of them."""
    keras.utils.set_random_seed(int(jax.random.bits(key)))
    agent = Agent(output_shapes)
    agent(ops.zeros((1, observation_size)))  # Which makes the parameters.
    params = [variable.value for variable in agent.trainable_variables]
    return params, lambda params, observation: agent.stateless_call(params, [], observation)[0]


if __name__ == "__main__":
    learn(make_network)
