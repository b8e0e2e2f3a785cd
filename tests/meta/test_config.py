"""Settings of a discovery that are more than numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from meta.config import MetaConfig


def test_the_learning_rate_falls_along_a_cosine_and_stays():
    config = MetaConfig(learning_rate=2e-3, learning_rate_decay_steps=100, end_learning_rate=0.1)
    found = [float(config.learning_rate_at(jnp.int32(step))) for step in (0, 50, 100, 300)]
    np.testing.assert_allclose(found, [2e-3, 1.1e-3, 2e-4, 2e-4], rtol=1e-6)


def test_without_decay_it_is_constant():
    config = MetaConfig(learning_rate=2e-3)
    assert config.learning_rate_at(jnp.int32(10_000)) == 2e-3


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate_decay_steps", -1), ("end_learning_rate", 1.5)]
)
def test_impossible_decays_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"meta.{name} is {value}; expected"):
        MetaConfig(**{name: value})
