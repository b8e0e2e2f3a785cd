"""Budgets and tasks of the population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch.configs import grid57_laptop
from meta.config import PopulationConfig
from meta.groups import group_sizes
from meta.population import draw_budget, reassign_tasks

LIFETIMES = (200, 100, 50, 20)
DRAWS = 20_000


def budgets(config: PopulationConfig, resets: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return np.asarray(jax.jit(jax.vmap(lambda k: draw_budget(config, k, jnp.int32(resets))))(keys))


def test_every_category_of_lifetime_gets_the_same_experience():
    drawn = budgets(PopulationConfig(lifetimes=LIFETIMES), resets=1)
    assert set(drawn) == set(LIFETIMES)
    weights = 1 / np.array(LIFETIMES)
    for lifetime, probability in zip(LIFETIMES, weights / weights.sum(), strict=True):
        deviation = np.sqrt(probability * (1 - probability) / DRAWS)
        assert abs(np.mean(drawn == lifetime) - probability) < 4 * deviation


def test_first_generation_ends_staggered_and_not_before_the_first_reset():
    drawn = budgets(PopulationConfig(lifetimes=(1000,), first_reset_after=300), resets=0)
    assert drawn.min() >= 300
    counts, _ = np.histogram(drawn, bins=10, range=(300, 1300))
    assert counts.sum() == DRAWS
    np.testing.assert_allclose(counts / DRAWS, 0.1, atol=0.01)


def test_make_discover_has_agents_of_the_age_at_which_scores_are_taken():
    """An evaluation takes a fifth of its updates to score; at least an eighth are as old here."""
    settings = grid57_laptop.get_config()
    first, later = (budgets(settings.population, resets) for resets in (0, 1))
    scored_from = 0.8 * settings.probe.budget
    age, budget, share = np.zeros(DRAWS), first, 0.0
    for _ in range(settings.meta_steps):
        share += np.mean(age >= scored_from) / settings.meta_steps
        age += grid57_laptop.STEPS_PER_META_STEP
        ended = age >= budget
        age, budget = np.where(ended, 0, age), np.where(ended, np.roll(later, 1), budget)
        later = np.roll(later, 1)
    assert share > 1 / 8


@pytest.mark.parametrize(
    ("size", "num_tasks"), [(20, 57), (3, 7), (4, 6), (2, 2), (6, 4), (8, 4), (30, 57), (5, 6)]
)
def test_agents_have_tasks_that_no_other_has_and_all_tasks_in_turn(size, num_tasks):
    """Over 300 meta-steps of lifetimes as `make discover` has them."""
    random = np.random.default_rng(0)
    budget = 20 + random.integers(1, 200, size)
    tasks, trained = np.arange(size) % num_tasks, np.zeros(num_tasks, int)
    first = tasks
    for _ in range(300):
        held = np.bincount(tasks, minlength=num_tasks)
        assert held.max() <= -(-size // num_tasks)
        assert held.min() >= size // num_tasks
        np.add.at(trained, tasks, 1)
        budget -= 1
        is_reset = budget == 0
        tasks = reassign_tasks(tasks, is_reset, trained)
        budget[is_reset] = random.choice([200, 100, 50, 25], p=[1 / 15, 2 / 15, 4 / 15, 8 / 15])
    assert trained.sum() == 300 * size
    if size % num_tasks == 0:
        assert np.array_equal(tasks, first)
    else:  # None is forgotten; a lifetime of 200 meta-steps is the least that two can differ by.
        assert trained.min() > 0
        assert trained.max() - trained.min() <= 250


def test_agents_keep_their_tasks_if_asked_and_every_task_has_one():
    trained, is_reset = np.arange(57)[::-1], np.ones(128, bool)
    tasks = np.arange(128) % 57
    np.testing.assert_array_equal(reassign_tasks(tasks, is_reset, trained, True), tasks)
    fewer = reassign_tasks(np.array([0, 1]), np.array([True, False]), np.array([3, 3, 1]), True)
    assert fewer.tolist() == [2, 1]


def test_budgets_in_frames():
    config = PopulationConfig(lifetimes=(200, 20), first_reset_after=9, counts_frames=True)
    assert config.in_steps(4) == PopulationConfig(lifetimes=(50, 5), first_reset_after=3)


def test_an_agent_that_is_reset_takes_the_least_trained_of_the_free_tasks():
    trained = np.array([9, 4, 7, 2, 5])
    tasks = reassign_tasks(np.array([3, 1, 0]), np.array([False, True, True]), trained)
    assert tasks.tolist() == [3, 1, 4]


@pytest.mark.parametrize(
    ("num_tasks", "size", "expected"),
    [
        ([57, 1], 20, [19, 1]),
        ([1, 1, 1], 3, [1, 1, 1]),
        ([10, 10, 2], 11, [5, 5, 1]),
        ([90, 5, 5], 4, [2, 1, 1]),
    ],
)
def test_every_group_has_a_place(num_tasks, size, expected):
    assert group_sizes(num_tasks, size) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "population.size is 0"),
        ({"lifetimes": ()}, "population.lifetimes is ()"),
        ({"lifetimes": (5, 0)}, "population.lifetimes is (5, 0)"),
        ({"first_reset_after": -1}, "population.first_reset_after is -1"),
    ],
)
def test_refused(wrong, message):
    with pytest.raises(ValueError, match="expected") as error:
        PopulationConfig(**wrong)
    assert message in str(error.value)
