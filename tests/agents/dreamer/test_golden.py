"""Every part against the authors' code, at the tolerances of the vectors' FORMAT.md."""

import dataclasses
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs

from agents.dreamer import distributions, losses
from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import observations_of
from agents.dreamer.layers import MLP
from agents.dreamer.losses import Range, lambda_returns
from agents.dreamer.model import Imagined, Model, Sequences, observe, observe_step
from agents.dreamer.networks import (
    RSSM,
    ActionSpace,
    Decoder,
    Encoder,
    State,
    initial_state,
)
from agents.optimizers import clip_to_parameters, laprop
from tests.agents.common import take_modes
from tests.agents.dreamer.golden import (
    assert_close,
    compared,
    every_case,
    fill,
    golden_cases,
    named_leaves,
    our_name,
)
from tests.golden import group

KEY = jax.random.key(0)  # Of no effect, as samples are modes.


@pytest.fixture(autouse=True)
def _precise(monkeypatch):
    """Computes in full precision, and takes modes for samples, as the vectors do."""
    take_modes(monkeypatch)
    with jax.default_matmul_precision("highest"):
        yield


def time_major(x):
    return jnp.swapaxes(jnp.asarray(x), 0, 1)


def test_names():
    assert our_name("dyn/dynin1norm/scale") == "rssm/input_z/norm/scale"
    assert our_name("pol/head/action/stddev/kernel") == "actor/action_stddev_output/w"


# The whole loss.


def core_config(meta, **more):
    """Sizes of the recurrent model; the rest as given."""
    return DreamerConfig(
        deterministic=meta["deter"],
        latents=meta["stoch"],
        classes=meta["classes"],
        blocks=meta["blocks"],
        units=meta["hidden"],
        **more,
    )


def agent_model(case):
    meta = case.meta
    assert meta["units"] == meta["hidden"]
    config = core_config(
        meta,
        depth=meta["depth"],
        policy_unimix=0.0,  # The code has the setting, and does not use it.
        horizon=meta["imag_length"],
        imagine_last=meta["imag_last"],
        discount_horizon=meta["horizon"],
    )
    observations = {
        name: specs.BoundedArray(x.shape[2:], x.dtype, 0, 255)
        if x.dtype == np.uint8
        else specs.Array(x.shape[2:], x.dtype)
        for name, x in group(case.given, "obs/").items()
        if name not in ("reward", "is_first", "is_last", "is_terminal")
    }
    ((kind, size),) = meta["actions"].values()
    model = Model.make(config, observations, ActionSpace(size, kind == "discrete"))
    weights = group(case.given, "w/")
    slow = {f"val/{name}": x for name, x in group(weights, "slowval/").items()}
    weights = {name: x for name, x in weights.items() if not name.startswith(("slowval", "ret"))}
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = fill(shapes, weights)
    return model, params, fill({"critic": shapes["critic"]}, slow)["critic"]


@pytest.mark.slow
@golden_cases("agent")
def test_the_whole_loss(case):
    model, params, slow = agent_model(case)
    given = case.given
    observed = group(given, "obs/")
    batch = Sequences(
        observation={name: time_major(observed[name]) for name in observed},
        action=time_major(given["prevact/action"]),
        reward=time_major(observed["reward"]),
        is_first=time_major(observed["is_first"]),
        is_last=time_major(observed["is_last"]),
        is_terminal=time_major(observed["is_terminal"]),
    )
    start = State(jnp.asarray(given["deter0"]), jnp.asarray(given["stoch0"]))
    norm = group(given, "w/retnorm/")
    scales = losses.initial_scales(model)._replace(
        returns=Range(jnp.asarray(norm["lo/value"]), jnp.asarray(norm["hi/value"]))
    )
    compute = jax.jit(jax.value_and_grad(losses.loss, has_aux=True), static_argnums=2)
    (total, outcome), gradients = compute(params, slow, model, batch, start, scales, KEY)
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
        ours = outcome.losses[names.get(name, f"decoder/{name}")]
        if name in ("policy", "value"):
            # Means over the horizon, for each state that imagination starts from.
            ours = jnp.mean(ours, axis=0).reshape(-1, len(value))
        assert_close(time_major(ours), value, 2e-5, name)
    _check_metrics(outcome.metrics, expected, 5e-5)
    posterior_of = _raw_logits(model.config)[1]
    states, tokens = outcome.observed.states, model.encode(params, batch.observation)
    logits = jax.jit(posterior_of.apply)(params["rssm"], states.h, tokens)
    assert_close(time_major(logits), expected["post_logits"], 5e-6, "post_logits")
    assert_close(outcome.scales.returns.low, expected["retnorm_lo"], 5e-5, "low")
    assert_close(outcome.scales.returns.high, expected["retnorm_hi"], 5e-5, "high")
    assert_close(time_major(outcome.observed.states.h), expected["deter"], 5e-6, "h")
    assert_close(time_major(outcome.observed.states.z), expected["stoch"], 0.0, "z")
    actual = named_leaves(gradients)
    wanted = {our_name(name): x for name, x in group(expected, "grad/").items()}
    assert set(actual) == set(wanted)
    for name, value in wanted.items():
        assert_close(actual[name], value, 3e-4, name)


