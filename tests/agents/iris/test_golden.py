"""Every part against the authors' code, at the tolerances of the vectors' FORMAT.md."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.iris import tokenizer
from agents.iris.actor_critic import Output
from agents.iris.losses import (
    actor_critic_losses,
    commitment_loss,
    lambda_returns,
    world_model_losses,
)
from agents.iris.model import ACTOR_CRITIC, CODEBOOK, DECODER, ENCODER, imagine
from tests.agents.common import take_modes
from tests.agents.iris.golden import golden_cases, model_of, our_name


@pytest.fixture
def case_in_precision(case):
    """The case, in its precision."""
    with case.computing():
        yield case


def channels_last(x):
    return jnp.moveaxis(jnp.asarray(x), -3, -1)


def block_means(x):
    """The means of 4x4 pixels, channels first."""
    *batch, height, width, channels = x.shape
    x = np.asarray(x).reshape(*batch, height // 4, 4, width // 4, 4, channels)
    return np.moveaxis(x.mean(axis=(-4, -2)), -1, -3)


def test_names():
    assert our_name("enc/L0/shrink/w") == "encoder/encoder/halving1/w"
    assert our_name("blk1/k/b") == "world_model/transformer/block1_attention/key/b"
    assert our_name("dec/mid/att/gn/g") == "decoder/decoder/middle_attention/norm/scale"


@golden_cases("tokenizer")
def test_tokenizer(case_in_precision):
    case = case_in_precision
    model = model_of(case)
    params = case.params(model)
    frames = channels_last(case.given("frames")).astype(jnp.result_type(float)) / 255.0

    @jax.jit
    def compute(params):
        def loss(trained):
            params_ = params | trained
            features = model.encode(params_, frames)
            found = tokenizer.quantize(features, params_[CODEBOOK])
            decoded = model.decode(params_, found.straight_through)
            commit = commitment_loss(features, found.codes, 1.0)
            reconstruction = jnp.mean(jnp.abs(2.0 * frames - 1.0 - decoded))
            return commit + reconstruction, (features, found, decoded, commit, reconstruction)

        trained = {name: params[name] for name in (ENCODER, DECODER, CODEBOOK)}
        (total, found), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        return total, found, gradients, model.frames(params, found[1].tokens)

    total, (features, found, decoded, commit, reconstruction), gradients, back = compute(params)
    expected, side = case.expected, model.image_size // model.config.downsampling

    def image(x):
        return np.moveaxis(np.asarray(x).reshape(len(x), side, side, -1), -1, 1)

    case.close(image(features), expected["z"], 1e-4, "z")
    np.testing.assert_array_equal(found.tokens, expected["tokens"])
    case.close(image(found.codes), expected["zq"], 1e-4, "zq")
    case.close(image(found.straight_through), expected["straight"], 1e-4, "straight")
    decoded = np.moveaxis(np.asarray(decoded), -1, 1)
    case.close(decoded, expected["recon"], 1e-4, "recon")
    case.close(block_means(back), expected["frames_back16"], 1e-4, "frames_back16")
    for name, value in {"commit": commit, "recon": reconstruction, "total": total}.items():
        case.close(value, expected[f"loss_{name}"], 1e-4, name)
    case.check_gradients(gradients, 2e-3)


@golden_cases("world_model")
def test_world_model(case_in_precision):
    case = case_in_precision
    model = model_of(case)
    params = case.params(model)
    names = ("frame_tokens", "actions", "rewards", "ends", "mask")
    given = {name: case.given(name) for name in names}

    @jax.jit
    def compute(params):
        def loss(params):
            predicted = model.predict(params, given["frame_tokens"], given["actions"], None)
            found = world_model_losses(
                predicted,
                given["frame_tokens"],
                given["rewards"],
                given["ends"].astype(bool),
                given["mask"],
            )
            return sum(found.values()), (predicted, found)

        return jax.value_and_grad(loss, has_aux=True)(params)

    (total, (predicted, losses)), gradients = compute(params)
    expected = case.expected
    frame = np.asarray(predicted.next_token).reshape(expected["logits_frame"].shape)
    case.close(frame, expected["logits_frame"], 2e-5, "logits_frame")
    case.close(predicted.reward, expected["logits_reward"], 2e-5, "logits_reward")
    case.close(predicted.end, expected["logits_end"], 2e-5, "logits_end")
    losses["frame"] = losses.pop("next_token")
    for name, value in dict(losses, total=total).items():
        case.close(value, expected[f"loss_{name}"], 2e-5, name)
    case.check_gradients(gradients, 5e-5)


@golden_cases("kv_cache")
def test_cache(case_in_precision):
    case = case_in_precision
    model = model_of(case)
    params = case.params(model)
    num_tokens, capacity = (
        model.tokens_per_frame,
        case.config["max_steps"] * (model.tokens_per_frame + 1),
    )
    feed = jax.jit(model.feed, static_argnums=1)
    head = jax.jit(model.head, static_argnums=1)
    tokens = case.given("first_tokens")
    empty = model.empty_cache(len(tokens))
    _, cache = feed(params, "tokens", tokens, empty)
    rows = []
    for action in case.given("actions").T:
        before = int(cache.length)
        refreshed = before + num_tokens + 1 > capacity
        if refreshed:
            _, cache = feed(params, "tokens", tokens, empty)
        hidden, cache = feed(params, "actions", action[:, None], cache)
        of_step, logits, chosen = [hidden[:, 0]], [], []
        for _ in range(num_tokens):
            logits.append(head(params, "next_token", of_step[-1]))
            chosen.append(jnp.argmax(logits[-1], axis=-1))
            hidden, cache = feed(params, "tokens", chosen[-1][:, None], cache)
            of_step.append(hidden[:, 0])
        tokens = jnp.stack(chosen, axis=1)
        reward, end = (head(params, name, of_step[0]) for name in ("reward", "end"))
        rows.append(
            {
                "logits_frame": jnp.stack(logits, axis=1),
                "logits_reward": reward,
                "logits_end": end,
                "hidden": jnp.stack(of_step, axis=1),
                "tokens": tokens,
                "reward": jnp.argmax(reward, axis=-1) - 1,
                "end": jnp.argmax(end, axis=-1) == 1,
            }
        )
        at = len(rows) - 1
        assert before == case.expected["cache_before"][at]
        assert refreshed == case.expected["refreshed"][at]
        assert int(cache.length) == case.expected["cache_after"][at]
    for name in rows[0]:
        found = np.stack([row[name] for row in rows], axis=1)
        if found.dtype.kind == "f":
            case.close(found, case.expected[name], 2e-5, name)
        else:
            np.testing.assert_array_equal(found, case.expected[name])


@golden_cases("kv_cache")
def test_cache_in_chunks_equals_one_pass(case_in_precision):
    case = case_in_precision
    model = model_of(case)
    params = case.params(model)
    sequence = case.given("chunk_sequence")
    # One pass: the same Transformer without a cache; all numbers are of frame tokens' table or the
    # action's, by place.
    steps = sequence.reshape(len(sequence), -1, model.tokens_per_frame + 1)
    cache = model.empty_cache(len(sequence))
    feed = jax.jit(model.feed, static_argnums=1)
    cuts = [int(x) for x in case.given("chunk_cuts")]
    if cuts[0] != 0:
        cuts = [0, *cuts]
    if cuts[-1] != sequence.shape[1]:
        cuts.append(sequence.shape[1])
    pieces = []
    for begin, end in itertools.pairwise(cuts):
        at = begin
        while at < end:  # A piece of one table at a time.
            place = at % (model.tokens_per_frame + 1)
            if place == model.tokens_per_frame:
                hidden, cache = feed(params, "actions", sequence[:, at : at + 1], cache)
                at += 1
            else:
                until = min(end, at + model.tokens_per_frame - place)
                hidden, cache = feed(params, "tokens", sequence[:, at:until], cache)
                at = until
            pieces.append(hidden)
    found = np.concatenate(pieces, axis=1)
    case.close(found, case.expected["chunk_hidden"], 2e-5, "chunk_hidden")
    case.close(found, case.expected["chunk_full_hidden"], 2e-5, "chunk_full_hidden")
    predict = jax.jit(functools.partial(model.predict, key=None))
    predicted = predict(params, steps[:, :, :-1], steps[:, :, -1])
    at_actions = found.reshape(*steps.shape, -1)[:, :, -1]
    case.close(
        model.head(params, "reward", jnp.asarray(at_actions)), np.asarray(predicted.reward), 2e-5
    )


@golden_cases("imagination", in_float64=True)
def test_imagination(case_in_precision, monkeypatch):
    case = case_in_precision
    model = model_of(case)
    params = case.params(model)
    take_modes(monkeypatch)
    frames = channels_last(case.given("frames")).astype(jnp.result_type(float)) / 255.0
    counts = case.given("mask")
    gamma, lambda_, cost = (case.given(x) for x in ("gamma", "lambda", "entropy_weight"))

    @jax.jit
    def compute(params):
        flat = frames.reshape(-1, *frames.shape[2:])
        tokens = model.tokens(params, flat)
        seen = model.frames(params, tokens).reshape(frames.shape).swapaxes(0, 1)
        tokens = tokens.reshape(*frames.shape[:2], -1)[:, -1]
        state = model.burn_in(params, seen[:-1], counts.T[:-1])
        horizon = case.config["horizon"]
        found = imagine(model, params, tokens, state, jax.random.key(0), horizon)

        def loss(trained):
            output = model.act_along(params | trained, found.frames, state)
            returns = lambda_returns(found.reward, found.end, output.value, gamma, lambda_)
            everywhere = jnp.ones_like(found.end)
            parts = actor_critic_losses(output, found.action, returns, everywhere, cost)
            return sum(parts.values()), (output, parts)

        trained = {ACTOR_CRITIC: params[ACTOR_CRITIC]}
        return state, found, jax.value_and_grad(loss, has_aux=True)(trained)

    state, found, ((total, (output, parts)), gradients) = compute(params)
    expected = case.expected

    def batch_major(x):
        return np.asarray(x).swapaxes(0, 1)

    case.close(state.hidden, expected["h_after_burnin"], 5e-4, "h")
    case.close(state.cell, expected["c_after_burnin"], 5e-4, "c")
    for name, value in {
        "tokens": found.tokens,
        "actions": found.action,
        "rewards": found.reward,
        "ends": found.end,
    }.items():
        np.testing.assert_array_equal(batch_major(value), expected[name], name)
    case.close(block_means(batch_major(found.frames)), expected["coarse"], 5e-4, "coarse")
    pictures = np.moveaxis(np.floor(255.0 * batch_major(found.frames)), -1, 2)
    assert np.max(np.abs(pictures - expected["frames8"])) <= 1
    case.close(batch_major(output.logits), expected["logits_policy"], 5e-4, "logits")
    case.close(batch_major(output.value), expected["values"], 5e-4, "values")
    losses = dict(parts, total=total)
    for name, value in losses.items():
        case.close(value, expected[f"loss_{name}"], 5e-4, name)
    # In float32 another order of sums flips maxima of the pooling, and with them gradients.
    flipping = "cv" if case.precision == "float32" else "nothing"
    case.check_gradients(gradients, 1e-3, starts="ac/", leave_out=flipping)


@golden_cases("returns_losses")
def test_returns_and_losses(case_in_precision):
    case = case_in_precision
    logits, values = (case.given(x).swapaxes(0, 1) for x in ("logits", "values"))
    action, reward, end = (case.given(x).swapaxes(0, 1) for x in ("actions", "rewards", "ends"))
    gamma, lambda_, cost = (case.given(x) for x in ("gamma", "lambda", "entropy_weight"))
    counts = jnp.ones_like(end)

    def loss(logits, values, cost):
        returns = lambda_returns(reward, end, values, gamma, lambda_)
        parts = actor_critic_losses(Output(logits, values), action, returns, counts, cost)
        return sum(parts.values()), (parts, returns)

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (total, (parts, returns)), (of_logits, of_values) = gradient(logits, values, cost)
    without_entropy = gradient(logits, values, jnp.zeros(()))[1][0]
    expected = case.expected
    for name, value in {
        "lambda_returns": returns,
        "grad_logits": of_logits,
        "grad_values": of_values,
        "grad_logits_policy_only": without_entropy,
    }.items():
        case.close(np.asarray(value).swapaxes(0, 1), expected[name], 2e-6, name)
    for name, value in dict(parts, total=total).items():
        case.close(value, expected[f"loss_{name}"], 2e-6, name)
