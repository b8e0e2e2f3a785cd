"""Every part against the authors' code, at the tolerances of the vectors' FORMAT.md."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from agents.dreamer import losses
from agents.dreamer.config import DreamerConfig
from agents.dreamer.losses import Batch
from agents.dreamer.model import make_model
from agents.dreamer.networks import ActionPart
from agents.dreamer.returns import Range
from agents.dreamer.rssm import State
from tests.agents.dreamer.golden import (
    assert_close,
    fill,
    golden_cases,
    named_leaves,
    our_name,
    part,
)


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
        for name, x in part(case.given, "obs").items()
        if name not in ("reward", "is_first", "is_last", "is_terminal")
    }
    actions = {
        name: ActionPart(size, kind == "discrete") for name, (kind, size) in meta["actions"].items()
    }
    model = make_model(config, observations, actions)
    weights = part(case.given, "w")
    slow = {f"val/{name}": x for name, x in part(weights, "slowval").items()}
    weights = {name: x for name, x in weights.items() if not name.startswith(("slowval", "ret"))}
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = fill(shapes, weights)
    return model, params, fill({"critic": shapes["critic"]}, slow)["critic"]


@golden_cases("agent")
def test_the_whole_loss(case):
    model, params, slow = agent_model(case)
    given = case.given
    observed = part(given, "obs")
    batch = Batch(
        observation={name: time_major(observed[name]) for name in observed},
        action={name: time_major(x) for name, x in part(given, "prevact").items()},
        reward=time_major(observed["reward"]),
        is_first=time_major(observed["is_first"]),
        is_last=time_major(observed["is_last"]),
        is_terminal=time_major(observed["is_terminal"]),
    )
    start = State(jnp.asarray(given["deter0"]), jnp.asarray(given["stoch0"]))
    norm = part(given, "w/retnorm")
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
    for name, value in part(expected, "losses").items():
        ours = outcome.losses[names.get(name, f"/{name}")]
        assert_close(ours, np.mean(value), 2e-5, name)
    assert_close(outcome.scales.returns.low, expected["retnorm_lo"], 5e-5, "low")
    assert_close(outcome.scales.returns.high, expected["retnorm_hi"], 5e-5, "high")
    assert_close(time_major(outcome.observed.states.h), expected["deter"], 5e-6, "h")
    assert_close(time_major(outcome.observed.states.z), expected["stoch"], 0.0, "z")
    actual = named_leaves(gradients)
    wanted = {our_name(name): x for name, x in part(expected, "grad").items()}
    assert set(actual) == set(wanted)
    for name, value in wanted.items():
        assert_close(actual[name], value, 3e-4, name)
