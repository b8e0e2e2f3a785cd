"""The bandit vote algorithm: an ensemble of bandits chooses a number in an interval.

Xiao et al. 2021 (arXiv 2106.00707, appendix A). The interval is divided into tiles, and each of M
bandits estimates the value of a number by tile coding (equation 9). A bandit proposes d candidates,
by upper confidence bounds (equation 11); one of all M d candidates, each as likely, is the choice.
The value that it brings updates all bandits (equation 10).

Where the paper is silent:

- the size of tiles (`acc`) is 0.1, about that of 39 tiles;
- averages and updates near the interval's ends are over the tiles that exist;
- tiles of equal score are in random order, so that the first choices are not all at one end;
- where all values are equal, their normalised value is 0.
"""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, POSITIVE


@dataclasses.dataclass(frozen=True)
class VoteConfig:
    """Settings of the vote (Xiao et al. 2021, table 5).

    Attributes:
      number: M, bandits.
      candidates: d, that each bandit proposes.
      low, high: ends of the interval; `high` is log(1 + 50) there.
      tile: size of a tile. What is left of the interval belongs to the last one.
      exploration: weight c of the confidence bound.
      learning_rates, widths: of which each bandit has one at random. A width is the number of tiles
        at each side that a tile's value is averaged with.
    """

    number: int = 7
    candidates: int = 7
    low: float = 0.0
    high: float = math.log(51.0)
    tile: float = 0.1
    exploration: float = 1.0
    learning_rates: tuple[float, ...] = (0.05, 0.1, 0.2)
    widths: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self):
        AT_LEAST_1.require(self, "vote.", "number", "candidates")
        AT_LEAST_0.require(self, "vote.", "exploration", "widths")
        POSITIVE.require(self, "vote.", "tile", "learning_rates")
        if self.candidates > self.num_tiles:
            raise ValueError(
                f"vote.candidates is {self.candidates}; expected at most {self.num_tiles}, the"
                f" tiles of size {self.tile} from {self.low} to {self.high}."
            )

    @property
    def num_tiles(self) -> int:
        """N, tiles of the interval."""
        # Without the rounding error of a quotient that should be whole.
        return math.floor((self.high - self.low) / self.tile + 1e-6)


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


def init(config: VoteConfig, key: PRNGKeyArray) -> Bandits:
    """Return bandits with random modes, learning rates and widths that have seen nothing."""
    mode, rate, width = jax.random.split(key, 3)
    dtype, shape = jnp.result_type(float), (config.number,)
    return Bandits(
        weights=jnp.zeros((config.number, config.num_tiles), dtype),
        counts=jnp.zeros(config.num_tiles, jnp.int32),
        learning_rate=jax.random.choice(rate, jnp.asarray(config.learning_rates, dtype), shape),
        width=jax.random.choice(width, jnp.asarray(config.widths, jnp.int32), shape),
        is_greedy=jax.random.bernoulli(mode, shape=shape),
    )


def tile_of(config: VoteConfig, x: Float[Array, "*s"]) -> Int[Array, "*s"]:
    """Return the index of the tile of numbers, which are clipped to the interval."""
    position = (jnp.clip(x, config.low, config.high) - config.low) / config.tile
    return jnp.clip(jnp.floor(position).astype(jnp.int32), 0, config.num_tiles - 1)


def tile_values(bandits: Bandits) -> Float[Array, "M N"]:
    """Return V, each bandit's value of each tile (equation 9)."""
    tiles = jnp.arange(bandits.counts.shape[0])
    distance = jnp.abs(tiles[:, None] - tiles[None])
    is_near = distance[None] <= bandits.width[:, None, None]
    near = is_near.astype(bandits.weights.dtype)
    return jnp.einsum("mij,mj->mi", near, bandits.weights) / jnp.sum(near, axis=-1)


def scores(config: VoteConfig, bandits: Bandits) -> Float[Array, "M N"]:
    """Return each bandit's scores of tiles: normalised values and bounds (equation 11)."""
    values = tile_values(bandits)
    centred = values - jnp.mean(values, axis=-1, keepdims=True)
    deviation = jnp.std(values, axis=-1, keepdims=True)
    normalised = jnp.where(deviation > 0.0, centred / jnp.where(deviation > 0.0, deviation, 1.0), 0)
    counts = bandits.counts.astype(values.dtype)
    bound = jnp.sqrt(jnp.log1p(jnp.sum(counts)) / (1.0 + counts))
    return normalised + config.exploration * bound[None]


def draw(config: VoteConfig, bandits: Bandits, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return a choice, of all bandits' candidates."""
    order, noise, which, place = jax.random.split(key, 4)
    score = scores(config, bandits)
    # The highest of scores plus Gumbel noise are draws without replacement.
    gumbel = jax.random.gumbel(noise, score.shape, score.dtype)
    keys = jnp.where(bandits.is_greedy[:, None], score, score + gumbel)
    shuffled = jax.random.permutation(order, config.num_tiles)
    best = jax.lax.top_k(keys[:, shuffled], config.candidates)[1]
    tiles = shuffled[best].reshape(-1)
    return _inside(config, jax.random.choice(which, tiles), place)


def best(config: VoteConfig, bandits: Bandits, key: PRNGKeyArray) -> Float[Array, ""]:
    """Return a number of the tile that the bandits value most, on average.

    Of equal tiles it is the first. The paper's evaluation draws from "the best region" likewise
    (section 4.1).
    """
    return _inside(config, jnp.argmax(jnp.mean(tile_values(bandits), axis=0)), key)


def update(
    config: VoteConfig, bandits: Bandits, x: Float[Array, ""], value: Float[Array, ""]
) -> Bandits:
    """Return the bandits after a choice x brought a value (equation 10)."""
    tile = tile_of(config, x)
    found = tile_values(bandits)[:, tile]
    distance = jnp.abs(jnp.arange(config.num_tiles) - tile)
    is_near = distance[None] <= bandits.width[:, None]
    change = bandits.learning_rate * (value - found)
    return dataclasses.replace(
        bandits,
        weights=bandits.weights + jnp.where(is_near, change[:, None], 0.0),
        counts=bandits.counts.at[tile].add(1),
    )


def update_all(
    config: VoteConfig,
    bandits: Bandits,
    x: Float[Array, "S"],
    value: Float[Array, "S"],
    has_ended: Bool[Array, "S"],
) -> Bandits:
    """Return the bandits after those choices that have ended, in their order."""
    order = jnp.argsort(jnp.logical_not(has_ended), stable=True)
    return jax.lax.fori_loop(
        0,
        jnp.sum(has_ended),
        lambda i, bandits: update(config, bandits, x[order[i]], value[order[i]]),
        bandits,
    )


def _inside(config: VoteConfig, tile: Int[Array, ""], key: PRNGKeyArray) -> Float[Array, ""]:
    """Return a number of a tile, each as likely."""
    place = jax.random.uniform(key, dtype=jnp.result_type(float))
    return config.low + config.tile * (tile.astype(place.dtype) + place)
