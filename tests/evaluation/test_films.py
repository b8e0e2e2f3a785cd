"""Films of what a model of the world imagines beside what happens."""

import dataclasses
import random
from typing import cast

import dm_env
import jax
import numpy as np
import pytest
from dm_env import specs

import environments
from agents import pictures
from agents.protocol import Agent, OpenLoop
from agents.random_agent import RandomAgent
from evaluation import films
from evaluation.loading import LoadedAgent
from tests.agents.tiny import DREAMER, dreamer


def loaded(task: str, agent: Agent | None = None) -> LoadedAgent:
    """An agent that has not learned anything yet."""
    made = environments.make(task)
    agent = agent or cast(Agent, dreamer(DREAMER).make(made))
    learner = jax.jit(agent.init)(jax.random.key(0))
    return LoadedAgent("mine", made, agent, learner, agent.acting_state(learner))


@dataclasses.dataclass(frozen=True)
class Prophet(RandomAgent):
    """Imagines the negative of what happens, and reads every third observation."""

    def imagine(self, state, batch, key, interval) -> OpenLoop:
        observed = np.asarray(batch.observation)[:, 0]
        return OpenLoop(observed, 1.0 - observed, np.arange(len(observed)) % interval)


def panels(picture: np.ndarray, scale: int) -> list[np.ndarray]:
    """What happened, what was imagined, and the difference, in the observation's size."""
    small = picture[: 12 * scale : scale, ::scale]
    return [small[:, i : i + 12] for i in (0, 13, 26)]


def test_a_film_has_what_happened_what_was_imagined_and_their_difference():
    task = environments.make("deep_sea/12")
    agent = loaded("deep_sea/12", Prophet(task.dynamics, 1, 4))
    found = list(films.imagination(agent, episodes=2, seed=0, most_steps=30, interval=3))
    assert len(found) == 2 * (12 + 8)  # Steps, and the last observation held.
    assert {x.shape for x in found} == {found[0].shape}
    left, middle, right = panels(found[3], scale=320 // 12)
    board = np.zeros((12, 12))
    board[3] = left[3, :, 0] / 255
    assert board.sum() == 1.0  # In the fourth row after three steps.
    np.testing.assert_array_equal(left, pictures.as_image(board))
    np.testing.assert_array_equal(middle, 255 - left)
    np.testing.assert_array_equal(right, np.full_like(left, 255))
    np.testing.assert_array_equal(found[12], found[19])
    # The caption says how long ago the model has read anything.
    assert len({x[-16:].tobytes() for x in found[:13]}) == 13
    short = films.imagination(agent, episodes=1, seed=0, most_steps=2, interval=3)
    assert len(list(short)) == 2 + 8


@pytest.mark.slow
def test_a_film_of_dreamer(tmp_path):
    agent = loaded("deep_sea/12")
    found = films.imagination(agent, episodes=1, seed=0, most_steps=12, interval=4)
    assert films.write(tmp_path / "film.gif", found, fps=5.0) == 20


class Ticket(environments.FilmedSimulator):
    """Draws its colour from the global generators when it is made."""

    def __init__(self):
        drawn = random.randrange(256), np.random.randint(256)  # noqa: NPY002
        self._picture = np.full((4, 4, 3), [*drawn, 0], np.uint8)

    def reset(self):
        return dm_env.restart(np.zeros(1, np.float32))

    def step(self, action):
        return dm_env.termination(1.0, np.zeros(1, np.float32))

    def render(self):
        return self._picture


@dataclasses.dataclass(frozen=True)
class Lottery:
    """Its simulators draw pictures."""

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2)

    def start(self, task, batch_size, seed, workers=None):
        raise NotImplementedError

    def filmed(self, task, seed):
        return Ticket()


def test_what_a_filmed_simulator_draws_when_it_is_made_follows_from_the_seed():
    task = environments.Environment("lottery", Lottery())
    agent = RandomAgent(task.dynamics, 1, 4)
    learner = agent.init(jax.random.key(0))
    lottery = LoadedAgent("mine", task, agent, learner, agent.acting_state(learner))
    firsts = []
    for seed, before in ((0, 1), (0, 2), (1, 1)):
        random.seed(before)
        np.random.seed(before)  # noqa: NPY002
        firsts.append(next(films.frames(lottery, 1, seed, 3)))
    np.testing.assert_array_equal(firsts[0], firsts[1])
    assert (firsts[0] != firsts[2]).any()


def test_agents_that_imagine_no_pictures_are_refused():
    task = environments.make("deep_sea/12")
    plain = loaded("deep_sea/12", RandomAgent(task.dynamics, 1, 4))
    with pytest.raises(ValueError, match=r"mine has no model of the world.*as dreamer and iris"):
        next(films.imagination(plain, 1, 0, 5, 3))
    numbers = loaded("gymnasium/CartPole-v1")
    with pytest.raises(ValueError, match=r"mine on gymnasium/CartPole-v1 imagines no pictures"):
        next(films.imagination(numbers, 1, 0, 5, 3))
