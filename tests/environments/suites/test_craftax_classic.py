"""Craftax compiles for seconds: one program serves most of these tests."""

import importlib
import sys
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from craftax.craftax_classic import constants

import environments
from environments import EnvironmentNameError, MissingPackageError
from environments.suites import craftax_classic
from environments.suites.craftax_classic import CraftaxClassic
from environments.suites.crafter import ACHIEVEMENTS
from tests.environments.test_protocol import start_whose_types_stay

NOOP, LEFT, DO = 0, 1, 5


@pytest.fixture(scope="module")
def environment():
    return environments.make("craftax_classic/symbolic")


@pytest.fixture(scope="module")
def reset(environment):
    """Starts an episode of a seed."""
    program = jax.jit(environment.dynamics.reset)
    return lambda seed: program(environment.params, jax.random.key(seed))


@pytest.fixture(scope="module")
def start(reset):
    """The state and the time step of an episode's start."""
    return reset(0)


@pytest.fixture(scope="module")
def step(environment):
    """Steps a state."""
    program = jax.jit(environment.dynamics.step)

    def step(state, action):
        return program(environment.params, state, jnp.int32(action), jax.random.key(1))

    return step


def surrounded(state, block):
    """With this block on all sides of the player."""
    row, column = state.player_position
    around = state.map
    for y, x in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        around = around.at[row + y, column + x].set(block.value)
    return state.replace(map=around)


@pytest.mark.slow
def test_reset_and_step_agree_with_each_other_and_with_the_specs(environment, start):
    dynamics, task, key = environment.dynamics, environment.params, jax.random.key(0)
    assert environment.name == "craftax_classic/symbolic"
    assert not environment.is_host
    assert (dynamics, hash(dynamics)) == (CraftaxClassic(), hash(CraftaxClassic()))
    start_whose_types_stay(dynamics, task, key)
    # Checkpoints write states by NumPy.
    assert all(isinstance(np.asarray(leaf), np.ndarray) for leaf in jax.tree.leaves(start))
    timestep = start[1]
    dynamics.observation_spec().validate(np.asarray(timestep.observation))
    assert timestep.first()
    assert timestep.reward == 0
    assert timestep.discount == 1


@pytest.mark.slow
def test_the_time_limit_cuts(start, step):
    for steps, kind in [(9_998, dm_env.StepType.MID), (9_999, dm_env.StepType.LAST)]:
        _, timestep = step(start[0].replace(timestep=jnp.int32(steps)), NOOP)
        assert timestep.step_type == kind
        assert timestep.discount == 1


@pytest.mark.parametrize("steps", [0, 9_999])
def test_death_terminates(start, step, steps):
    state = start[0].replace(timestep=jnp.int32(steps))
    _, timestep = step(surrounded(state, constants.BlockType.LAVA), LEFT)
    assert timestep.last()
    assert timestep.discount == 0
    starved = state.replace(player_health=jnp.int32(0))
    _, timestep = step(starved, NOOP)
    assert timestep.last()
    assert timestep.discount == 0


def test_achievements_pay_once_and_are_told(environment, start, step):
    results = environment.dynamics.results
    state = surrounded(start[0], constants.BlockType.TREE)
    assert not any(results(environment.params, state).values())
    state, timestep = step(state, DO)
    assert timestep.reward == 1
    told = results(environment.params, state)
    assert tuple(told) == ACHIEVEMENTS
    assert {name for name, unlocked in told.items() if unlocked} == {"collect_wood"}
    assert told["collect_wood"].dtype == jnp.float32
    _, timestep = step(state, DO)
    assert timestep.reward == 0


def test_achievements_and_actions_are_crafters():
    assert {name.lower() for name in constants.Achievement.__members__} == set(ACHIEVEMENTS)
    assert [a.value for a in constants.Achievement] == list(range(len(ACHIEVEMENTS)))
    engine: Any = importlib.import_module("crafter.constants")
    theirs = [name.removeprefix("move_") for name in engine.actions]
    assert [action.name.lower() for action in constants.Action] == theirs


def test_episodes_take_place_in_many_worlds(environment, reset):
    worlds = np.asarray(environment.params)
    assert worlds.shape == (craftax_classic.NUM_WORLDS, 64, 64)
    assert len(np.unique(worlds, axis=0)) == craftax_classic.NUM_WORLDS
    starts = [reset(seed) for seed in range(20)]
    assert len({np.asarray(state.map).tobytes() for state, _ in starts}) > 15
    assert len({np.asarray(timestep.observation).tobytes() for _, timestep in starts}) > 15


def test_worlds_are_the_engines_own_and_differ_in_nothing_but_the_map(environment, start):
    keys = jax.random.split(jax.random.key(0), craftax_classic.NUM_WORLDS)
    with jax.ensure_compile_time_eval():  # As when they were made: they are not compiled again.
        theirs = craftax_classic._states(keys)
    assert (theirs.map == environment.params).all()
    ours = start[0].replace(map=theirs.map, state_rng=theirs.state_rng)
    for leaf, leaves in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.broadcast_to(leaf, leaves.shape), leaves)


def test_unknown_observations_are_refused():
    with pytest.raises(EnvironmentNameError, match=r"/pixel'.*'craftax_classic/pixels'"):
        environments.make("craftax_classic/pixel")


def test_without_craftax_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "craftax.craftax_env", None)
    with pytest.raises(MissingPackageError, match=r"'disco-update-rules\[craftax\]'"):
        environments.make("craftax_classic/symbolic")
