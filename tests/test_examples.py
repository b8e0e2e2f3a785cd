"""The examples run: networks of three libraries learn by one rule, as a user would start them."""

import importlib
import math

import jax
import pytest

import disco


@pytest.fixture
def rule_file(tmp_path):
    sizes = disco.MetaNetworkSizes(prediction=6, trajectory=8, lifetime=8)
    rule = disco.DiscoveredRule.create(jax.random.key(0), sizes, num_bins=11, max_value=5.0)
    path = tmp_path / "rule.npz"
    disco.save(rule, path)
    return path


@pytest.mark.parametrize("example", ["plain_jax", "flax_nnx", "equinox_module"])
def test_example_learns_without_a_hitch(example, rule_file, monkeypatch, capsys):
    module = importlib.import_module(f"examples.{example}")
    flags = ["--rule", str(rule_file), "--updates", "20"]
    monkeypatch.setattr("sys.argv", [example, *flags])

    returns = module.learn(module.make_network)

    assert returns
    assert all(math.isfinite(x) and x >= 8 for x in returns)  # No CartPole episode is shorter.
    assert "update 20: mean return" in capsys.readouterr().out
