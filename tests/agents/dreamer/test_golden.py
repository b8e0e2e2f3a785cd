"""Every part against the authors' code, at the tolerances of the vectors' FORMAT.md."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from agents.dreamer import distributions, losses
from agents.dreamer.config import DreamerConfig
from agents.dreamer.losses import Batch
from agents.dreamer.model import make_model
from agents.dreamer.networks import ActionPart
from agents.dreamer.optimizers import clip_to_parameters, laprop
from agents.dreamer.returns import Range, lambda_returns
from agents.dreamer.rssm import State
from tests.agents.dreamer.golden import (
    assert_close,
    fill,
    golden_cases,
    named_leaves,
    our_name,
)
from tests.golden import group


@pytest.fixture(autouse=True)
def _precise():
    with jax.default_matmul_precision("highest"):
        yield


def time_major(x):
    return jnp.swapaxes(jnp.asarray(x), 0, 1)


def test_names():
    assert our_name("dyn/dynin1norm/scale") == "rssm/input_z/norm/scale"
    assert our_name("pol/head/action/stddev/kernel") == "actor/action_stddev_output/w"


# The whole loss.


def agent_model(case):
    meta = case.meta
    config = DreamerConfig(
        deterministic=meta["deter"],
        hidden=meta["hidden"],
        latents=meta["stoch"],
        classes=meta["classes"],
        blocks=meta["blocks"],
        units=meta["units"],
        depth=meta["depth"],
        horizon=meta["imag_length"],
        discount_horizon=meta["horizon"],
    )
    observations = {
        name: specs.BoundedArray(x.shape[2:], x.dtype, 0, 255)
        if x.dtype == np.uint8
        else specs.Array(x.shape[2:], x.dtype)
        for name, x in group(case.given, "obs/").items()
        if name not in ("reward", "is_first", "is_last", "is_terminal")
    }
    actions = {
        name: ActionPart(size, kind == "discrete") for name, (kind, size) in meta["actions"].items()
    }
    model = make_model(config, observations, actions)
    weights = group(case.given, "w/")
    slow = {f"val/{name}": x for name, x in group(weights, "slowval/").items()}
    weights = {name: x for name, x in weights.items() if not name.startswith(("slowval", "ret"))}
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = fill(shapes, weights)
    return model, params, fill({"critic": shapes["critic"]}, slow)["critic"]


@golden_cases("agent")
def test_the_whole_loss(case):
    model, params, slow = agent_model(case)
    given = case.given
    observed = group(given, "obs/")
    batch = Batch(
        observation={name: time_major(observed[name]) for name in observed},
        action={name: time_major(x) for name, x in group(given, "prevact/").items()},
        reward=time_major(observed["reward"]),
        is_first=time_major(observed["is_first"]),
        is_last=time_major(observed["is_last"]),
        is_terminal=time_major(observed["is_terminal"]),
    )
    start = State(jnp.asarray(given["deter0"]), jnp.asarray(given["stoch0"]))
    norm = group(given, "w/retnorm/")
    scales = losses.newborn_scales(model)._replace(
        returns=Range(jnp.asarray(norm["lo/value"]), jnp.asarray(norm["hi/value"]))
    )
    compute = jax.jit(jax.value_and_grad(losses.loss, has_aux=True), static_argnums=2)
    (total, outcome), gradients = compute(params, slow, model, batch, start, scales, None)
    expected = case.expected
    assert_close(total, expected["loss"], 2e-5, "loss")
    names = {
        "dyn": "dynamics",
        "rep": "representation",
        "rew": "reward",
        "con": "continuation",
        "policy": "actor",
        "value": "critic",
        "repval": "critic_replay",
    }
    for name, value in group(expected, "losses/").items():
        ours = outcome.losses[names.get(name, f"/{name}")]
        assert_close(ours, np.mean(value), 2e-5, name)
    assert_close(outcome.scales.returns.low, expected["retnorm_lo"], 5e-5, "low")
    assert_close(outcome.scales.returns.high, expected["retnorm_hi"], 5e-5, "high")
    assert_close(time_major(outcome.observed.states.h), expected["deter"], 5e-6, "h")
    assert_close(time_major(outcome.observed.states.z), expected["stoch"], 0.0, "z")
    actual = named_leaves(gradients)
    wanted = {our_name(name): x for name, x in group(expected, "grad/").items()}
    assert set(actual) == set(wanted)
    for name, value in wanted.items():
        assert_close(actual[name], value, 3e-4, name)


# Its parts.


@golden_cases("twohot")
def test_two_hot(case):
    given, expected = case.given, case.expected
    bins = case.meta["bins"]
    head = distributions.symexp_twohot(bins)
    np.testing.assert_allclose(head.bins, expected["bins"], rtol=1e-5)
    logits, target = jnp.asarray(given["logits"]), jnp.asarray(given["target"])
    found = jax.jit(head.loss)(logits, target)
    np.testing.assert_allclose(found, expected["loss"], rtol=1e-5, atol=5e-4)
    gradient = jax.jit(jax.grad(lambda x: head.loss(x, target).sum()))(logits)
    np.testing.assert_allclose(gradient, expected["grad_loss_logits"], atol=5e-5)
    mean = np.asarray(jax.jit(head.mean)(logits))
    allowed = 1e-5 * np.max(np.abs(expected["pred"])) + (0.5 if bins == 255 else 1e-6)
    np.testing.assert_allclose(mean, expected["pred"], rtol=0, atol=allowed)
    slope = jax.jit(jax.grad(lambda x: head.mean(x).sum()))(logits)
    assert_close(slope, expected["grad_pred_logits"], 1e-5)
    np.testing.assert_allclose(
        distributions.symlog(given["x_symlog"]), expected["symlog"], rtol=1e-6
    )
    np.testing.assert_allclose(
        distributions.symexp(given["x_symexp"]), expected["symexp"], rtol=1e-5
    )


def test_symmetric_probabilities_mean_nothing():
    """Exactly, also compiled, where the authors' code is off by 0.17."""
    head = distributions.symexp_twohot()
    assert float(jax.jit(head.mean)(jnp.zeros(255))) == 0.0


