"""The examples run: networks of several libraries learn by one rule, as a user would start them."""

import dataclasses
import importlib
import math

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import disco
from training import collection


@pytest.fixture
def rule_file(tmp_path):
    sizes = disco.MetaNetworkSizes(prediction=6, trajectory=8, lifetime=8)
    rule = disco.DiscoveredRule.create(jax.random.key(0), sizes, num_bins=11, max_value=5.0)
    path = tmp_path / "rule.npz"
    disco.save(rule, path)
    return path


@pytest.mark.parametrize(
    "example", ["plain_jax", "flax_nnx", "equinox_module", "haiku_module", "keras_module"]
)
def test_example_learns_without_a_hitch(example, rule_file, monkeypatch, capsys):
    module = importlib.import_module(f"examples.{example}")
    flags = ["--rule", str(rule_file), "--updates", "20"]
    monkeypatch.setattr("sys.argv", [example, *flags])

    returns = module.learn(module.make_network)

    assert returns
    assert all(math.isfinite(x) and x >= 8 for x in returns)  # No CartPole episode is shorter.
    assert "update 20: mean return" in capsys.readouterr().out


def test_the_example_in_torch_learns_without_a_hitch(rule_file, monkeypatch, capsys):
    pytest.importorskip("torch")
    module = importlib.import_module("examples.torch_module")
    monkeypatch.setattr("sys.argv", ["torch", "--rule", str(rule_file), "--updates", "20"])
    returns = module.main()
    assert returns
    assert all(math.isfinite(x) and x >= 8 for x in returns)
    assert "update 20: mean return" in capsys.readouterr().out


def test_a_trajectory_that_no_rule_can_learn_from_is_noticed(rule_file, monkeypatch):
    """By --check_values, in a program that was compiled."""
    module = importlib.import_module("examples.plain_jax")
    collect = collection.collect

    def damaged(*arguments):
        actor, batch, episodes = collect(*arguments)
        reward = batch.reward.at[3, 2].set(jnp.nan)
        mask = batch.mask.at[3, 2].set(True)
        return actor, dataclasses.replace(batch, reward=reward, mask=mask), episodes

    monkeypatch.setattr(collection, "collect", damaged)
    flags = ["--rule", str(rule_file), "--updates", "2", "--check_values"]
    monkeypatch.setattr("sys.argv", ["plain_jax", *flags])
    with pytest.raises(checkify.JaxRuntimeError, match=r"trajectory\.reward has nan"):
        module.learn(module.make_network)


@pytest.mark.slow
def test_the_example_of_a_meta_gradient_has_finite_ones(rule_file):
    module = importlib.import_module("examples.meta_gradient")
    norms = module.main(str(rule_file), meta_steps=2)
    assert len(norms) == 2
    assert all(math.isfinite(norm) and norm > 0 for norm in norms)
