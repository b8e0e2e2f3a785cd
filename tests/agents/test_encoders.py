"""What an encoder makes of each part of an observation, in values and in derivatives."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from agents.encoders import Encoder, NetworkConfig, _crop, _patches, residual_net
from environments.base import TextSpec
from tests.agents.common import random_params, second_derivatives
from tests.disco.common import float64, relative_difference

WIDTH = 16
CONVOLUTIONS = {"channels": (6, 8), "blocks": 1}
NO_GLYPH = 5_976


def encoder(spec, **sizes) -> hk.Transformed:
    """To `WIDTH` numbers."""
    config = NetworkConfig(torso=(WIDTH,), **sizes)
    return hk.without_apply_rng(hk.transform(lambda x: Encoder(config, spec)(x)))


def encode(spec, observation, **sizes):
    """Of leaves `[*s, S, ...]`, and the parameters with which."""
    network = encoder(spec, **sizes)
    params = random_params(network.init, jax.random.key(0), observation)
    return jax.jit(network.apply)(params, observation), params


def image(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    pixels = np.random.default_rng(seed).integers(256, size=shape)
    return jnp.asarray(pixels, jnp.uint8)


@pytest.mark.parametrize("sizes", [{}, CONVOLUTIONS], ids=["flattened", "convolutions"])
def test_bytes_are_scaled_to_one(sizes):
    shape = (6, 5, 2)
    white = jnp.full((1, *shape), 255, jnp.uint8)
    white, _ = encode(specs.Array(shape, np.uint8), white, **sizes)
    ones, _ = encode(specs.Array(shape, np.float32), jnp.ones((1, *shape)), **sizes)
    assert white.shape == (WIDTH,)
    assert jnp.any(white > 0)
    np.testing.assert_allclose(white, ones, rtol=1e-6)


def test_stacked_frames_are_channels():
    """The oldest first."""
    shape = (5, 4, 2)
    frames = image((2, 3, *shape))
    stacked, _ = encode(specs.Array(shape, np.uint8), frames, **CONVOLUTIONS)
    side_by_side = jnp.concatenate([frames[:, i] for i in range(3)], axis=-1)
    spec = specs.Array((5, 4, 6), np.uint8)
    as_one, _ = encode(spec, side_by_side[:, None], **CONVOLUTIONS)
    np.testing.assert_allclose(stacked, as_one, rtol=1e-6)
    assert not np.allclose(stacked[0], stacked[1])


def test_patches_are_squares_of_the_image():
    pixels = jax.random.normal(jax.random.key(0), (2, 7, 10, 3))
    patches = _patches(pixels, 4)
    assert patches.shape == (2, 2, 3, 4 * 4 * 3)
    np.testing.assert_array_equal(patches[:, 0, 1], pixels[:, :4, 4:8].reshape(2, -1))
    corner = patches[:, 1, 2].reshape(2, 4, 4, 3)
    np.testing.assert_array_equal(corner[:, :3, :2], pixels[:, 4:, 8:])
    assert not jnp.any(corner[:, 3:])
    assert not jnp.any(corner[:, :, 2:])


def test_patches_are_embedded_before_the_convolutions():
    """As by a convolution whose stride is their side."""

    def net(patch):
        config = NetworkConfig(torso=(), channels=(3, 4), blocks=1, patch=patch)
        return hk.without_apply_rng(hk.transform(lambda x: residual_net()(x, config)))

    pixels = jax.random.normal(jax.random.key(0), (2, 9, 13, 2))
    params = random_params(net(4).init, jax.random.key(0), pixels)
    patch = params["residual_net/patch"]
    embedded = jax.lax.conv_general_dilated(
        jnp.pad(pixels, ((0, 0), (0, 3), (0, 3), (0, 0))),
        patch["w"].reshape(4, 4, 2, 3),
        window_strides=(4, 4),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    rest = {name: x for name, x in params.items() if name != "residual_net/patch"}
    by_hand = jax.jit(net(1).apply)(rest, embedded + patch["b"])
    np.testing.assert_allclose(jax.jit(net(4).apply)(params, pixels), by_hand, atol=1e-5)
    assert jnp.any(by_hand > 0)


def test_instructions_are_read_in_order_and_without_padding():
    spec = {"instruction": TextSpec(5, "instruction")}
    texts = [[7, 1000, 0, 0, 0], [7, 1000, 7, 0, 0], [1000, 7, 0, 0, 0], [0, 0, 0, 0, 0]]
    padded, params = encode(spec, {"instruction": jnp.asarray(texts)[:, None]})
    for one, other in ((0, 1), (0, 2), (0, 3), (1, 2)):
        assert not np.allclose(padded[one], padded[other], atol=1e-3)
    short = {"instruction": jnp.asarray([[[7, 1000]]])}
    np.testing.assert_allclose(encoder(spec).apply(params, short)[0], padded[0], atol=1e-6)
    apart = {"instruction": jnp.asarray([[[0, 7, 0, 0, 1000]]])}
    np.testing.assert_allclose(encoder(spec).apply(params, apart)[0], padded[0], atol=1e-6)


def linear(params) -> tuple[jax.Array, jax.Array]:
    """Of an encoder that is nothing but its MLP's one layer."""
    (layer,) = params.values()
    return layer["w"], layer["b"]


def test_few_numbers_are_one_hot():
    observation = jnp.asarray([[2, 0], [4, 3]])
    embedding, params = encode(specs.DiscreteArray(5), observation)
    weight, bias = linear(params)
    assert weight.shape == (2 * 5, WIDTH)
    expected = jax.nn.relu(jnp.stack([weight[2] + weight[5], weight[4] + weight[5 + 3]]) + bias)
    np.testing.assert_allclose(embedding, expected, rtol=1e-6)


