"""Many agents on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from training.passes import advance_agents, agents_per_pass, map_agents


def test_one_on_a_cpu_all_elsewhere(monkeypatch):
    assert agents_per_pass(None, 5) == 1
    assert agents_per_pass(3, 5) == 3
    assert agents_per_pass(8, 5) == 5
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert agents_per_pass(None, 5) == 5


@pytest.mark.parametrize("total", [1, 5])
@pytest.mark.parametrize("per_pass", [1, 2, 5])
def test_every_agent_is_computed_once_and_alone(total, per_pass):
    rows = {"x": jnp.arange(12.0 * total).reshape(total, 3, 4), "n": jnp.arange(float(total))}

    def function(row):
        assert row["x"].shape == (3, 4)
        return row["x"].sum(axis=0) * row["n"], row["n"]

    sums, numbers = map_agents(function, rows, per_pass)
    expected = np.asarray(rows["x"]).sum(axis=1) * np.arange(total)[:, None]
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(numbers, np.arange(total))


@pytest.mark.parametrize(("total", "per_pass"), [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6)])
def test_every_agent_is_replaced_by_its_successor(total, per_pass):
    agents = {"x": jnp.arange(4.0 * total).reshape(total, 4), "n": jnp.arange(total)}
    inputs = jnp.arange(1.0, total + 1)

    def function(agent, row):
        assert agent["x"].shape == (4,)
        return {"x": agent["x"] * row, "n": agent["n"] + 1}

    new = jax.jit(lambda agents: advance_agents(function, agents, inputs, per_pass))(agents)
    np.testing.assert_array_equal(new["x"], agents["x"] * inputs[:, None])
    np.testing.assert_array_equal(new["n"], agents["n"] + 1)
