"""The search: it finds what is best in a model, and equals `mctx` on a table of the same model."""

from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

import environments
from agents.latent_model import LatentModel, Prediction
from agents.muzero.algorithm import search
from agents.muzero.config import MuZeroConfig
from agents.networks import NetworkConfig
from disco import values

STATES, A, BINS, LARGEST, DISCOUNT = 6, 3, 61, 3.0, 0.9


def table() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "next": random.integers(STATES, size=(STATES, A)),
        "reward": random.normal(size=(STATES, A)).astype(np.float32),
        "value": random.normal(size=STATES).astype(np.float32),
        "logits": random.normal(size=(STATES, A)).astype(np.float32),
    }


def tabular_model(rows: dict[str, np.ndarray]) -> LatentModel:
    """A model whose latent state is a row's index and the last reward, and whose bins are exact."""
    arrays = {name: jnp.asarray(x) for name, x in rows.items()}

    def bins(number):
        code = values.two_hot(values.signed_hyperbolic(number), BINS, LARGEST)
        return jnp.log(code + 1e-9)

    class Tabular(LatentModel):
        def step(self, params, state, action):
            row, _ = state
            return arrays["next"][row, action], arrays["reward"][row, action]

        def predict(self, params, state):
            row, reward = state
            return Prediction(arrays["logits"][row], bins(arrays["value"][row]), bins(reward))

        def start(self, params, embedding):
            row = embedding[..., 0].astype(jnp.int32)
            return row, jnp.zeros(row.shape)

    dynamics = environments.make("catch/5x4").dynamics
    return Tabular(NetworkConfig(model=1), dynamics, num_bins=BINS)


def found_by(num_simulations: int, gumbel_scale: float = 1.0) -> Any:
    embedding = jnp.arange(STATES, dtype=jnp.float32)[:, None]
    return search(
        tabular_model(table()),
        jnp.zeros(1),
        embedding,
        jax.random.key(3),
        MuZeroConfig(
            num_simulations=num_simulations,
            max_considered_actions=A,
            discount=DISCOUNT,
            max_value=LARGEST,
        ),
        gumbel_scale,
    )


@pytest.mark.parametrize("num_simulations", [1, 4, 16])
def test_it_equals_mctx_on_the_table(num_simulations):
    rows = {name: jnp.asarray(x) for name, x in table().items()}

    def recurrent(params, key, action, row) -> tuple[Any, Any]:
        after = rows["next"][row, action]
        reward = rows["reward"][row, action]
        output = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.full_like(reward, DISCOUNT),
            prior_logits=rows["logits"][after],
            value=rows["value"][after],
        )
        return output, after

    root = mctx.RootFnOutput(
        prior_logits=rows["logits"], value=rows["value"], embedding=jnp.arange(STATES)
    )
    with jax.numpy_dtype_promotion("standard"):
        expected = mctx.gumbel_muzero_policy(
            jnp.zeros(1),
            jax.random.key(3),
            root,
            recurrent,
            num_simulations,
            max_num_considered_actions=A,
        )
    found = found_by(num_simulations)
    np.testing.assert_array_equal(found.action, expected.action)
    np.testing.assert_allclose(found.policy, expected.action_weights, atol=1e-3)
    np.testing.assert_allclose(found.value, expected.search_tree.summary().value, atol=1e-3)


def test_many_simulations_find_the_best_action():
    """Value iteration on the table, whose values are replaced by the exact ones."""
    rows = table()
    exact = np.zeros(STATES)
    for _ in range(500):
        exact = (rows["reward"] + DISCOUNT * exact[rows["next"]]).max(axis=1)
    best = (rows["reward"] + DISCOUNT * exact[rows["next"]]).argmax(axis=1)
    found = found_by(200, gumbel_scale=0.0)
    assert np.mean(np.asarray(found.action) == best) >= 5 / 6
    np.testing.assert_allclose(np.sum(np.asarray(found.policy), axis=-1), 1.0, rtol=1e-5)


def test_without_noise_it_does_not_depend_on_the_key():
    first, second = found_by(8, 0.0), found_by(8, 0.0)
    np.testing.assert_array_equal(first.action, second.action)