def _check_metrics(found, expected, tolerance):
    """Those that ours are the same of; their others follow from arrays that are compared."""
    theirs = group(expected, "metric/")
    entropies = group(theirs, "ent/")
    wanted = {
        "imagined_reward": theirs["rew"],
        "imagined_continuation": theirs["con"],
        "advantage_stddev": theirs["adv_std"],
        "policy_entropy": sum(entropies.values()),
        "prior_entropy": theirs.get("dyn_ent"),
        "posterior_entropy": theirs.get("rep_ent"),
    }
    for name, value in wanted.items():
        if value is not None:
            assert_close(found[name], np.asarray(value), tolerance, name)


# Its networks.


class _GivenTokens(Model):
    """A model whose parameters contain the encoded observations."""

    def encode(self, params, observation):
        del observation
        return params["tokens"]


def action_spaces(meta):
    """Of each part of an action, of which the authors' code may have several."""
    return {
        name: ActionSpace(kind.get("classes") or kind["dim"], kind["type"] == "discrete")
        for name, kind in sorted(meta["actions"].items())
    }


def embedded_actions(case):
    """All parts as one vector, which is an action of `rssm_model`."""
    given = group(case.given, "action/")
    parts = action_spaces(case.meta).items()
    return jnp.concatenate([space.embed(jnp.asarray(given[name])) for name, space in parts], -1)


def rssm_model(meta, kind=Model):
    size = sum(space.size for space in action_spaces(meta).values())
    observations = {"any": specs.Array((1,), np.float32)}
    config = core_config(meta, unimix=meta["unimix"])
    return kind.make(config, observations, ActionSpace(size, is_discrete=False))


@golden_cases("rssm", sequence=False)
def test_a_step_of_the_model(case):
    given, expected, model = case.given, case.expected, rssm_model(case.meta)
    rssm = _rssm_params(model, case)
    state = State(jnp.asarray(given["deter"]), jnp.asarray(given["stoch"]))
    action = embedded_actions(case)
    np.testing.assert_array_equal(action, expected["action_emb"])
    tokens, is_first = jnp.asarray(given["tokens"]), jnp.asarray(given["reset"])

    @jax.jit
    def observed(rssm, state, tokens):
        seen, _ = observe_step(model, {"rssm": rssm}, state, action, tokens, is_first, KEY)
        prior, posterior = logits(rssm, seen.h, tokens)
        return _weighed(given, seen.h, posterior, prior), (seen, prior, posterior)

    def logits(rssm, h, tokens):
        return tuple(
            part.apply(rssm, *x)
            for part, x in zip(_raw_logits(model.config), ((h,), (h, tokens)), strict=True)
        )

    slopes, (seen, prior, posterior) = jax.grad(observed, argnums=(0, 1, 2), has_aux=True)(
        rssm, state, tokens
    )
    imagined = jax.jit(model.advance)({"rssm": rssm}, state, action)
    dreamt, _ = logits(rssm, imagined, tokens)
    for name, found in {
        "obs_deter": seen.h,
        "obs_post_logits": posterior,
        "obs_prior_logits": prior,
        "img_deter": imagined,
        "img_prior_logits": dreamt,
    }.items():
        assert_close(found, expected[name], 5e-6, name)
    np.testing.assert_array_equal(seen.z, expected["obs_stoch"])
    z = distributions.sample(KEY, model.prior({"rssm": rssm}, imagined))
    np.testing.assert_array_equal(z, expected["img_stoch"])
    _check_slopes(slopes, expected)


