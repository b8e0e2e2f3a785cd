"""Actors for host environments: what is collected, and what is counted."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from agents.protocol import Mode, ReplaySpec, Requirements, UpdateSpec
from agents.random_agent import RandomAgent
from agents.rule_agent import RuleAgent, RuleAgentConfig, to_trajectory
from tests.agents.common import HostCorridors, assert_corridor, assert_in_all
from training import collection
from training.host_collection import HostActor
from training.host_pipeline import HostPipeline

BATCH, LENGTH = 3, 7
CONFIG = RuleAgentConfig(
    network=NetworkConfig(torso=(4,), memory=3, model=4, head=(4,)),
    num_environments=BATCH,
    unroll_length=LENGTH,
    batch_size=BATCH + 5,
    replay_ratio=5 / 8,
    replay_capacity=4 * BATCH,
    frame_stack=2,
    burn_in=2,
)


def actor(terminates: bool, seed: int = 0) -> HostActor:
    dynamics = HostCorridors(3)
    return HostActor(RandomAgent(dynamics), dynamics, terminates, BATCH, seed)


@pytest.mark.parametrize("terminates", [True, False])
def test_what_is_collected_is_what_jax_environments_give(terminates):
    """The numbers of `test_collection.test_unroll`."""
    acting = actor(terminates)
    collected = acting.collect((), jax.random.key(0), LENGTH)
    trajectory = collected.batch
    assert_corridor(trajectory, terminates)
    assert [e.episode_return for e in collected.episodes] == [6.0] * 2 * BATCH
    assert {e.length for e in collected.episodes} == {3}
    assert {e.results["reached"] for e in collected.episodes} == {3.0}

    # The next trajectory begins where this one ended, and a return counts what was paid before.
    following = acting.collect((), jax.random.key(1), LENGTH)
    np.testing.assert_array_equal(following.batch.observation[0], trajectory.observation[-1])
    assert_in_all(following.batch.mask, [False, True, True, True, False, True, True])
    assert [e.episode_return for e in following.episodes] == [6.0] * BATCH
    acting.close()


def test_instances_and_seeds_differ_and_the_same_seed_repeats():
    def observed(seed):
        acting = actor(True, seed)
        trajectory = acting.collect((), jax.random.key(0), LENGTH).batch
        acting.close()
        return trajectory.observation[..., 1]

    first = observed(0)
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(observed(0), first)
    assert not np.any(observed(1) == first)


class CorridorsWithLives:
    """Corridors of length 3, in each of which the second step takes a life of three."""

    def __init__(self, simulators, lives):
        self._simulators, self.lives = simulators, lives
        self.batch_size, self.restarts = simulators.batch_size, 0
        self.results = {"lives": np.zeros(self.batch_size, np.float32)}
        self.reset, self.close = simulators.reset, simulators.close

    def step(self, action):
        timestep = self._simulators.step(action)
        of_state = np.array(self.lives, np.float32)
        self.results["lives"] = of_state[timestep.observation[:, 0].astype(int)]
        return timestep


@dataclasses.dataclass(frozen=True)
class HostCorridorsWithLives(HostCorridors):
    lives: tuple[float, ...] = (3.0, 3.0, 2.0, 0.0)

    def start(self, task, batch_size, seed, workers=None) -> Any:
        return CorridorsWithLives(super().start(task, batch_size, seed, workers), self.lives)


@dataclasses.dataclass(frozen=True)
class SeesEpisodes(RandomAgent):
    """Ends episodes at lost lives, and records where it sees one begin."""

    ends: bool = True

    @property
    def requirements(self):
        return dataclasses.replace(super().requirements, ends_at_life_loss=self.ends)

    def act(self, acting_state, memory, timestep, key, mode):
        memory, action, _ = super().act(acting_state, memory, timestep, key, mode)
        return memory, action, {"first": timestep.first()}


@pytest.mark.parametrize(
    ("ends", "mode", "begins"),
    [
        (True, Mode.TRAINING, [True, False, True, False, True, False, True]),
        (True, Mode.EVALUATION, [True, False, False, False, True, False, False]),
        (False, Mode.TRAINING, [True, False, False, False, True, False, False]),
    ],
)
def test_a_lost_life_ends_an_episode_of_training_but_not_the_game(ends, mode, begins):
    dynamics = HostCorridorsWithLives(3)
    acting = HostActor(SeesEpisodes(dynamics, ends=ends), dynamics, True, BATCH, 0, mode=mode)
    collected = acting.collect((), jax.random.key(0), LENGTH)
    acting.close()
    batch = collected.batch
    assert_in_all(batch.extras["first"], begins)
    is_lost = np.array(begins) & np.array([False, False, True, False, False, False, True])
    ended = np.append(is_lost[1:], False)  # The step before.
    assert_in_all(batch.last, ended | np.array([False, False, True, False, False, False, True]))
    assert_in_all(batch.discount, 1.0 - batch.last[:, 0])
    # The game goes on: there is no transition between two episodes, and scores are whole games.
    assert_in_all(batch.mask, [True, True, True, False, True, True, True])
    assert [e.episode_return for e in collected.episodes] == [6.0] * 2 * BATCH


def test_the_last_life_ends_an_episode_with_the_game_only():
    """As in the code of IRIS' authors (src/envs/wrappers.py): Qbert goes on for some frames."""
    dynamics = HostCorridorsWithLives(3, lives=(1.0, 1.0, 0.0, 0.0))
    acting = HostActor(SeesEpisodes(dynamics), dynamics, True, BATCH, 0)
    batch = acting.collect((), jax.random.key(0), LENGTH).batch
    acting.close()
    assert_in_all(batch.extras["first"], [True, False, False, False, True, False, False])
    assert_in_all(batch.last, [False, False, True, False, False, False, True])


