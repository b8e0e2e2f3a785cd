"""What each ablation of the arXiv version's Appendix E changes, on given predictions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from agents.dreamer import distributions, losses
from agents.dreamer.config import preset
from agents.dreamer.distributions import Continuous, Discrete, Policy
from agents.dreamer.losses import Deviation
from agents.dreamer.model import WORLD_MODEL, Imagined, Model, Observed, Sequences
from agents.dreamer.networks import ActionSpace, State, initial_state
from disco_common import compilation

STEPS, NUMBER = 4, 6


def behaviour(name: str, ablation: str, continuous: bool = False, ended: int = 0):
    """Losses, metrics and scales of actor and critic; and the actor's loss by what was imagined.

    Rewards and values are the features, plain numbers around a hundredth. So many of the sequences
    begin at an episode's end.
    """
    config = dataclasses.replace(preset(name, ablation=ablation), deterministic=8)
    part = ActionSpace(3, not continuous)
    seen = {"any": specs.Array((1,), np.float32)}
    model = _OfFeatures.make(config, seen, part)
    model = dataclasses.replace(model, regression=_Plain())
    numbers = jax.random.normal(jax.random.key(0), (STEPS + 1, NUMBER))
    shape = (STEPS + 1, NUMBER)
    chosen = jnp.zeros((*shape, 3)) if continuous else jnp.zeros(shape, jnp.int32)

    def run(numbers):
        states = State(numbers[..., None], jnp.zeros((*shape, 1, 1)))
        params = {"critic": jnp.array(1.0)}
        found, _, scales, metrics = losses.actor_critic_losses(
            model,
            params,
            jnp.array(2.0),
            Imagined(states, chosen),
            (jnp.arange(NUMBER) >= ended).astype(float),
            losses.initial_scales(model),
        )
        return jnp.mean(found["actor"]), (jax.tree.map(jnp.mean, found), scales, metrics)

    slope, (found, scales, metrics) = jax.grad(run, has_aux=True)(0.01 * numbers)
    return found, scales, metrics, slope


class _OfFeatures(Model):
    """A model whose rewards and values are the features."""

    def reward(self, params, features):
        return features[..., :1]

    def continuation(self, params, features):
        return 3.0 + 0.0 * features[..., 0]

    def critic(self, params, features):
        return features[..., :1] * params["critic"]

    def policy(self, params, features) -> Policy:
        shape = (*features.shape[:-1], 3)
        if not self.actions.is_discrete:
            return Continuous.of_outputs(jnp.zeros(shape), jnp.zeros(shape))
        logits = jnp.broadcast_to(jnp.array([0.0, 1.0, 2.0]), shape)
        return Discrete(jax.nn.log_softmax(logits))


class _Plain(distributions.SymlogRegression):
    """A regression of plain numbers."""

    def mean(self, logits):
        return logits[..., 0]

    def loss(self, logits, target):
        return jnp.square(logits[..., 0] - target)


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
    assert losses._adapted(0.01, 0.4, 0.3, 1e-3, 3e-2) == pytest.approx(0.011)
    assert losses._adapted(0.029, 0.4, 0.3, 1e-3, 3e-2) == pytest.approx(0.03)
    assert losses._adapted(0.01, 0.4, 0.4, 1e-3, 3e-2) == pytest.approx(0.01)


def test_what_is_imagined_beyond_an_episodes_end_has_no_weight_in_v1():
    """As it happened; the Nature version goes by what is predicted."""
    for ended in (0, 2):
        slope = behaviour("v1", "", continuous=True, ended=ended)[3]
        assert not np.any(slope[:, :ended])
        assert np.abs(slope[-1, ended:]).min() > 0.0
    found = [behaviour("nature", "", ended=ended)[0]["critic"] for ended in (0, 2)]
    assert found[0] == found[1] > 0.0


def world_model(ablation: str, posterior_logit: float):
    """Losses and scales of v1's world model, whose latents' two classes are that sure."""
    config = dataclasses.replace(
        preset("v1", "1m", ablation), deterministic=4, latents=3, classes=2, units=4, layers=1
    )
    model = Model.make(config, {"any": specs.Array((1,), np.float32)}, ActionSpace(3, True))
    shape = (2, 5)
    never = jnp.zeros(shape, bool)
    batch = Sequences({"any": jnp.ones((*shape, 1))}, never, jnp.ones(shape), never, never, never)
    sure = jnp.zeros((*shape, 3, 2)).at[..., 0].set(posterior_logit)
    posterior, prior = (jax.nn.log_softmax(x) for x in (sure, jnp.zeros_like(sure)))
    states = State(jnp.zeros((*shape, 4)), jnp.zeros((*shape, 3, 2)))
    observed = Observed(states, posterior, prior)
    params = model.init(jax.random.key(0))
    return losses.world_model_losses(
        model, params, batch, observed, losses.initial_scales(model)._replace(kl=jnp.array(0.5))
    )


def test_the_weight_of_the_kl_terms_follows_target_kl():
    """3.5 nats, which three variables of two classes never have: the weight falls by a tenth."""
    found, scales, metrics = world_model("TargetKL", 3.0)
    assert metrics["kl"] < 3.0 * np.log(2.0)
    assert scales.kl == pytest.approx(0.5 / 1.1)
    np.testing.assert_allclose(found["dynamics"], metrics["kl"], rtol=1e-5)  # None is free.
    assert losses._adapted(0.5, 4.0, 3.5, 1e-3, 1.0) == pytest.approx(0.55)
    assert losses._adapted(0.95, 4.0, 3.5, 1e-3, 1.0) == 1.0
    assert world_model("", 3.0)[1].kl == 0.5


def test_free_bits():
    """Where the posterior says no more than the prior, one nat is left, or none without them."""
    for ablation, expected in {"": 1.0, "NoKLBalance": 1.0, "NoFreeBits": 0.0}.items():
        found = world_model(ablation, 0.0)[0]
        np.testing.assert_allclose(found["dynamics"], expected, atol=1e-6)
        np.testing.assert_allclose(found["representation"], expected, atol=1e-6)


def test_rewards_are_divided_by_their_deviation_and_clipped_for_reward_norm():
    seen = {"any": specs.Array((1,), np.float32)}
    model = Model.make(preset("v1", "1m", "RewardNorm"), seen, ActionSpace(2, True))
    scales = losses.initial_scales(model)
    rewards = np.random.default_rng(0).normal(0.0, 7.0, 10_000)
    scales = scales._replace(reward=scales.reward.update(jnp.asarray(rewards)))
    assert losses.reward_divisor(scales) == pytest.approx(7.0, rel=0.05)


@pytest.mark.parametrize(
    ("version", "ablation"), [("nature", ""), ("v1", ""), ("v1", "SqrtTransform")]
)
def test_two_hot_regressions_are_least_where_their_mean_is_the_target(version, ablation):
    head = distributions.regression_of(preset(version, ablation=ablation))
    assert isinstance(head, distributions.TwoHot)
    for target in (-90.0, -0.3, 0.0, 2.5, 400.0):
        x = head.transform(jnp.float32(target))
        above = int(np.clip(np.sum(head.bins <= x), 1, 254))
        low, high = head.bins[above - 1], head.bins[above]
        share = (x - low) / (high - low)
        p = jnp.full(255, 1e-12).at[above - 1].set(1.0 - share).at[above].set(share)
        logits = jnp.log(jnp.maximum(p, 1e-12))
        assert head.mean(logits) == pytest.approx(target, rel=1e-2, abs=1e-3)
        slope = jax.grad(head.loss)(logits, jnp.float32(target))
        np.testing.assert_allclose(slope, 0.0, atol=1e-4)


def test_a_target_that_is_no_number_is_no_bins():
    for version in ("nature", "v1"):
        head = distributions.regression_of(preset(version))
        found = head.loss(jnp.zeros((2, 255)), jnp.array([jnp.nan, 1.0]))
        assert np.isnan(found[0])
        assert np.isfinite(found[1])


def test_deviations_are_right_from_the_first_batch():
    numbers = np.random.default_rng(0).normal(3.0, 0.1, (200, 50))
    found = Deviation(*jnp.zeros(3)).update(jnp.asarray(numbers[0]))
    assert found.size == pytest.approx(numbers[0].std(), rel=1e-3)
    for row in numbers[1:]:
        found = found.update(jnp.asarray(row))
    assert found.size == pytest.approx(0.1, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "continuous"), [("nature", False), ("v1", True)])
def test_actor_and_critic_leave_the_world_model_alone(name, continuous):
    """But for the Nature version's critic on replayed states; and the world model leaves them."""
    small = {"deterministic": 8, "blocks": 1, "units": 4, "latents": 2, "classes": 3}
    small |= {"horizon": 3, "layers": 1}
    shape = (4, 2)
    action = jnp.ones((*shape, 2)) if continuous else jnp.ones(shape, jnp.int32)
    never = jnp.zeros(shape, bool)
    seen = jax.random.normal(jax.random.key(0), (*shape, 5))
    batch = Sequences({"any": seen}, action, seen[..., 0], never.at[0].set(True), never, never)

    def slopes(*learned):
        config = dataclasses.replace(preset(name, "1m"), **small)
        part = ActionSpace(2, not continuous)
        model = Model.make(config, {"any": specs.Array((5,), np.float32)}, part)
        params = model.init(jax.random.key(1))
        # Zeros at birth would hide what flows through them.
        params = jax.tree.map(lambda x: x + 0.1, params)
        start, scales = initial_state(config, shape[1]), losses.initial_scales(model)
        key = jax.random.key(2)

        def loss(params):
            _, outcome = losses.loss(params, params["critic"], model, batch, start, scales, key)
            return sum(jnp.mean(outcome.losses[x]) for x in learned)

        found = compilation.jit_compiled_fast(jax.grad(loss))(params)
        return {k: max(float(jnp.abs(x).max()) for x in jax.tree.leaves(found[k])) for k in found}

    behaviour = slopes("actor", "critic")
    world = slopes("decoder/any", "reward", "continuation", "dynamics", "representation")
    for network in behaviour:
        (none, some) = (behaviour, world) if network in WORLD_MODEL else (world, behaviour)
        assert none[network] == 0.0 < some[network], network
    if name == "nature":
        replayed = slopes("critic_replay")
        assert replayed["rssm"] > 0.0 == replayed["decoder"]