@golden_cases("rssm", sequence=True)
def test_a_sequence_of_the_model(case):
    given, expected, model = case.given, case.expected, rssm_model(case.meta, _GivenTokens)
    start = State(jnp.asarray(given["deter"]), jnp.asarray(given["stoch"]))
    actions = time_major(embedded_actions(case))
    nothing = jnp.zeros(given["reset"].T.shape)
    batch = Sequences({}, actions, nothing, time_major(given["reset"]), nothing, nothing)
    prior_of, posterior_of = _raw_logits(model.config)

    @jax.jit
    def observed(rssm, start, tokens):
        params = {"rssm": rssm, "tokens": time_major(tokens)}
        found = observe(model, params, start, batch, KEY).states
        prior = prior_of.apply(rssm, found.h)
        posterior = posterior_of.apply(rssm, found.h, time_major(tokens))
        found, prior, posterior = jax.tree.map(time_major, (found, prior, posterior))
        return _weighed(given, found.h, posterior, prior), (found, prior, posterior)

    rssm, tokens = _rssm_params(model, case), jnp.asarray(given["tokens"])
    slopes, (found, prior, posterior) = jax.grad(observed, argnums=(0, 1, 2), has_aux=True)(
        rssm, start, tokens
    )

    def imagine(state, action):
        h = model.advance({"rssm": rssm}, state, action)
        state = State(h, distributions.sample(KEY, model.prior({"rssm": rssm}, h)))
        return state, state

    _, dreamt = jax.lax.scan(imagine, start, actions)
    dreamt = jax.tree.map(time_major, dreamt)
    for name, value in {
        "obs_deter": found.h,
        "obs_post_logits": posterior,
        "obs_prior_logits": prior,
        "img_deter": dreamt.h,
        "img_prior_logits": prior_of.apply(rssm, dreamt.h),
    }.items():
        assert_close(value, expected[name], 2e-5, name)
    np.testing.assert_array_equal(np.round(found.z), expected["obs_stoch"])
    np.testing.assert_array_equal(np.round(dreamt.z), expected["img_stoch"])
    _check_slopes(slopes, expected)


def _raw_logits(config):
    """Of prior and posterior, before the mixture with the uniform distribution."""
    prior = hk.transform(lambda h: RSSM(config).prior(h))
    posterior = hk.transform(lambda h, tokens: RSSM(config).posterior(h, tokens))
    return hk.without_apply_rng(prior), hk.without_apply_rng(posterior)


def _rssm_params(model, case):
    state = initial_state(model.config, 1)
    shapes = jax.eval_shape(
        hk.transform(lambda *x: RSSM(model.config)(*x)).init,
        jax.random.key(0),
        state,
        jnp.zeros((1, model.actions.size)),
        jnp.zeros((1, case.meta["tokens"])),
    )
    weights = {f"dyn/{name}": x for name, x in group(case.given, "w/").items()}
    return fill({"rssm": shapes}, weights)["rssm"]


def _weighed(given, h, posterior, prior):
    return sum(
        jnp.sum(given[f"cot_{name}"] * x)
        for name, x in {"deter": h, "post": posterior, "prior": prior}.items()
    )


def _check_slopes(slopes, expected):
    rssm, state, tokens = slopes
    assert_close(state.h, expected["gradobs_deter"], 2e-5, "h")
    assert_close(state.z, expected["gradobs_stoch"], 2e-5, "z")
    assert_close(tokens, expected["gradobs_tokens"], 2e-5, "tokens")
    wanted = {our_name(f"dyn/{k}"): x for k, x in group(expected, "gradobs_w/").items()}
    found = named_leaves({"rssm": rssm})
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert_close(found[name], value, 2e-5, name)


def net_config(case, **more):
    meta = case.meta
    names = {"units", "layers", "depth"} & set(meta)
    return DreamerConfig(**{name: meta[name] for name in names}, **more)


def observation_specs(case):
    """Of what the case's networks see or predict."""
    return {
        name: specs.BoundedArray(x["shape"], x["dtype"], 0, x["classes"] - 1)
        if x["classes"]
        else specs.Array(x["shape"], x["dtype"])
        for name, x in case.meta["obs"].items()
    }


@golden_cases("nets", starts="encoder")
def test_encoder(case):
    config, observations = net_config(case), observation_specs(case)
    kinds = observations_of(config, observations)
    encode = hk.without_apply_rng(hk.transform(lambda x: Encoder(config, kinds)(x)))
    observation = {name: jnp.asarray(x) for name, x in group(case.given, "obs/").items()}
    params = jax.eval_shape(encode.init, jax.random.key(0), observation)
    weights = {f"enc/{name}": x for name, x in group(case.given, "w/").items()}
    params = fill({"encoder": params}, weights)["encoder"]
    assert_close(jax.jit(encode.apply)(params, observation), case.expected["tokens"], 1e-5)


