"""Dreamer's convolutions: what they compute on each backend."""

from functools import partial

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.convolutions import convolve_doubling, convolve_halving, from_patches, to_patches
from agents.dreamer.layers import Convolution, convolve_pooled, convolve_upsampled

POOLED = partial(Convolution, side=5, convolve=convolve_pooled)
UPSAMPLED = partial(Convolution, side=5, convolve=convolve_upsampled)
X = jax.random.normal(jax.random.key(0), (3, 6, 8, 4))


def convolution(module):
    return hk.without_apply_rng(hk.transform(lambda x: module(5, name="convolution")(x)))


def convolved(x, params):
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=layout)
    return y + params["b"]


def pooled(x, params):
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(
        convolved(x, params), -jnp.inf, jax.lax.max, window, window, "VALID"
    )


def enlarged(x, params):
    return convolved(x.repeat(2, axis=1).repeat(2, axis=2), params)


def strided(transposed: bool):
    """Return a module that halves or doubles the sides, and what it computes."""

    def expected(x, params):
        function = jax.lax.conv_transpose if transposed else jax.lax.conv_general_dilated
        layout = ("NHWC", "HWIO", "NHWC")
        y = function(x, params["w"], (2, 2), "SAME", dimension_numbers=layout)
        return y + params["b"]

    convolve = convolve_doubling if transposed else convolve_halving
    return partial(Convolution, side=4, convolve=convolve), expected


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (POOLED, pooled),
        (UPSAMPLED, enlarged),
        strided(transposed=False),
        strided(transposed=True),
    ],
)
def test_convolutions_and_their_gradients(monkeypatch, backend, module, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    layer = convolution(module)
    params = layer.init(jax.random.key(1), X)
    params = jax.tree.map(lambda w: w + 0.1, params)

    def loss(function, x, params):
        y = function(x, params)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size).reshape(y.shape))), y

    def ours(x, params):
        return layer.apply({"convolution": params}, x)

    found, reference = (
        jax.jit(jax.grad(partial(loss, function), argnums=(0, 1), has_aux=True))(
            X, params["convolution"]
        )
        for function in (ours, expected)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, reference)


@pytest.mark.parametrize(("backend", "shape"), [("cpu", (3, 3, 16, 20)), ("gpu", (5, 5, 4, 5))])
def test_accelerators_do_not_multiply_more_for_pooling(monkeypatch, backend, shape):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    layer = convolution(POOLED)
    params = layer.init(jax.random.key(1), X)
    program = jax.make_jaxpr(layer.apply)(params, X)
    kernels = [
        equation.invars[1].aval.shape
        for equation in program.jaxpr.eqns
        if "convolution" in equation.primitive.name or "conv_general" in equation.primitive.name
    ]
    assert kernels == [shape]


def test_squares_and_back():
    squares = to_patches(X, 2)
    assert squares.shape == (3, 3, 4, 16)
    np.testing.assert_array_equal(squares[:, 1, 2, 4:8], X[:, 2, 5])
    np.testing.assert_array_equal(from_patches(squares, 2), X)


def test_strided_convolutions_on_a_cpu_have_the_fast_derivatives():
    """No convolution in the program, derivatives included, has strides or dilations."""
    for transposed in (False, True):
        module, _ = strided(transposed)
        layer = convolution(module)
        params = layer.init(jax.random.key(1), X)
        gradient = jax.grad(lambda params, x, f=layer: f.apply(params, x).sum(), argnums=(0, 1))
        program = str(jax.make_jaxpr(gradient)(params, X))
        assert "convolution_channels_last" in program
        assert "conv_general_dilated" not in program


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_equal_maxima_share_the_gradient_alike(monkeypatch, backend):
    """Of equal pixels; a quarter each."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    layer = convolution(POOLED)
    x = jnp.zeros((1, 4, 4, 2))
    params = layer.init(jax.random.key(1), x)
    params = jax.tree.map(jnp.zeros_like, params)
    gradient = jax.grad(lambda params: layer.apply(params, x + 1.0).sum())(params)
    rows = np.array([2, 3, 4, 3, 2])  # Pixels of four that are inside the image.
    expected = np.outer(rows, rows) / 4.0
    np.testing.assert_allclose(gradient["convolution"]["w"][..., 0, 0], expected, rtol=1e-6)