def test_other_whole_numbers_pass_through_a_signed_logarithm():
    number = np.iinfo(np.int32)
    spec = specs.BoundedArray((4,), np.int32, number.min, number.max)
    numbers = jnp.asarray([[0, -3, number.max, number.min]], jnp.int32)
    embedding, params = encode(spec, numbers)
    weight, bias = linear(params)
    logarithms = jnp.asarray([0.0, -np.log(4.0), 31 * np.log(2.0), -31 * np.log(2.0)])
    np.testing.assert_allclose(embedding, jax.nn.relu(logarithms @ weight + bias), rtol=1e-5)


def test_parts_of_an_observation_stand_side_by_side():
    """And real numbers are as they are."""
    spec = {"number": specs.DiscreteArray(3), "vector": specs.Array((2, 2), np.float32)}
    vector = jax.random.normal(jax.random.key(0), (1, 2, 2))
    embedding, params = encode(spec, {"number": jnp.asarray([1]), "vector": vector})
    weight, bias = linear(params)
    flat = jnp.concatenate([jnp.asarray([0.0, 1.0, 0.0]), vector.ravel()])
    np.testing.assert_allclose(embedding, jax.nn.relu(flat @ weight + bias), rtol=1e-5)


@pytest.mark.parametrize(("row", "column"), [(10, 40), (0, 0), (20, 78), (2, 77)])
def test_crop_is_around_the_hero(row, column):
    glyphs = jnp.arange(21 * 79, dtype=jnp.int16).reshape(21, 79)
    blstats = jnp.zeros(27, jnp.int32).at[:2].set(jnp.asarray([column, row]))
    crop = _crop(glyphs, blstats)
    around = np.pad(glyphs, 4, constant_values=NO_GLYPH)[row : row + 9, column : column + 9]
    np.testing.assert_array_equal(crop, around)
    assert int(crop[4, 4]) == int(glyphs[row, column])


def test_each_frame_is_cropped_around_its_own_hero():
    glyphs = jnp.arange(2 * 21 * 79).reshape(1, 2, 21, 79)
    blstats = jnp.asarray([[[40, 10], [41, 12]]])
    crop = _crop(glyphs, blstats)
    assert crop[0, :, 4, 4].tolist() == [glyphs[0, 0, 10, 40], glyphs[0, 1, 12, 41]]


NETHACK_SPEC = {
    "glyphs": specs.BoundedArray((21, 79), np.int16, 0, NO_GLYPH),
    "blstats": specs.Array((3,), np.int32),
    "message": specs.BoundedArray((6,), np.uint8, 0, 255),
    "inventory_glyphs": specs.BoundedArray((2,), np.int16, 0, NO_GLYPH),
    "inventory_letters": specs.BoundedArray((2,), np.uint8, 0, 127),
    "misc": specs.Array((3,), np.int32),
}
# Where screens of two frames can differ; the last is seen by convolutions only.
CHANGES = {
    "glyph near the hero": ("glyphs", 0, 9, 41),
    "place of the hero": ("blstats", 1, 0),
    "number of the bottom line": ("blstats", 0, 2),
    "newest message": ("message", 1, 5),
    "newest item": ("inventory_glyphs", 1, 1),
    "newest letter": ("inventory_letters", 1, 0),
    "question": ("misc", 1, 2),
    "glyph far from the hero": ("glyphs", 1, 3, 5),
}


@pytest.mark.parametrize("sizes", [{}, CONVOLUTIONS], ids=["crop alone", "convolutions"])
def test_all_of_nethack_is_seen(sizes):
    rng = np.random.default_rng(0)
    screen = {
        name: rng.integers(100, size=(1 + len(CHANGES), 2, *leaf.shape)).astype(leaf.dtype)
        for name, leaf in NETHACK_SPEC.items()
    }
    for symbols in screen.values():
        symbols[:] = symbols[0]
    screen["blstats"][..., :2] = (40, 10)
    for i, (name, *where) in enumerate(CHANGES.values(), 1):
        screen[name][i, *where] += 1
    embedding, _ = encode(NETHACK_SPEC, screen, **sizes)
    is_seen = jnp.max(jnp.abs(embedding[1:] - embedding[0]), axis=-1) > 1e-4
    assert dict(zip(CHANGES, is_seen.tolist(), strict=True)) == {
        change: bool(sizes) or change != "glyph far from the hero" for change in CHANGES
    }


TINY_NETHACK = {**NETHACK_SPEC, "glyphs": specs.BoundedArray((5, 6), np.int16, 0, NO_GLYPH)}
TWICE = {
    "residual net": (specs.Array((7, 6, 1), np.float32), {"channels": (2, 2), "blocks": 1}),
    "patches": (specs.Array((7, 6, 1), np.float32), {"channels": (2,), "blocks": 1, "patch": 2}),
    "language": ({"instruction": TextSpec(3, "instruction")}, {}),
    "nethack": (TINY_NETHACK, {"channels": (3,), "blocks": 1}),
}


@pytest.mark.parametrize(("spec", "sizes"), TWICE.values(), ids=TWICE)
def test_second_derivatives(spec, sizes):
    rng = np.random.default_rng(0)
    observation = jax.tree.map(
        lambda leaf: (5 * rng.random((2, 1, *leaf.shape))).astype(leaf.dtype), spec
    )
    network = encoder(spec, **sizes)
    with float64():
        observation = jax.tree.map(jnp.asarray, observation)
        params = random_params(network.init, jax.random.key(0), observation)
        exact, differences = second_derivatives(
            lambda params: jnp.mean(jnp.square(network.apply(params, observation))), params
        )
    assert relative_difference(exact, differences) < 1e-5
    assert all(np.any(x != 0) for x in jax.tree.leaves(exact))
