"""Convolutions with derivatives of our own: the numbers of Haiku's, at any order."""

import re

import haiku as hk
import jax
import jax.numpy as jnp
import pytest

from agents import convolutions
from agents.convolutions import Conv2D
from tests.disco.common import float64, relative_difference


def nets(kernel):
    """Two layers of ours, and the same of Haiku's."""

    def make(layer):
        return hk.without_apply_rng(
            hk.transform(
                lambda x: layer(3, kernel, name="b")(jax.nn.relu(layer(5, kernel, name="a")(x)))
            )
        )

    return make(Conv2D), make(hk.Conv2D)


@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_is_haikus_with_its_derivatives(kernel):
    ours, theirs = nets(kernel)
    with float64():
        images = jax.random.normal(jax.random.key(0), (2, 6, 7, 4))
        params = jax.jit(ours.init)(jax.random.key(1), images)
        assert relative_difference(params, jax.jit(theirs.init)(jax.random.key(1), images)) == 0
        directions = jax.tree.map(jnp.cos, (params, images))

        def numbers(net):
            """Outputs, gradients, and gradients of a gradient's square and of a derivative."""

            def loss(params, images):
                return jnp.sum(jnp.sin(net.apply(params, images)))

            gradient = jax.grad(loss, argnums=(0, 1))

            def size(params, images):
                return sum(jnp.sum(x**2) for x in jax.tree.leaves(gradient(params, images)))

            def along(params, images):
                return jax.jvp(loss, (params, images), directions)[1]

            return [
                jax.jit(function)(params, images)
                for function in (
                    net.apply,
                    gradient,
                    jax.grad(size, argnums=(0, 1)),
                    jax.grad(along, argnums=(0, 1)),
                )
            ]

        assert relative_difference(numbers(ours), numbers(theirs)) < 1e-12


def test_several_agents_at_once():
    ours, theirs = nets(3)
    images = jax.random.normal(jax.random.key(0), (2, 4, 6, 7, 4))
    params = jax.vmap(ours.init)(jax.random.split(jax.random.key(1)), images)

    def gradients(net):
        def loss(params, images):
            return jnp.sum(net.apply(params, images) ** 2)

        return jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1))))(params, images)

    assert relative_difference(gradients(ours), gradients(theirs)) < 1e-5


def test_derivatives_in_a_loop_are_in_the_fast_layout_or_products():
    ours, _ = nets(3)
    images = jnp.zeros((2, 6, 7, 4))
    params = ours.init(jax.random.key(1), images)

    @jax.jit
    def descend(params):
        def step(params, _):
            gradients = jax.grad(lambda p: jnp.sum(ours.apply(p, images) ** 2))(params)
            return jax.tree.map(jnp.subtract, params, gradients), None

        return jax.lax.scan(step, params, length=3)[0]

    program = descend.lower(params).compile().as_text()
    assert program is not None
    layouts = re.findall(r"convolution\(.*dim_labels=(\S+?),?\s", program)
    # Two forward, one to the images between; those to the kernels are matrix products.
    assert len(layouts) == 3
    assert set(layouts) == {"b01f_01io->b01f"}


def test_without_jaxs_extensions_derivatives_are_jaxs_own(monkeypatch, caplog):
    monkeypatch.delattr("jax.extend.core.Primitive")
    assert convolutions._make_primitive() is None
    assert "release of JAX does not let others define theirs" in caplog.text

    monkeypatch.setattr(convolutions, "convolution", None)
    ours, theirs = nets(3)
    images = jax.random.normal(jax.random.key(0), (2, 6, 7, 4))
    params = ours.init(jax.random.key(1), images)

    def slopes(net):
        return jax.grad(lambda p: jnp.sum(jnp.sin(net.apply(p, images))))(params)

    assert relative_difference(slopes(ours), slopes(theirs)) < 1e-5


def after_enlarging(x, kernel):
    x = x.repeat(2, axis=1).repeat(2, axis=2)
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=AXES)


def of_stride_2(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=AXES)


AXES = ("NHWC", "HWIO", "NHWC")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (convolutions.convolve_enlarged, after_enlarging),
        (convolutions.convolve_halving, of_stride_2),
    ],
)
def test_3x3_convolutions_that_change_the_size(ours, theirs):
    with float64():
        x = jax.random.normal(jax.random.key(0), (2, 4, 6, 3))
        kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 5))

        def numbers(convolve):
            loss = lambda *arguments: jnp.sum(jnp.sin(convolve(*arguments)))  # noqa: E731
            return jax.jit(lambda *x: (convolve(*x), jax.grad(loss, argnums=(0, 1))(*x)))(x, kernel)

        assert relative_difference(numbers(ours), numbers(theirs)) < 1e-12