@golden_cases("lambda_return")
def test_lambda_returns(case):
    given, meta = case.given, case.meta
    reward = time_major(given["rew"])
    if meta["form"] == "imag":
        discount, mixing = time_major(given["con"]), jnp.full_like(reward, meta["lam"])
        bootstrap = time_major(given["value"])
    else:
        discount = meta["disc"] * (1.0 - time_major(given["is_terminal"]))
        mixing = meta["lam"] * (1.0 - time_major(given["is_last"]))
        bootstrap = time_major(given["boot"])
    found = jax.jit(lambda_returns)(reward, discount, mixing, bootstrap)
    assert_close(time_major(found), case.expected["ret"], 5e-6)


@golden_cases("latents")
def test_latents(case):
    given, expected = case.given, case.expected
    post, prior, one_hot, cotangent = (
        jnp.asarray(given[name]) for name in ("post", "prior", "sample", "cot")
    )
    free, unimix, sg = case.meta["free_nats"], case.meta["unimix"], jax.lax.stop_gradient

    def mixed(logits):
        return distributions.mixed_log_probabilities(logits, unimix)

    def dynamics(post, prior):
        return jnp.maximum(free, distributions.kl_divergence(sg(mixed(post)), mixed(prior)))

    def representation(post, prior):
        return jnp.maximum(free, distributions.kl_divergence(mixed(post), sg(mixed(prior))))

    def both(post, prior):
        return dynamics(post, prior) + 0.1 * representation(post, prior)

    entropies = {
        name: jnp.sum(distributions.entropy(mixed(x)), axis=-1)
        for name, x in {"post": post, "prior": prior}.items()
    }
    found = {
        "post_logprobs": mixed(post),
        "prior_logprobs": mixed(prior),
        "kl_raw": distributions.kl_divergence(mixed(post), mixed(prior)),
        "dyn": dynamics(post, prior),
        "rep": representation(post, prior),
        "post_entropy": entropies["post"],
        "prior_entropy": entropies["prior"],
        "metric_rep_ent": jnp.mean(entropies["post"]),
        "metric_dyn_ent": jnp.mean(entropies["prior"]),
        "post_sample_logp": jnp.sum(one_hot * mixed(post), axis=-1),
        "post_mode": distributions.sample(None, mixed(post)),
    }
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)

    for name, function in {"dyn": dynamics, "rep": representation, "both": both}.items():
        slopes = jax.grad(lambda *x, f=function: jnp.sum(f(*x)), argnums=(0, 1))(post, prior)
        for side, slope in zip(("post", "prior"), slopes, strict=True):
            wanted = expected[f"grad_{name}_{side}"]
            if not wanted.any():
                assert not np.any(slope), (name, side)
            assert_close(slope, wanted, 5e-6, f"grad_{name}_{side}")

    def through(post):
        return jnp.sum(cotangent * distributions.straight_through(one_hot, mixed(post)))

    assert_close(jax.grad(through)(post), expected["grad_straight_through_post"], 5e-6)


