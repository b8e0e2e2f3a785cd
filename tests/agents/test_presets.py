"""Presets against the papers: numbers, sizes, images, and settings that make no sense."""

import dataclasses
import itertools
from typing import Any

import jax
import pytest

import environments
from agents import registry
from agents.networks import NetworkConfig
from agents.protocol import Agent
from agents.rule_agent import RuleAgentConfig
from agents.search_space import CommonSettings
from training import iteration

IMAGES = environments.make("pixels/catch/8x8")


def traced(agent: Agent, name: str):
    """The shapes of the learning state before and after an update, without computing anything."""
    dynamics = IMAGES.dynamics
    assert isinstance(dynamics, environments.JaxEnvironment)

    def learn(key):
        state = iteration.init(agent, dynamics, IMAGES.params, key)
        state, batch, _ = iteration.collect(agent, dynamics, IMAGES.params, state, key)
        return state.learner, agent.update(state.learner, batch, key, name).state

    return jax.eval_shape(learn, jax.random.key(0))


def number_of_parameters(learner) -> int:
    return learner.params.size


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def lstm(inputs: int, units: int) -> int:
    return linear(inputs + units, 4 * units)


def convolutions(*channels: int) -> int:
    """A convolution and two blocks of two in each section."""
    return sum(
        linear(9 * before, after) + 4 * linear(9 * after, after)
        for before, after in itertools.pairwise(channels)
    )


A, BINS = 3, 601
IMPALA, IMPALA_FLAT = (16, 32, 32), 8 * 8 * 32  # Of 64x64 pixels.


def model(embedding: int, units: int) -> int:
    """A policy's head, the first cell, the LSTM, and three heads with a hidden layer."""
    heads = 3 * linear(units, units) + linear(units, A) + 2 * linear(units, BINS)
    return linear(embedding, A) + linear(embedding, units) + lstm(A, units) + heads


@pytest.mark.parametrize("name", ["muzero", "dice", "ppo", "dpo", "ppo/cleanrl"])
def test_a_learning_rate_may_fall_over_other_steps_than_the_runs(name):
    separator = "," if "/" in name else "/"
    for steps in (0, 5_000):
        made: Any = registry.configured(f"{name}{separator}total_steps={steps}")
        assert made.for_run(9_000).config.total_steps == steps
    made: Any = registry.configured(name)
    assert made.for_run(9_000).config.total_steps == (0 if name == "ppo" else 9_000)


def test_a_preset_that_is_named_is_that_of_images_too():
    with pytest.raises(ValueError, match=r"num_minibatches is 600; expected at most"):
        registry.configured("ppo/num_minibatches=600")
    made: Any = registry.configured("ppo/sb3,num_minibatches=600")
    assert made.config.num_minibatches == 600


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "dice/paper",  # Of 12 channels: 4 frames of 3 colours.
            convolutions(12, *IMPALA)
            + linear(IMPALA_FLAT, 256)
            + lstm(256, 256)
            + linear(256, A)
            + linear(256, 1),
        ),
        (
            "muesli/paper",
            convolutions(12, 64, 128, 128, 64)
            + linear(4 * 4 * 64, 256)
            + lstm(256, 512)
            + model(512, 1024),
        ),
        (
            "muzero/paper",  # Of 96 channels: 32 frames.
            convolutions(96, *IMPALA) + linear(IMPALA_FLAT, 512) + model(512, 512),
        ),
    ],
)
def test_the_papers_sizes(name, expected):
    """An update of them can be traced, on images of 64x64 pixels."""
    agent = registry.configured(name).make(IMAGES)
    before, after = traced(agent, "update")
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(
        lambda x: (x.shape, x.dtype), after
    )
    assert number_of_parameters(before) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Xiao et al. 2021, table 5. The sequence of 80 follows the burn-in, as in R2D2.
        ("dice/paper", {"burn_in": 40, "unroll_length": 80, "batch_size": 64, "sample_reuse": 2}),
        ("dice/paper", {"num_environments": 160, "warmup": 4000, "adam_b2": 0.98, "candidates": 7}),
        # Hessel et al. 2021, table 6: 6 million frames; 75% of 96 sequences of 30 steps.
        ("muesli/paper", {"batch_size": 96, "unroll_length": 30, "replay_ratio": 0.75}),
        ("muesli/paper", {"replay_capacity": 6_000_000 // 4 // 30, "discount": 0.995}),
        # Schrittwieser et al. 2020, appendix G: 125,000 sequences of 200 steps; E: 32 frames.
        ("muzero/paper", {"replay_capacity": 125_000 * 200, "frame_stack": 32}),
        # Appendix H: 2 samples of each state, n = 5, a weight of values of 0.25.
        ("muzero/paper", {"updates_per_step": 2 / 1000, "td_steps": 5, "value_cost": 0.25}),
        # Micheli et al. 2023, appendix F: 1 update in 50 steps.
        ("iris/paper,10m", {"epoch_updates": 4, "epoch_steps": 200}),
        ("iris/paper", {"replay_capacity": 100_000}),  # All steps of its run.
    ],
)
def test_the_papers_numbers(name, expected):
    config = registry.configured(name).config
    assert {field: getattr(config, field) for field in expected} == expected


