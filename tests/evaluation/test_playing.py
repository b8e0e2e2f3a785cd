import dataclasses

import jax
import numpy as np
import pytest
from dm_env import specs

import environments
from agents import pictures
from agents.networks import NetworkConfig
from agents.random_agent import RandomAgent
from agents.registry import Algorithm, ConfiguredAlgorithm, TrainingReport
from agents.rule_agent import RuleAgentConfig
from environments.simulators import Episode
from evaluation import playing
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, make_contenders
from evaluation.runs import ContenderRun, train_runs

CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(8,), model=8, head=(8,)),
        num_environments=4,
        unroll_length=8,
        batch_size=4,
        replay_ratio=0.0,
    ),
    seeds=2,
    budget=64,
    num_points=1,
    baselines=("actor_critic",),
)


def train(group, config, folder):
    """The results of a group of runs."""
    return train_runs(group, config, folder / group[0].contender.name)


def spec_of(task):
    return environments.make(task).dynamics.observation_spec()


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("catch/5x5", True),
        ("lpg/random_dense", True),
        ("minatar/breakout", True),
        ("crafter/reward", True),
        ("atari/Pong", True),
        ("gymnax/CartPole-v1", False),
        ("nethack/NetHackScore", False),
        ("bsuite/cartpole/0", False),
    ],
)
def test_which_observations_are_pictures(task, expected):
    try:
        spec = spec_of(task)
    except ImportError as error:
        pytest.skip(str(error))
    assert pictures.is_picture(spec) == expected


def test_images_of_boards_bytes_and_colours():
    board = np.zeros((4, 5), np.float32)
    board[1, 2] = 1.0
    image = pictures.as_image(board)
    assert image.shape == (4, 5, 3)
    assert image.dtype == np.uint8
    assert image.sum() == image[1, 2].sum() == 3 * 255
    grey = np.arange(20, dtype=np.uint8).reshape(4, 5, 1)
    np.testing.assert_array_equal(pictures.as_image(grey), np.repeat(grey, 3, axis=-1))
    colours = np.random.default_rng(0).integers(256, size=(8, 8, 3), dtype=np.uint8)
    np.testing.assert_array_equal(pictures.as_image(colours), colours)
    bright = pictures.as_image(4.0 * board)
    np.testing.assert_array_equal(bright, image)


def test_each_plane_has_a_colour_and_later_ones_are_above():
    planes = np.zeros((6, 6, 4), np.float32)
    planes[0, 0, 0] = planes[0, 1, 1] = planes[0, 2, 2] = planes[0, 3, 3] = 1.0
    planes[0, 4, 1] = planes[0, 4, 3] = 1.0
    row = pictures.as_image(planes)[0]
    assert len({tuple(x) for x in row[:4]} | {tuple(row[5])}) == 5
    np.testing.assert_array_equal(row[4], row[3])


class Examined(RandomAgent):
    """The random policy, with an examination that its simulators do not survive."""

    def examine(self, state, batch, key):
        raise environments.SimulatorError("a simulator died")


@dataclasses.dataclass(frozen=True)
class NoSettings:
    pass


def contender(**functions) -> Contender:
    algorithm = Algorithm("mine", "", {"default": NoSettings()}, **functions)
    return Contender.of("mine", "mine", ConfiguredAlgorithm(algorithm, NoSettings()))


def test_an_examination_that_fails_costs_no_run(caplog, tmp_path):
    examined = contender(make=lambda config, task: Examined(task.dynamics, 4, 8))
    run = ContenderRun.of(examined, environments.make("catch/5x5"), 0, CONFIG, tmp_path)
    [result] = train([run], CONFIG, tmp_path)
    assert np.isfinite(result.window.mean_return)
    assert "no examination results of mine on catch/5x5, seed 0: SimulatorError" in caplog.text
    assert "a simulator died" in caplog.text


def nobody_knows_where(config, task, seed, num_steps, folder, checkpoint_seconds):
    yield TrainingReport(0)
    yield TrainingReport(num_steps, [Episode(1.0, 4, {})])


def test_devices_of_an_agent_that_trains_itself_are_unknown(tmp_path):
    own = contender(train=nobody_knows_where)
    [result] = train(
        [ContenderRun.of(own, environments.make("catch/5x5"), 0, CONFIG, tmp_path)],
        CONFIG,
        tmp_path,
    )
    assert result.devices == "unknown (self-contained agent)"


@pytest.mark.parametrize(("frame_stack", "memory"), [(3, 0), (1, 4)])
def test_frames_are_single_of_agents_that_see_histories(frame_stack, memory):
    network = dataclasses.replace(CONFIG.agent.network, memory=memory)
    agent = dataclasses.replace(CONFIG.agent, network=network, frame_stack=frame_stack)
    _, contender = make_contenders([], dataclasses.replace(CONFIG, agent=agent))
    task = environments.make("catch/5x5")
    agent = contender.configured.make(task)
    played = playing.play(agent, jax.jit(agent.init)(jax.random.key(0)), task, 6, 2, seed=0)
    assert playing.frames(agent, played).shape == (7, 2, 5, 5)


def test_the_image_among_several_observations_is_found():
    numbers = specs.Array((3,), np.float32)
    several = {"a": numbers, "board": spec_of("catch/5x5"), "c": numbers}
    assert pictures.image_index(several) == 1
