"""What a program computes, counted, against what is known and what XLA counts without loops."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgent, RuleAgentConfig, to_trajectory
from benchmarks.scale import Product, count, flop, peak_bytes
from disco import MetaNetworkSizes
from disco_common.compilation import supported_options
from training import collection


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def xla_flop(function, *arguments) -> float:
    fast = supported_options(xla_backend_optimization_level=0)  # The program is the same.
    cost = jax.jit(function).lower(*arguments).compile(fast).cost_analysis()
    assert cost is not None
    return cost["flops"]


def product(x, y):
    return x @ y


X, Y, PRODUCT = shape(3, 4), shape(4, 5), 2 * 3 * 4 * 5
SQUARE, SQUARED = shape(7, 7), 2 * 7**3


def test_a_product():
    work = count(product, X, Y)
    assert work == {Product(PRODUCT, 4 * (12 + 20 + 15), "float32"): 1}
    assert flop(count(jax.vmap(product), shape(6, 3, 4), shape(6, 4, 5))) == 6 * PRODUCT
    assert flop(work + work) == 2 * PRODUCT


def convolve(image, kernel, **how):
    return jax.lax.conv_general_dilated(
        image, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **how
    )


@pytest.mark.parametrize(
    "how",
    [
        {"window_strides": (1, 1), "padding": "VALID"},
        {"window_strides": (1, 1), "padding": "SAME"},
        {"window_strides": (2, 3), "padding": "SAME"},
        {"window_strides": (1, 1), "padding": "SAME", "rhs_dilation": (2, 2)},
        {"window_strides": (2, 1), "padding": "VALID", "feature_group_count": 2},
    ],
)
def test_a_convolution_and_its_gradients(how):
    groups = how.get("feature_group_count", 1)
    image, kernel = shape(2, 9, 8, 4), shape(3, 3, 4 // groups, 6)
    forward = flop(count(lambda i, k: convolve(i, k, **how), image, kernel))
    if how == {"window_strides": (1, 1), "padding": "VALID"}:
        assert forward == 2 * (2 * 7 * 6 * 6) * (3 * 3 * 4)

    def loss(image, kernel):
        return jnp.sum(convolve(image, kernel, **how))

    # Each gradient takes as many multiplications as the convolution.
    assert flop(count(jax.grad(loss, argnums=(0, 1)), image, kernel)) == 2 * forward


def test_a_loop_counts_as_often_as_it_runs():
    def power(x):
        return jax.lax.scan(lambda y, _: (y @ x, None), x, length=11)[0]

    assert flop(count(power, SQUARE)) == 11 * SQUARED
    assert flop(count(jax.grad(lambda x: jnp.sum(power(x))), SQUARE)) == 3 * 11 * SQUARED
    with pytest.raises(ValueError, match="while loop"):
        count(lambda x: jax.lax.while_loop(lambda y: y[0, 0] < 9, lambda y: y @ x, x), SQUARE)


def test_what_is_computed_again_on_the_way_back():
    def loss(x):
        return jnp.sum(jnp.tanh(x @ x))

    # Forward; on the way back, with respect to both factors.
    assert flop(count(jax.grad(loss), SQUARE)) == 3 * SQUARED

    def chain(x):
        return jnp.sum(jax.checkpoint(lambda y: jnp.tanh(jnp.tanh(y @ x) @ x))(x))

    assert flop(count(jax.value_and_grad(chain), SQUARE)) == (2 + 2 + 4) * SQUARED
    # Without the value, nothing is computed on the way forward.
    assert flop(count(jax.grad(chain), SQUARE)) == (2 + 4) * SQUARED


def test_branches_calls_and_custom_derivatives():
    assert flop(count(lambda c, x: jax.lax.cond(c, lambda: x, lambda: x @ x), True, SQUARE)) == (
        SQUARED
    )
    assert flop(count(jax.jit(product), X, Y)) == PRODUCT

    @jax.custom_vjp
    def twice(x):
        return (x @ x) @ x

    twice.defvjp(lambda x: (twice(x), x), lambda x, g: (g @ x,))
    assert flop(count(twice, SQUARE)) == 2 * SQUARED
    assert flop(count(jax.grad(lambda x: jnp.sum(twice(x))), SQUARE)) == SQUARED


def test_memory_that_is_held_at_once():
    size = 4 * 100

    def chain(x):
        return jnp.sum(jnp.cos(jnp.sin(x)))

    assert peak_bytes(chain, shape(100)) == 2 * size  # The sine, and its cosine.

    def held(x):
        y, z = jnp.sin(x), jnp.cos(x)
        return jnp.sum(y * z)

    assert peak_bytes(held, shape(100)) == 3 * size

    def loop(x):
        return jax.lax.scan(lambda y, _: (jnp.sin(jnp.cos(y)), y), x, length=5)[1][-1]

    assert peak_bytes(loop, shape(100)) >= 5 * size


def test_an_agents_update_as_xla_counts_it():
    # With trajectories of one step there are no loops.
    rule = disco.DiscoveredRule.create(
        jax.random.key(0), MetaNetworkSizes(prediction=20), num_bins=21
    )
    dynamics = environments.make("catch/8x8").dynamics
    agent = RuleAgent.create(
        RuleAgentConfig(
            network=NetworkConfig(torso=(96,), model=48, head=(48,)),
            num_environments=64,
            batch_size=64,
            unroll_length=1,
            replay_ratio=0.0,
        ),
        dynamics,
        rule,
    )
    learner = jax.eval_shape(agent.init, jax.random.key(0))
    batch = to_trajectory(collection.example(agent, dynamics, 64, 1))

    def learn(rule, learner, batch):
        return dataclasses.replace(agent, rule=rule).learn(learner, batch)

    work = count(learn, rule, learner, batch)
    expected = xla_flop(learn, rule, learner, batch)
    assert 0.9 * expected < flop(work) < expected