@golden_cases("nets", starts="decoder")
def test_decoder(case):
    h, z = jnp.asarray(case.given["deter"]), jnp.asarray(case.given["stoch"])
    z = z.reshape(*z.shape[:-2], -1)
    config, observations = net_config(case, blocks=case.meta["bspace"]), observation_specs(case)
    kinds = observations_of(config, observations)
    decode = hk.without_apply_rng(hk.transform(lambda h, z: Decoder(config, kinds)(h, z)))
    params = jax.eval_shape(decode.init, jax.random.key(0), h, z)
    weights = {f"dec/{name}": x for name, x in group(case.given, "w/").items()}
    params = fill({"decoder": params}, weights)["decoder"]
    found = jax.jit(decode.apply)(params, h, z)
    target = group(case.given, "target/")
    target = {name: jnp.asarray(x) for name, x in target.items()}
    cost = {name: kind.loss(found[name], target[name]) for name, kind in kinds.items()}
    for name, predicted in group(case.expected, "pred/").items():
        if observations[name].dtype == np.int32:
            np.testing.assert_array_equal(jnp.argmax(found[name], axis=-1), predicted)
        else:
            assert_close(found[name], predicted, 1e-5, name)
        assert_close(cost[name], case.expected[f"loss/{name}"], 1e-5, name)


@golden_cases("nets", starts="heads")
def test_heads(case):
    given, expected, meta = case.given, case.expected, case.meta
    features = jnp.asarray(given["feat"])
    config = DreamerConfig(units=meta["units"])
    weights = group(given, "w/")

    def outputs(theirs, layers, sizes):
        head = hk.without_apply_rng(
            hk.transform(lambda x: MLP((config.units,) * layers, sizes, "rms", name="head")(x))
        )
        shapes = jax.eval_shape(head.init, jax.random.key(0), features)
        ours = our_name(f"{theirs}/head/any/bias").partition("/")[0]
        shapes = {name.replace("head", ours, 1): x for name, x in shapes.items()}
        part = {k: x for k, x in weights.items() if k.startswith(f"{theirs}/")}
        params = fill({ours: shapes}, part)[ours]
        return head.apply({k.replace(ours, "head", 1): x for k, x in params.items()}, features)

    regression = distributions.regression_of(config)
    reward = outputs("rew", config.head_layers, {"logits": 255})["logits"]
    goes_on = outputs("con", config.head_layers, {"logit": 1})["logit"][:, 0]
    value = outputs("val", config.layers, {"logits": 255})["logits"]
    discrete = outputs("pold", config.layers, {"action_logits": meta["classes"]})
    discrete = distributions.Discrete(jax.nn.log_softmax(discrete["action_logits"]))
    size = meta["cont_dim"]
    moments = outputs("polc", config.layers, {"action_mean": size, "action_stddev": size})
    continuous = distributions.Continuous.of_outputs(*moments.values())
    for name, found in {
        "rew_logits": reward,
        "rew_pred": regression.mean(reward),
        "rew_loss": regression.loss(reward, jnp.asarray(given["rew_target"])),
        "con_logit": goes_on,
        "con_prob1": jax.nn.sigmoid(goes_on),
        "con_loss": optax.sigmoid_binary_cross_entropy(goes_on, jnp.asarray(given["con_target"])),
        "val_logits": value,
        "val_pred": regression.mean(value),
        "pold_entropy": discrete.entropy(),
        "pold_logp": discrete.log_prob(jnp.asarray(given["act_disc"])),
        "polc_mean": continuous.mean,
        "polc_stddev": continuous.stddev,
        "polc_logp": continuous.log_prob(jnp.asarray(given["act_cont"])),
        "polc_entropy": continuous.entropy(),
    }.items():
        assert_close(found, expected[name], 1e-5, name)
    logits = jax.nn.log_softmax(expected["pold_logits"])
    assert_close(discrete.log_probabilities, np.asarray(logits), 1e-5, "pold_logits")


# Actor and critic, of given predictions.


class _Given(distributions.TwoHot):
    """A regression where rewards are given as numbers."""

    def mean(self, logits):
        return logits[..., 0] if logits.shape[-1] == 1 else super().mean(logits)


