"""Budgets and tasks of the population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta.population import PopulationConfig, draw_budget, task_index

LIFETIMES = (200, 100, 50, 20)
DRAWS = 20_000


def budgets(config: PopulationConfig, births: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return np.asarray(jax.jit(jax.vmap(lambda k: draw_budget(config, k, jnp.int32(births))))(keys))


def test_every_category_of_lifetime_gets_the_same_experience():
    drawn = budgets(PopulationConfig(lifetimes=LIFETIMES), births=1)
    assert set(drawn) == set(LIFETIMES)
    weights = 1 / np.array(LIFETIMES)
    for lifetime, probability in zip(LIFETIMES, weights / weights.sum(), strict=True):
        deviation = np.sqrt(probability * (1 - probability) / DRAWS)
        assert abs(np.mean(drawn == lifetime) - probability) < 4 * deviation


def test_first_generation_ends_staggered_and_not_before_the_first_rebirth():
    drawn = budgets(PopulationConfig(lifetimes=(1000,), first_rebirth=300), births=0)
    assert drawn.min() >= 300
    counts, _ = np.histogram(drawn, bins=10, range=(300, 1300))
    assert counts.sum() == DRAWS
    np.testing.assert_allclose(counts / DRAWS, 0.1, atol=0.01)


@pytest.mark.parametrize(("size", "num_tasks"), [(3, 7), (4, 6), (2, 2), (6, 4)])
def test_reborn_agents_go_round_all_tasks(size, num_tasks):
    def generation(births):
        return [
            int(task_index(num_tasks, jnp.int32(place), jnp.int32(births), size))
            for place in range(size)
        ]

    if size <= num_tasks:
        # A generation has no task twice.
        assert all(len(set(generation(births))) == size for births in range(num_tasks))
    if size % num_tasks == 0:
        assert generation(1) == generation(0)
    elif size < num_tasks:
        seen = {index for births in range(num_tasks) for index in generation(births)}
        assert seen == set(range(num_tasks))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "population.size is 0"),
        ({"lifetimes": ()}, "population.lifetimes is ()"),
        ({"lifetimes": (5, 0)}, "population.lifetimes is (5, 0)"),
        ({"first_rebirth": -1}, "population.first_rebirth is -1"),
    ],
)
def test_refused(wrong, message):
    with pytest.raises(ValueError, match="expected") as error:
        PopulationConfig(**wrong)
    assert message in str(error.value)
