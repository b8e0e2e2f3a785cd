import numpy as np
import pytest

import environments
from environments.simulators import EpisodeTracker


def collect(seed: int, num_steps: int = 30):
    simulators = environments.start(environments.make("catch/5x5"), 3, seed)
    timestep, rows = simulators.reset(), []
    assert timestep.observation.shape == (3, 5, 5)
    assert (timestep.step_type == 0).all()
    for step in range(num_steps):
        timestep = simulators.step(np.full(3, step % 3))
        rows.append((timestep, dict(simulators.results)))
    simulators.close()
    return rows


def test_a_jax_environment_is_a_stream_of_episodes():
    rows, tracker = collect(seed=0), EpisodeTracker(3)
    kinds = np.stack([timestep.step_type for timestep, _ in rows])
    # Four steps from a ball's start to its end, and one to the next start.
    np.testing.assert_array_equal(kinds[:, 0], np.tile([1, 1, 1, 2, 0], 6))
    episodes = [x for timestep, results in rows for x in tracker.follow(timestep, results, 0)]
    assert len(episodes) == 3 * 6
    assert {x.length for x in episodes} == {4}
    assert {x.episode_return for x in episodes} == {-1.0, 1.0}


def test_simulators_of_a_seed_repeat_themselves():
    def boards(seed):
        return np.stack([timestep.observation for timestep, _ in collect(seed)])

    np.testing.assert_array_equal(boards(0), boards(0))
    assert not np.array_equal(boards(0), boards(1))


@pytest.mark.slow
def test_what_a_suite_tells_of_an_episode_is_there():
    simulators = environments.start(environments.make("sokoban/train"), 2, 0)
    simulators.reset()
    simulators.step(np.zeros(2, int))
    assert {x.shape for x in simulators.results.values()} == {(2,)}


def test_a_host_environment_starts_its_own():
    try:
        task = environments.make("crafter/reward")
    except ImportError as error:
        pytest.skip(str(error))
    simulators = environments.start(task, 1, 0)
    assert simulators.reset().observation.shape == (1, 64, 64, 3)
    simulators.close()


def test_steps_before_a_reset_are_refused():
    simulators = environments.start(environments.make("catch/5x5"), 1, 0)
    with pytest.raises(ValueError, match="stepped before a reset"):
        simulators.step(np.zeros(1, int))