class _Policies(dict[str, distributions.Policy]):
    """Policies of an action's parts, by name, as one."""

    def log_prob(self, action):
        return sum(policy.log_prob(action[name]) for name, policy in self.items())

    def entropy(self):
        return sum(policy.entropy() for policy in self.values())

    def randomness(self):
        return sum(policy.randomness() for policy in self.values()) / len(self)


class _OfPredictions(Model):
    """A model whose networks say what the case gives, whatever they read."""

    def reward(self, params, features):
        return params["reward"][..., None]

    def continuation(self, params, features):
        return params["continuation"]

    def critic(self, params, features):
        return params["critic"]

    def policy(self, params, features) -> Any:
        outputs, found = params["actor"], _Policies()
        for name in sorted({x.partition("/")[2] for x in outputs}):
            if f"policy_logits/{name}" in outputs:
                logits = outputs[f"policy_logits/{name}"]
                found[name] = distributions.Discrete(jax.nn.log_softmax(logits))
            else:
                moments = (outputs[f"policy_{x}/{name}"] for x in ("mean", "stddev"))
                found[name] = distributions.Continuous.of_outputs(*moments)
        return found


def model_of_predictions():
    observations = {"any": specs.Array((1,), np.float32)}
    model = _OfPredictions.make(DreamerConfig(), observations, ActionSpace(2, True))
    return dataclasses.replace(model, regression=_Given(distributions.exponential_bins()))


@golden_cases("actor_critic", form="imag")
def test_actor_and_critic(case):
    given = case.given
    # Symmetric probabilities mean exactly nothing in ours, as in theirs without jit.
    expected = case.eager if case.name.endswith("edge") else case.expected
    model = model_of_predictions()
    probability = time_major(given["con"]).astype(jnp.float32)
    params = {
        "reward": time_major(given["rew"]),
        "continuation": jnp.log(probability) - jnp.log1p(-probability),
        "critic": time_major(given["value_logits"]),
        "actor": {k: time_major(x) for k, x in given.items() if k.startswith("policy_")},
    }
    chosen: Any = {name: time_major(x) for name, x in group(given, "action/").items()}
    shape = params["reward"].shape
    states = State(jnp.zeros((*shape, 1)), jnp.zeros((*shape, 1, 1)))
    imagined = Imagined(states, chosen)
    low, high = jnp.asarray(given["retnorm_lo"]), jnp.asarray(given["retnorm_hi"])
    scales = losses.initial_scales(model)._replace(returns=Range(low, high))

    def total(params, slow):
        alive = jnp.ones(shape[1])
        found, *more = losses.actor_critic_losses(model, params, slow, imagined, alive, scales)
        return jnp.mean(found["actor"]) + jnp.mean(found["critic"]), (found, *more)

    slow = time_major(given["slow_logits"])
    (slopes, of_slow), (found, returns, after, metrics) = jax.jit(
        jax.grad(total, argnums=(0, 1), has_aux=True)
    )(params, slow)
    wide = 0.5 if case.name.endswith("edge") else 0.0
    wanted = expected["ret"]
    allowed = 1e-5 * np.max(np.abs(wanted)) + wide
    np.testing.assert_allclose(time_major(returns), wanted, rtol=0, atol=allowed)
    for name, kind in (("actor", "policy"), ("critic", "value")):
        assert_close(time_major(found[name]), expected[f"{kind}_loss"], 1e-5, name)
    for name in ("value", "slow"):
        value = jax.jit(model.regression.mean)(given[f"{name}_logits"])
        wanted = expected[f"{name}_pred"]
        allowed = 1e-5 * np.max(np.abs(wanted)) + wide
        np.testing.assert_allclose(value, wanted, rtol=0, atol=allowed)
    weight = jnp.cumprod(jnp.asarray(given["con"]), axis=1)
    assert_close(weight, expected["weight"], 1e-5, "weight")
    for name, policy in model.policy(params, states.h).items():
        entropy, log_prob = policy.entropy(), policy.log_prob(chosen[name])
        assert_close(time_major(entropy), expected[f"entropy/{name}"], 1e-5, name)
        assert_close(time_major(log_prob), expected[f"logp/{name}"], 1e-5, name)
    assert_close(after.returns.low, expected["retnorm_lo"], 1e-5, "low")
    assert_close(after.returns.high, expected["retnorm_hi"], 1e-5 + 1e-4 * bool(wide), "high")
    assert_close(metrics["imagined_reward"], expected["metric/rew"], 1e-5, "reward")
    _check_metrics(metrics, expected, 5e-5)
    critic = time_major(slopes["critic"])
    assert_close(critic, expected["grad_value_logits"], 2e-5, "critic's gradient")
    for name, slope in slopes["actor"].items():
        assert_close(time_major(slope), expected[f"grad_{name}"], 2e-5, name)
    for untouched in (slopes["reward"], slopes["continuation"], of_slow):
        assert not np.any(untouched)


