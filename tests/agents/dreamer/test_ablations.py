"""What each ablation of the arXiv version's Appendix E changes, on given predictions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from agents.dreamer import losses
from agents.dreamer.config import preset
from agents.dreamer.distributions import Continuous, Discrete
from agents.dreamer.losses import Imagined
from agents.dreamer.model import make_model
from agents.dreamer.networks import ActionPart
from agents.dreamer.returns import Deviation
from agents.dreamer.rssm import State

STEPS, NUMBER = 4, 6


def behaviour(name: str, ablation: str, continuous: bool = False):
    """Losses, metrics and scales of actor and critic; and the actor's loss by what was imagined.

    Rewards and values are the features, plain numbers around a hundredth.
    """
    config = dataclasses.replace(preset(name, ablation=ablation), deterministic=8, blocks=8)
    part = ActionPart(3, not continuous)
    model = make_model(config, {"any": specs.Array((1,), np.float32)}, {"action": part})
    numbers = jax.random.normal(jax.random.key(0), (STEPS + 1, NUMBER))

    def policies(params, features):
        shape = (*features.shape[:-1], 3)
        if continuous:
            return {"action": Continuous.of_outputs(jnp.zeros(shape), jnp.zeros(shape))}
        logits = jnp.broadcast_to(jnp.array([0.0, 1.0, 2.0]), shape)
        return {"action": Discrete(jax.nn.log_softmax(logits))}

    model = dataclasses.replace(
        model,
        reward=lambda params, x: x[..., :1],
        continuation=lambda params, x: 3.0 + 0.0 * x[..., 0],
        critic=lambda params, x: x[..., :1] * params["critic"],
        policies=policies,
        regression=_Plain(),
    )
    shape = (STEPS + 1, NUMBER)
    chosen = jnp.zeros((*shape, 3)) if continuous else jnp.zeros(shape, jnp.int32)

    def run(numbers):
        states = State(numbers[..., None], jnp.zeros((*shape, 1, 1)))
        params = {"critic": jnp.array(1.0)}
        found, _, scales, metrics = losses.actor_critic_losses(
            model,
            params,
            jnp.array(2.0),
            Imagined(states, {"action": chosen}),
            losses.newborn_scales(model),
        )
        return found["actor"], (found, scales, metrics)

    slope, (found, scales, metrics) = jax.grad(run, has_aux=True)(0.01 * numbers)
    return found, scales, metrics, slope


class _Plain:
    num_logits = 1

    def mean(self, x):
        return x[..., 0]

    def loss(self, x, target):
        return jnp.square(x[..., 0] - target)


@pytest.mark.parametrize("name", ["nature", "v1"])
def test_small_returns_are_scaled_up_without_the_floor(name):
    """By default noise of a hundredth stays as it is (equation 12)."""
    assert behaviour(name, "")[2]["return_scale"] == 1.0
    for ablation in ("AdvantageStd", "ReturnStd", "NoDenomMax"):
        metrics = behaviour(name, ablation)[2]
        assert 0.0 < metrics["return_scale"] < 0.1, ablation
        assert metrics["advantage_stddev"] > 0.3, ablation


@pytest.mark.parametrize("name", ["nature", "v1"])
def test_the_slow_critic_makes_the_returns_of_slow_target(name):
    default, slow = behaviour(name, ""), behaviour(name, "SlowTarget")
    # Its values are twice the others.
    assert abs(slow[2]["imagined_return"]) > 1.2 * abs(default[2]["imagined_return"])
    assert slow[0]["critic"] != default[0]["critic"]


def test_vectors_learn_through_the_dynamics_in_v1_also_from_slow_values():
    for ablation in ("", "SlowTarget"):
        slope = behaviour("v1", ablation, continuous=True)[3]
        # The last step has a value, but no reward that counts.
        assert np.abs(slope[-1]).min() > 0.0, ablation
    for discrete in (behaviour("v1", ""), behaviour("nature", "", continuous=True)):
        assert not np.any(discrete[3])


def test_the_entropys_weight_rises_for_target_entropy():
    assert behaviour("v1", "")[1].entropy == jnp.float32(3e-4)
    # Above the target it falls, down to the least.
    _, scales, metrics, _ = behaviour("v1", "TargetEntropy")
    assert metrics["randomness"] > 0.44
    assert scales.entropy == pytest.approx(1e-3)


def test_deviations_are_right_from_the_first_batch():
    numbers = np.random.default_rng(0).normal(3.0, 0.1, (200, 50))
    found = Deviation.newborn().update(jnp.asarray(numbers[0]))
    assert found.size == pytest.approx(numbers[0].std(), rel=1e-3)
    for row in numbers[1:]:
        found = found.update(jnp.asarray(row))
    assert found.size == pytest.approx(0.1, rel=0.05)
