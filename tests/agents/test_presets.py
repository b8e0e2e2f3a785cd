"""The presets of DiCE, Muesli and MuZero: sizes, and settings that make no sense."""

import jax
import pytest

import environments
from agents import registry
from agents.protocol import Agent
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


# Of 12 channels (4 frames of 3 colours): a convolution and two blocks of two in each section.
CONVOLUTIONS = sum(
    linear(9 * before, after) + 4 * linear(9 * after, after)
    for before, after in ((12, 16), (16, 32), (32, 32))
)
FLAT, A, BINS = 8 * 8 * 32, 3, 601
EMBEDDING = CONVOLUTIONS + linear(FLAT, 256) + lstm(256, 256)


def model(embedding: int, units: int) -> int:
    """A policy's head, the first cell, the LSTM, and three heads with a hidden layer."""
    heads = 3 * linear(units, units) + linear(units, A) + 2 * linear(units, BINS)
    return linear(embedding, A) + linear(embedding, units) + lstm(A, units) + heads


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dice/paper", EMBEDDING + linear(256, A) + linear(256, 1)),
        ("muesli/paper", EMBEDDING + model(256, 1024)),
        ("muzero/paper", CONVOLUTIONS + linear(FLAT, 512) + model(512, 512)),
    ],
)
def test_the_papers_sizes(name, expected):
    """An update of them can be traced, on images of 64x64 pixels."""
    agent = registry.make(name).make(IMAGES)  # pyright: ignore[reportAttributeAccessIssue]
    before, after = traced(agent, "update")
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(
        lambda x: (x.shape, x.dtype), after
    )
    assert number_of_parameters(before) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dice/laptop,paper", "expected one preset of laptop, paper"),
        ("dice/exploration=greedy", "exploration is 'greedy'; expected one of bandit, random, fix"),
        ("dice/batch_size=3", r"batch_size is 3; expected a divisor of num_environments \(8\)"),
        ("dice/burn_in=4", "burn_in is 4 and network.memory 0"),
        ("dice/max_ratio=0.5", "max_ratio is 0.5; expected at least 1"),
        ("muesli/num_bins=40", "num_bins is 40; expected an odd number"),
        ("muesli/target_rate=2.0", "target_rate is 2.0; expected 0 to 1"),
        ("muesli/replay_ratio=0.5", "expected agent.num_environments"),
        ("muzero/num_simulations=0", "num_simulations is 0; expected at least 1"),
        (
            "muzero/replay_capacity=50",
            r"replay_capacity is 50; expected at least 136, so that each",
        ),
        ("muzero/simulations=8", "MuZero has no setting 'simulations'; expected one of"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        registry.make(name)