@golden_cases("optimizer")
def test_optimizer(case):
    given, expected, names = case.given, case.expected, case.meta["names"]
    names_of = {"lr": "learning_rate", "warmup": "warmup"}
    optimizer = laprop(**{names_of[name]: x for name, x in case.meta["opt"].items()})
    params = {name: jnp.asarray(given[f"params/{name}"]) for name in names}
    state = optimizer.init(params)
    if "step" in given:
        state = _state_at(state, given)
    update, clip = jax.jit(optimizer.update), clip_to_parameters()
    for step in range(case.meta["steps"]):
        gradients = {name: jnp.asarray(given[f"grads/{name}"][step]) for name in names}
        clipped, _ = clip.update(gradients, clip.init(params), params)
        updates, state = update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        for name in names:
            for kind, found, tolerance in (
                ("clipped", clipped, 5e-5),
                ("updates", updates, 1e-4),
                ("params", params, 3e-5),
            ):
                where = f"{kind}/{name}, step {step}"
                assert_close(found[name], expected[f"{kind}/{name}"][step], tolerance, where)
    nu, mu = state[1].nu, state[2].ema
    for name in names:
        assert_close(nu[name], expected[f"nu/{name}"], 1e-4, name)
        assert_close(mu[name], expected[f"mu/{name}"], 1e-4, name)


def _state_at(state, given):
    """LaProp's in the middle of a run."""
    step = jnp.asarray(given["step"])
    moments = {kind: group(given, f"{kind}/") for kind in ("nu", "mu")}
    nu, mu = ({k: jnp.asarray(x) for k, x in moments[kind].items()} for kind in ("nu", "mu"))
    clip, rms, ema, rate = state
    return (
        clip,
        rms._replace(nu=nu, count=step),
        ema._replace(ema=mu, count=step),
        rate._replace(count=step),
    )


@golden_cases("retnorm")
def test_return_range(case):
    found = Range(jnp.asarray(case.given["lo0"]), jnp.asarray(case.given["hi0"]))
    for step in range(case.meta["steps"]):
        found = found.update(jnp.asarray(case.given[f"x{step}"]))
        np.testing.assert_allclose(found.low, case.expected["lo"][step], rtol=1e-5)
        np.testing.assert_allclose(found.high, case.expected["hi"][step], rtol=1e-5)
        scale = jnp.maximum(1.0, found.size)
        np.testing.assert_allclose(scale, case.expected["scale"][step], rtol=1e-5)
