import dataclasses
import io

import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from PIL import Image

import environments
from agents import pictures
from agents.networks import NetworkConfig
from agents.random_agent import RandomAgent
from agents.registry import Algorithm, Configured, TrainingReport
from agents.rule_agent import AgentConfig
from environments.simulators import Episode
from evaluation import playing
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, make_contenders
from evaluation.runs import ContenderRun, train_runs

CONFIG = EvaluationConfig(
    agent=AgentConfig(
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
    strip_frames=3,
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


@pytest.mark.parametrize(
    "task", ["catch/5x5", pytest.param("crafter/reward", marks=pytest.mark.slow)]
)
def test_the_first_seed_of_those_that_learn_leaves_a_strip(task, tmp_path):
    try:
        made = environments.make(task)
    except ImportError as error:
        pytest.skip(str(error))
    for contender in make_contenders([], CONFIG):
        runs = [ContenderRun.of(contender, made, seed, CONFIG, tmp_path) for seed in range(2)]
        groups = [[run] for run in runs] if made.is_host else [runs]
        found = [result for group in groups for result in train(group, CONFIG, tmp_path)]
        assert [bool(x.strip) for x in found] == [not contender.is_random, False]
        if contender.is_random:
            continue
        image = Image.open(io.BytesIO(found[0].strip))
        assert image.height >= 64
        assert image.width == 3 * image.height + 2 * 2
        caption = pictures.read_caption(found[0].strip)
        if task == "catch/5x5":  # Where the ball falls for four steps.
            assert caption.startswith("an episode: 4 steps, reward ")
            assert caption.endswith(("1", "-1"))


def test_a_picture_that_fails_costs_no_run(monkeypatch, caplog, tmp_path):
    def fail(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(playing, "strip", fail)
    _, contender = make_contenders([], CONFIG)
    run = ContenderRun.of(contender, environments.make("catch/5x5"), 0, CONFIG, tmp_path)
    [result] = train([run], CONFIG, tmp_path)
    assert result.strip == b""
    assert np.isfinite(result.window.mean_return)
    assert "no pictures of actor_critic on catch/5x5, seed 0: RuntimeError" in caplog.text


class Examined(RandomAgent):
    """The random policy, with an examination that its simulators do not survive."""

    def examine(self, state, batch, key):
        raise environments.SimulatorError("a simulator died")


@dataclasses.dataclass(frozen=True)
class NoSettings:
    pass


def contender(**functions) -> Contender:
    algorithm = Algorithm("mine", "", {"default": NoSettings()}, **functions)
    return Contender.of("mine", "mine", Configured(algorithm, NoSettings()))


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
def test_agents_that_see_histories_leave_strips_of_single_frames(frame_stack, memory, tmp_path):
    network = dataclasses.replace(CONFIG.agent.network, memory=memory)
    agent = dataclasses.replace(CONFIG.agent, network=network, frame_stack=frame_stack)
    config = dataclasses.replace(CONFIG, agent=agent)
    _, contender = make_contenders([], config)
    run = ContenderRun.of(contender, environments.make("catch/5x5"), 0, config, tmp_path)
    [result] = train([run], config, tmp_path)
    image = Image.open(io.BytesIO(result.strip))
    assert image.width == 3 * image.height + 2 * 2


@dataclasses.dataclass(frozen=True)
class WithNumbers:
    """Catch, whose observation is its board and some numbers, by name."""

    dynamics: environments.JaxEnvironment

    def observation_spec(self):
        numbers = specs.Array((3,), np.float32)
        return {"a": numbers, "board": self.dynamics.observation_spec(), "c": numbers}

    def action_spec(self):
        return self.dynamics.action_spec()

    def reset(self, task, key):
        return self._named(self.dynamics.reset(task, key))

    def step(self, task, state, action, key):
        return self._named(self.dynamics.step(task, state, action, key))

    def _named(self, result):
        state, timestep = result
        seen = {"a": jnp.zeros(3), "board": timestep.observation, "c": jnp.zeros(3)}
        return state, timestep._replace(observation=seen)


def test_the_image_among_several_observations_is_drawn(tmp_path):
    catch = environments.make("catch/5x5")
    assert isinstance(catch.dynamics, environments.JaxEnvironment)
    task = dataclasses.replace(catch, dynamics=WithNumbers(catch.dynamics), name="catch/named")
    assert pictures.image_index(task.dynamics.observation_spec()) == 1
    _, contender = make_contenders([], CONFIG)
    [result] = train([ContenderRun.of(contender, task, 0, CONFIG, tmp_path)], CONFIG, tmp_path)
    [alone] = train([ContenderRun.of(contender, catch, 0, CONFIG, tmp_path)], CONFIG, tmp_path)
    sizes = [Image.open(io.BytesIO(x.strip)).size for x in (result, alone)]
    assert sizes[0] == sizes[1]


def test_strips_can_be_left_out(tmp_path):
    config = dataclasses.replace(CONFIG, strip_frames=0)
    _, contender = make_contenders([], config)
    run = ContenderRun.of(contender, environments.make("catch/5x5"), 0, config, tmp_path)
    [result] = train([run], config, tmp_path)
    assert result.strip == b""
    with pytest.raises(ValueError, match="strip_frames is -1"):
        dataclasses.replace(config, strip_frames=-1)
