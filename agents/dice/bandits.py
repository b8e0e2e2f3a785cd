"""The bandit vote algorithm: an ensemble of bandits chooses a number from 0 to `high`.

Xiao et al. 2021 (arXiv 2106.00707, appendix A and table 5). The interval is divided into N tiles of
equal size, and each of M bandits estimates the value of a number by tile coding (equation 9). A
bandit proposes candidates, by upper confidence bounds (equation 11); one of all bandits'
candidates, each as likely, is the choice. The value that it brings updates all bandits (equation
10).

Where the paper is silent:

- averages and updates near the interval's ends are over the tiles that exist;
- tiles of equal score are in random order, so that the first choices are not all at one end;
- where all values are equal, their normalised value is 0.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

_LEARNING_RATES = (0.05, 0.1, 0.2)  # Of which each bandit has one at random.
_WIDTHS = (1, 2, 3)  # Likewise: tiles at each side that a tile's value is averaged with.


@chex.dataclass(frozen=True)
class Bandits:
    """An ensemble of M bandits over N tiles.

    Attributes:
      weights: w, of each tile.
      counts: how often each tile was chosen; the same for all bandits, which see all choices.
      learning_rate, width: of each bandit.
      is_greedy: the bandit's mode: whether it proposes the tiles with the highest scores (`argmax`
        in the paper), or draws them with the scores as logits (`random`).
    """

    weights: Float[Array, "*runs M N"]
    counts: Int[Array, "*runs N"]
    learning_rate: Float[Array, "*runs M"]
    width: Int[Array, "*runs M"]
    is_greedy: Bool[Array, "*runs M"]


def init(number: int, num_tiles: int, key: PRNGKeyArray) -> Bandits:
    """Return bandits with random modes, learning rates and widths that have seen nothing."""
    mode, rate, width = jax.random.split(key, 3)
    dtype, shape = jnp.result_type(float), (number,)
    return Bandits(
        weights=jnp.zeros((number, num_tiles), dtype),
        counts=jnp.zeros(num_tiles, jnp.int32),
        learning_rate=jax.random.choice(rate, jnp.asarray(_LEARNING_RATES, dtype), shape),
        width=jax.random.choice(width, jnp.asarray(_WIDTHS, jnp.int32), shape),
        is_greedy=jax.random.bernoulli(mode, shape=shape),
    )


def tile_of(num_tiles: int, high: float, x: Float[Array, "*s"]) -> Int[Array, "*s"]:
    """Return the index of the tile of numbers, which are clipped to the interval."""
    position = jnp.clip(x, 0.0, high) / (high / num_tiles)
    return jnp.clip(jnp.floor(position).astype(jnp.int32), 0, num_tiles - 1)


def tile_values(bandits: Bandits) -> Float[Array, "M N"]:
    """Return V, each bandit's value of each tile (equation 9)."""
    tiles = jnp.arange(bandits.counts.shape[0])
    distance = jnp.abs(tiles[:, None] - tiles[None])
    is_near = distance[None] <= bandits.width[:, None, None]
    near = is_near.astype(bandits.weights.dtype)
    return jnp.einsum("mij,mj->mi", near, bandits.weights) / jnp.sum(near, axis=-1)


def scores(bandits: Bandits) -> Float[Array, "M N"]:
    """Return each bandit's scores of tiles: normalised values and bounds (equation 11, c = 1)."""
    values = tile_values(bandits)
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    deviation = jnp.std(values, axis=-1, keepdims=True)
    normalised = jnp.where(deviation > 0.0, centred / jnp.where(deviation > 0.0, deviation, 1.0), 0)
    counts = bandits.counts.astype(values.dtype)
    return normalised + jnp.sqrt(jnp.log1p(jnp.sum(counts)) / (1.0 + counts))[None]


def draw(bandits: Bandits, high: float, num_candidates: int, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return a choice, of all bandits' candidates."""
    order, noise, which, place = jax.random.split(key, 4)
    score = scores(bandits)
    # The highest of scores plus Gumbel noise are draws without replacement.
    gumbel = jax.random.gumbel(noise, score.shape, score.dtype)
    keys = jnp.where(bandits.is_greedy[:, None], score, score + gumbel)
    shuffled = jax.random.permutation(order, score.shape[1])
    highest = jax.lax.top_k(keys[:, shuffled], num_candidates)[1]
    tiles = shuffled[highest].reshape(-1)
    return _inside(bandits, high, jax.random.choice(which, tiles), place)


def best(bandits: Bandits, high: float, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return a number of the tile that the bandits value most, on average.

    Of equal tiles it is the first. The paper's evaluation draws from "the best region" likewise
    (section 4.1).
    """
    return _inside(bandits, high, jnp.argmax(jnp.mean(tile_values(bandits), axis=0)), key)


def _inside(
    bandits: Bandits, high: float, tile: Int[Array, ""], key: PRNGKeyArray
) -> Float[Array, ""]:
    """Return a number of a tile, each as likely."""
    place = jax.random.uniform(key, dtype=jnp.result_type(float))
    return high / bandits.counts.shape[0] * (tile.astype(place.dtype) + place)


def update(bandits: Bandits, high: float, x: Float[Array, ""], value: Float[Array, ""]) -> Bandits:
    """Return the bandits after a choice x brought a value (equation 10)."""
    num_tiles = bandits.counts.shape[0]
    tile = tile_of(num_tiles, high, x)
    found = tile_values(bandits)[:, tile]
    distance = jnp.abs(jnp.arange(num_tiles) - tile)
    is_near = distance[None] <= bandits.width[:, None]
    change = bandits.learning_rate * (value - found)
    return dataclasses.replace(
        bandits,
        weights=bandits.weights + jnp.where(is_near, change[:, None], 0.0),
        counts=bandits.counts.at[tile].add(1),
    )


def update_all(
    bandits: Bandits,
    high: float,
    x: Float[Array, "S"],
    value: Float[Array, "S"],
    has_ended: Bool[Array, "S"],
) -> Bandits:
    """Return the bandits after those choices that have ended, in their order."""
    order = jnp.argsort(jnp.logical_not(has_ended), stable=True)
    return jax.lax.fori_loop(
        0,
        jnp.sum(has_ended),
        lambda i, bandits: update(bandits, high, x[order[i]], value[order[i]]),
        bandits,
    )