def test_a_long_run_of_iris_keeps_what_the_authors_30_gib_hold():
    """Frames of 64x64 RGB pixels, actions, rewards, ends and masks (config/datasets)."""
    held = 30 * 2**30 / (64 * 64 * 3 + 8 + 4 + 8 + 1)
    config = registry.configured("iris/paper,10m").config
    assert 0.98 * held < config.replay_capacity <= held


def test_muesli_and_muzero_see_their_papers_images():
    """RGB of 96x96 pixels (Hessel et al. 2021; Schrittwieser et al. 2020, appendix E)."""

    def seen(name: str) -> tuple[int, ...]:
        observed = registry.configured(name).choose_images(pong)
        return observed.dynamics.observation_spec().shape  # pyright: ignore

    pong = environments.make("atari/Pong")
    assert seen("muesli/paper") == seen("muzero/paper") == (96, 96, 3)
    assert seen("muesli") == seen("muzero") == seen("dice/paper") == (84, 84, 1)


def test_an_update_of_dice_has_five_batches_of_64():
    """160 sequences, each learned from twice (table 5), are no whole batches of 64 once."""
    agent = registry.configured("dice/paper").make(IMAGES)
    assert agent.requirements.updates[0].gradient_steps == 5


# Environments and replay ratio in the table of benchmarks of arXiv 2301.04104v2. The Nature
# version's, in its extended data, has 32 for ProcGen.
NATURE = {
    "minecraft": (64, 32),
    "dmlab": (16, 32),
    "procgen": (16, 64),
    "atari": (16, 32),
    "atari100k": (1, 128),
    "bsuite": (1, 1024),
}


def test_dreamers_replay_ratios():
    families = registry.configured("dreamer/paper").by_task
    found = {x: (families[x].num_environments, families[x].replay_ratio) for x in NATURE}
    assert found == NATURE


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dice/laptop,paper", "expected one preset of laptop, paper"),
        ("dice/exploration=greedy", "exploration is 'greedy'; expected one of bandit, random, fix"),
        ("dice/batch_size=3", r"batch_size is 3; expected a divisor of num_environments \(8\)"),
        ("dice/batch_size=16", "batch_size is 16; .* at most num_environments"),
        ("dice/candidates=12", r"candidates is 12; expected at most num_tiles \(11\)"),
        ("dice/num_bandits=0", "num_bandits is 0; expected at least 1"),
        ("dice/burn_in=4", "burn_in is 4; expected 0 to 0"),
        ("dice/max_ratio=0.5", "max_ratio is 0.5; expected at least 1"),
        ("muesli/num_bins=40", "num_bins is 40; expected an odd number"),
        ("muesli/target_rate=2.0", "target_rate is 2.0; expected 0 to 1"),
        ("muesli/replay_ratio=0.5", "expected agent.num_environments"),
        ("muzero/num_simulations=0", "num_simulations is 0; expected at least 1"),
        (
            "muzero/replay_capacity=50",
            r"replay_capacity is 50; expected at least 136, so that each",
        ),
        ("muzero/simulations=8", "muzero has no setting 'simulations'; expected one of"),
        ("ppo/num_epochs=1,num_epochs=2", "'num_epochs=1,num_epochs=2' has a setting twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        registry.configured(name)


def test_searched_sizes_of_a_network_without_layers():
    agent = RuleAgentConfig(network=NetworkConfig(torso=(), model=0))
    common = CommonSettings(agent, 100_000, 0.99)
    assert common.with_sizes({"num_environments": 4}).agent.network.torso == ()
    assert common.with_sizes({"width": 64, "layers": 2}).agent.network.torso == (64, 64)
    for settings in ({"width": 64}, {"layers": 2}):
        with pytest.raises(ValueError, match=r"network.torso is \(\), without layers; expected"):
            common.with_sizes(settings)


def test_agents_are_made_once_for_equal_dynamics():
    random, made = registry.find("random"), []

    def make(config, task):
        made.append(task.name)
        assert random.make is not None
        return random.make(config, task)

    configured = dataclasses.replace(random, make=make).configured()
    tasks = [environments.make(name) for name in ("catch/5x5", "catch/5x5", "catch/4x3")]
    first, same, other = map(configured.make, tasks)
    assert first is same is not other
    assert made == ["catch/5x5", "catch/4x3"]
    assert configured.replaced({"num_environments": 3}).make(tasks[0]) is not first
