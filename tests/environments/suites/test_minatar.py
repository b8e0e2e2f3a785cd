import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import EnvironmentNameError
from environments.suites.gymnax import GAMES
from tests.environments.streams import dynamics_of
from tests.environments.test_protocol import start_whose_types_stay

# Channels and actions.
SIZES = {
    "asterix": (4, 5),
    "breakout": (4, 3),
    "freeway": (7, 3),
    "seaquest": (10, 6),
    "space_invaders": (6, 4),
}


@pytest.mark.parametrize("game", GAMES)
def test_games_keep_to_their_specs(game):
    environment = environments.make(f"minatar/{game}")
    assert environment.name == f"minatar/{game}"
    dynamics, task, key = dynamics_of(environment), environment.params, jax.random.key(0)
    assert dynamics == environments.make(f"minatar/{game}").dynamics
    channels, actions = SIZES[game]
    spec = dynamics.observation_spec()
    assert spec.shape == (10, 10, channels)
    assert dynamics.action_spec().num_values == actions
    first = start_whose_types_stay(dynamics, task, key)
    assert (first[1].observation.shape, first[1].observation.dtype) == (spec.shape, spec.dtype)
    _, timestep = dynamics.reset(task, key)
    assert timestep.first()
    assert set(np.unique(timestep.observation)) == {0.0, 1.0}


@pytest.mark.parametrize(("game", "limit"), [("breakout", 1000), ("freeway", 2500)])
def test_time_limits_cut(game, limit):
    environment = environments.make(f"minatar/{game}")
    dynamics, task, key = dynamics_of(environment), environment.params, jax.random.key(0)
    step = jax.jit(dynamics.step)
    state, _ = dynamics.reset(task, key)
    for time, kind in [(limit - 2, dm_env.StepType.MID), (limit - 1, dm_env.StepType.LAST)]:
        _, timestep = step(task, state.replace(time=jnp.int32(time)), jnp.int32(0), key)
        assert timestep.step_type == kind
        assert timestep.discount == 1


def test_a_lost_ball_terminates():
    environment = environments.make("minatar/breakout")
    dynamics, task, key = dynamics_of(environment), environment.params, jax.random.key(0)
    step = jax.jit(dynamics.step)
    state, timestep = dynamics.reset(task, key)
    steps = 0
    while not timestep.last():
        state, timestep = step(task, state, jnp.int32(1), key)  # Into the corner.
        steps += 1
    assert steps < 50
    assert timestep.discount == 0


def test_unknown_games_are_refused():
    with pytest.raises(EnvironmentNameError, match=r"'minatar/brekout'.*minatar/breakout"):
        environments.make("minatar/brekout")