@golden_cases("actor_critic", form="replay")
def test_critic_on_replayed_states(case):
    given, expected = case.given, case.expected
    model = model_of_predictions()
    rows = {name: time_major(given[name]) for name in ("rew", "is_last", "is_terminal", "boot")}
    shape = rows["rew"].shape
    states = State(jnp.zeros((*shape, 1)), jnp.zeros((*shape, 1, 1)))

    def total(logits, slow, reward, bootstrap):
        first = jnp.zeros(shape, bool)
        batch = Sequences({}, first, reward, first, rows["is_last"], rows["is_terminal"])
        found = losses.critic_replay_loss(model, {"critic": logits}, slow, batch, states, bootstrap)
        return jnp.mean(found), found

    logits, slow = (time_major(given[f"{name}_logits"]) for name in ("value", "slow"))
    (critic, *others), found = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3), has_aux=True))(
        logits, slow, rows["rew"], rows["boot"]
    )
    alive, inside = (1.0 - rows[name].astype(float) for name in ("is_terminal", "is_last"))
    config = model.config
    returns = lambda_returns(
        rows["rew"], alive * config.discount, inside * losses.LAMBDA, rows["boot"]
    )
    assert_close(time_major(returns), expected["ret"], 1e-5)
    assert_close(time_major(found), expected["repval_loss"], 1e-5)
    assert_close(time_major(critic), expected["grad_value_logits"], 2e-5)
    for slope in others:
        assert not np.any(slope)


# Its parts.


@golden_cases("twohot")
def test_two_hot(case):
    given, expected = case.given, case.expected
    bins = case.meta["bins"]
    ours = distributions.exponential_bins()
    if bins == len(ours):
        np.testing.assert_allclose(ours, expected["bins"], rtol=1e-5)
    head = distributions.TwoHot(ours if bins == len(ours) else np.asarray(expected["bins"]))
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
    np.testing.assert_allclose(jax.nn.softmax(logits), expected["probs"], rtol=1e-5, atol=1e-30)
    logs, powers = (distributions.symlog, "symlog"), (distributions.symexp, "symexp")
    for (function, name), rtol in ((logs, 1e-6), (powers, 1e-5)):
        found = function(jnp.asarray(given[f"x_{name}"]))
        np.testing.assert_allclose(found, expected[name], rtol=rtol)
    through = distributions.symexp(distributions.symlog(jnp.asarray(given["x_symlog"])))
    np.testing.assert_allclose(through, expected["roundtrip"], rtol=1e-5)


def test_symmetric_probabilities_mean_nothing():
    """Exactly, also compiled, where the authors' code is off by 0.17."""
    head = distributions.regression_of(DreamerConfig())
    assert float(jax.jit(head.mean)(jnp.zeros(255))) == 0.0


@golden_cases("lambda_return")
def test_lambda_returns(case):
    given, meta = case.given, case.meta
    reward = time_major(given["rew"])
    if meta["form"] == "imag":
        discount, mixing = time_major(given["con"]), jnp.full_like(reward, meta["lam"])
        bootstrap = time_major(given["value"])
    else:
        discount = meta["disc"] * (1.0 - time_major(given["is_terminal"]).astype(float))
        mixing = meta["lam"] * (1.0 - time_major(given["is_last"]).astype(float))
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
        "post_mode": distributions.sample(KEY, mixed(post)),
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
    names_of = {
        "lr": "learning_rate",
        "warmup": "warmup",
        "agc": "clipping",
        "eps": "eps",
        "beta1": "b1",
        "beta2": "b2",
    }
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
    found: Any = state
    nu, mu = found[1].nu, found[2].ema
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
        low, high = jnp.percentile(jnp.asarray(case.given[f"x{step}"]), jnp.array([5.0, 95.0]))
        np.testing.assert_allclose(low, case.expected["perc_lo"][step], rtol=1e-5)
        np.testing.assert_allclose(high, case.expected["perc_hi"][step], rtol=1e-5)
        scale = jnp.maximum(1.0, found.size)
        np.testing.assert_allclose(scale, case.expected["scale"][step], rtol=1e-5)


def test_every_case_has_its_test():
    assert sorted(compared) == sorted(every_case())