@pytest.fixture(scope="module")
def agent() -> RuleAgent:
    return RuleAgent.create(CONFIG, HostCorridors(3), disco.ActorCritic())


def test_experience_mixes_fresh_and_replayed_and_repeats(agent):
    params = agent.network.init(jax.random.key(0))

    def prepared():
        pipeline = HostPipeline(agent, HostCorridors(3), True, seed=3)
        for update in range(3):
            pipeline.request(params, update)
            unroll = pipeline.take().batch
            yield pipeline.draw(agent.requirements.updates[0], unroll, update)[0]
        pipeline.close()

    first, second = list(prepared()), list(prepared())
    for one, other in zip(first, second, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)
        assert one.action.shape == (LENGTH, CONFIG.batch_size)
        logits = agent.network.unroll(params, to_trajectory(jax.tree.map(jnp.asarray, one)))[
            "logits"
        ]
        np.testing.assert_allclose(logits[:-1], one.extras["behaviour_logits"], atol=1e-5)
    fresh = first[-1].observation.frames[..., 1][:, :BATCH]
    assert not np.any(np.isin(fresh[-LENGTH:], first[0].observation.frames[..., 1]))


@dataclasses.dataclass(frozen=True)
class Storing:
    """Acts at random, and stores zeros."""

    random: RandomAgent
    init = property(lambda self: self.random.init)
    acting_state = property(lambda self: self.random.acting_state)
    initial_memory = property(lambda self: self.random.initial_memory)
    update = property(lambda self: self.random.update)

    @property
    def requirements(self):
        update = UpdateSpec(batch_size=1, num_replayed=1, length=3)
        replay = ReplaySpec(capacity=3, anywhere=True)
        return Requirements(1, 1, replay=replay, updates=(update,))

    def act(self, acting_state, memory, timestep, key, mode):
        memory, action, _ = self.random.act(acting_state, memory, timestep, key, mode)
        return memory, action, {"number": jnp.zeros_like(timestep.step_type)}


def test_extras_are_in_the_replay_before_an_unroll_overwrites_their_rows():
    storing: Any = Storing(RandomAgent(HostCorridors(3)))
    (update,) = storing.requirements.updates
    pipeline = HostPipeline(storing, HostCorridors(3), True, seed=3)

    def collect(unroll: int):
        pipeline.request((), unroll)
        return pipeline.take().batch

    def draw() -> Any:
        return pipeline.draw(update, unroll, 0)

    def write(number: int):
        pipeline.write_back(update, sequences, {"number": jnp.full((3, 1), number)})

    def numbers():
        return draw()[0].extras["number"][:, 0].tolist()

    for i in range(3):
        unroll = collect(i)
    _, sequences = draw()
    write(1)
    assert numbers() == [0, 0, 0]
    write(2)
    assert numbers() == [1, 1, 1]
    kept: Any = pipeline.filled_replay()
    assert kept.rows["transition"]["extras"]["number"].max() == 2
    write(3)
    unroll = collect(3)  # It replaces the oldest of the three rows.
    assert numbers() == [3, 3, 0]
    _, sequences = draw()
    write(4)
    pipeline.flush()
    assert numbers() == [4, 4, 4]
    pipeline.close()


def test_examples_are_what_is_collected(agent):
    params = agent.network.init(jax.random.key(0))
    acting = HostActor(agent, HostCorridors(3), True, BATCH, seed=0)
    collected = acting.collect(params, jax.random.key(0), LENGTH).batch
    acting.close()
    jax.tree.map(
        lambda x, y: (x.shape, x.dtype) == (y.shape, y.dtype) or pytest.fail(f"{x} {y}"),
        collection.example(agent, HostCorridors(3), BATCH, LENGTH),
        collected,
    )


def test_a_rule_refuses_continuous_actions():
    @dataclasses.dataclass(frozen=True)
    class Continuous(HostCorridors):
        def action_spec(self):
            control: Any = environments.make("control_proprio/cartpole_swingup")
            return control.dynamics.action_spec()

    with pytest.raises(ValueError, match=r"continuous actions of shape .* expected a choice"):
        RuleAgent.create(CONFIG, Continuous(), disco.ActorCritic())
