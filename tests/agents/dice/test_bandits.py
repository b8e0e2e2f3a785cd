"""The bandit vote: tiles, scores, modes, updates computed by hand; regret where the best moves."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dice import bandits
from agents.dice.bandits import Bandits

HIGH = 5.0  # Five tiles: [0, 1), [1, 2), ..., [4, 5].
PAPER = {"number": 7, "num_tiles": 39}  # Table 5; seven candidates of each.
PAPERS_HIGH = math.log(51.0)
SEEDS = 20


def ensemble(weights, counts=(0, 0, 0, 0, 0), width=(1, 2), rate=(0.5, 0.1), greedy=(True, False)):
    return Bandits(
        weights=jnp.asarray(weights, jnp.float32),
        counts=jnp.asarray(counts, jnp.int32),
        learning_rate=jnp.asarray(rate, jnp.float32),
        width=jnp.asarray(width, jnp.int32),
        is_greedy=jnp.asarray(greedy),
    )


def test_tiles_of_numbers():
    x = jnp.asarray([-3.0, 0.0, 0.99, 1.0, 4.5, 5.2, 80.0])
    assert bandits.tile_of(5, HIGH, x).tolist() == [0, 0, 0, 1, 4, 4, 4]
    ends = jnp.log1p(jnp.asarray([0.0, 50.0]))
    assert bandits.tile_of(39, PAPERS_HIGH, ends).tolist() == [0, 38]


def test_means_of_tiles():
    found = bandits.tile_values(ensemble([[1, 2, 3, 4, 10], [1, 2, 3, 4, 10]]))
    np.testing.assert_allclose(found[0], [3 / 2, 2, 3, 17 / 3, 7], rtol=1e-6)
    np.testing.assert_allclose(found[1], [2, 10 / 4, 20 / 5, 19 / 4, 17 / 3], rtol=1e-6)


def test_scores():
    weights = [[0, 0, 3, 0, 0], [0, 0, 0, 0, 0]]
    found = bandits.scores(ensemble(weights, counts=(3, 0, 1, 0, 0), width=(0, 1)))
    # Mean 0.6, deviation 1.2: the population's, of all tiles.
    value = [-0.5, -0.5, 2.0, -0.5, -0.5]
    bound = [math.sqrt(math.log(5.0) / (1 + count)) for count in (3, 0, 1, 0, 0)]
    np.testing.assert_allclose(found[0], np.add(value, bound), rtol=1e-6)
    np.testing.assert_allclose(found[1], bound, rtol=1e-6)  # All values equal: no preference.


def test_update_moves_tiles_within_the_width():
    before = ensemble([[1, 2, 3, 4, 10], [1, 2, 3, 4, 10]])
    after = bandits.update(before, HIGH, jnp.float32(3.7), jnp.float32(9.0))
    first = 0.5 * (9 - 17 / 3)  # Of tile 3 and the one at each side.
    np.testing.assert_allclose(after.weights[0], [1, 2, 3 + first, 4 + first, 10 + first], 1e-6)
    second = 0.1 * (9 - 19 / 4)
    np.testing.assert_allclose(
        after.weights[1], [1, 2 + second, 3 + second, 4 + second, 10 + second], 1e-6
    )
    assert after.counts.tolist() == [0, 0, 0, 1, 0]


def test_updates_are_in_order_and_only_of_what_has_ended():
    before = ensemble(np.zeros((2, 5)))
    x, value = jnp.asarray([0.5, 3.5, 0.5, 2.0]), jnp.asarray([1.0, 5.0, -1.0, 7.0])
    ended = jnp.asarray([True, False, True, True])
    found = bandits.update_all(before, HIGH, x, value, ended)
    expected = before
    for i in (0, 2, 3):
        expected = bandits.update(expected, HIGH, x[i], value[i])
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    nothing = bandits.update_all(before, HIGH, x, value, jnp.zeros(4, bool))
    jax.tree.map(np.testing.assert_array_equal, nothing, before)


def draws(state: Bandits, number: int, high: float = HIGH, candidates: int = 2) -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), number)
    return np.asarray(jax.vmap(lambda key: bandits.draw(state, high, candidates, key))(keys))


def test_a_greedy_bandit_proposes_the_best_tiles_only():
    state = ensemble([[0, 5, 1, 9, 2]], width=(0,), rate=(0.1,), greedy=(True,))
    found = draws(state, 2_000)
    assert set(np.floor(found)) == {1.0, 3.0}  # The two candidates, each as likely.
    assert np.mean(np.floor(found) == 1.0) == pytest.approx(0.5, abs=0.05)
    # Anywhere in a tile.
    assert np.ptp(found % 1.0) > 0.98
    assert np.mean(found % 1.0) == pytest.approx(0.5, abs=0.03)


def test_a_random_bandit_draws_without_replacement_by_its_scores():
    state = ensemble([[0, 5, 1, 9, 2]], width=(0,), rate=(0.1,), greedy=(False,))
    tiles = np.floor(draws(state, 20_000)).astype(int)
    p = np.asarray(jax.nn.softmax(bandits.scores(state)[0]))
    # One of two tiles drawn without replacement: the first, or the second after another one.
    second = [sum(p[j] * p[i] / (1 - p[j]) for j in range(5) if j != i) for i in range(5)]
    expected = (p + np.asarray(second)) / 2
    np.testing.assert_allclose(np.bincount(tiles, minlength=5) / 20_000, expected, atol=0.015)


def test_bandits_that_know_nothing_choose_all_tiles():
    state = bandits.init(**PAPER, key=jax.random.key(1))
    x = jnp.asarray(draws(state, 4_000, PAPERS_HIGH, 7))
    tiles = np.asarray(bandits.tile_of(39, PAPERS_HIGH, x))
    assert np.bincount(tiles, minlength=39).min() > 50  # 103 on average.


def test_the_best_tile_is_that_of_the_mean_over_bandits():
    state = ensemble([[0, 0, 4, 0, 0], [0, 5, 0, 0, 0]], width=(0, 0))
    found = bandits.best(state, HIGH, jax.random.key(0))
    assert 1.0 <= float(found) < 2.0


def test_bandits_differ_and_have_the_configured_settings():
    state = bandits.init(200, 39, jax.random.key(0))
    assert set(np.asarray(state.width)) == {1, 2, 3}
    np.testing.assert_allclose(np.unique(state.learning_rate), [0.05, 0.1, 0.2], rtol=1e-6)
    assert 60 < int(jnp.sum(state.is_greedy)) < 140


def test_regret_is_less_than_of_fixed_and_of_random_choices():
    """The best number moves from 0.8 to 3.2 halfway; values have noise as large as the peak."""
    length = 1_500

    def value(x, step):
        best = jnp.where(step < length // 2, 0.8, 3.2)
        return jnp.exp(-jnp.square((x - best) / 0.5))

    def play(key):
        def choose(state, step):
            drawing, noise = jax.random.split(jax.random.fold_in(key, step))
            x = bandits.draw(state, PAPERS_HIGH, 7, drawing)
            found = value(x, step)
            seen = found + jax.random.normal(noise)
            return bandits.update(state, PAPERS_HIGH, x, seen), 1.0 - found

        return jnp.sum(jax.lax.scan(choose, bandits.init(**PAPER, key=key), jnp.arange(length))[1])

    keys = jax.random.split(jax.random.key(0), SEEDS)
    regret = np.asarray(jax.jit(jax.vmap(play))(keys))
    steps = jnp.arange(length)
    grid = jnp.linspace(0.0, PAPERS_HIGH, 400)
    of_fixed = np.asarray(jax.vmap(lambda x: jnp.sum(1.0 - value(x, steps)))(grid))
    error = 2.09 * np.std(regret, ddof=1) / math.sqrt(SEEDS)  # 95%, 19 degrees of freedom.
    assert np.mean(regret) + error < np.min(of_fixed)  # Even of the best in hindsight.
    assert np.mean(regret) + error < np.mean(of_fixed)  # Of a random number each time.
