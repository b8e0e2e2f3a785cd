"""What holds for every JAX environment, and the registry."""

import pathlib
import subprocess
import sys

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from environments import (
    EnvironmentNameError,
    JaxEnvironment,
    MissingPackageError,
    registry,
    stream,
)
from environments.errors import NoReleaseError
from environments.suites import atari, control, dmlab
from tests.environments.streams import dynamics_of

ROOT = pathlib.Path(__file__).parents[2]
NAMES = [
    "catch",
    "deep_sea/5",
    "delayed_chain/distractor",
    "grid57/00_dense_fixed",
    "grid_heldout/key_door",
    "lpg/random_dense",
    "gymnax/CartPole-v1",
    "gymnax/Breakout-MinAtar",
    "gymnax/MemoryChain-bsuite",
    "gymnax/FourRooms-misc",
    "minatar/breakout",
    "sokoban/valid",
]


def start_whose_types_stay(dynamics, task, key):
    """Shapes of an episode's start; all further steps have the same structure and strong types."""

    def avals(tree):
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]

    action = jax.ShapeDtypeStruct((), jnp.int32)
    first = jax.eval_shape(dynamics.reset, task, key)
    second = jax.eval_shape(dynamics.step, task, first[0], action, key)
    third = jax.eval_shape(dynamics.step, task, second[0], action, key)
    streamed = jax.eval_shape(lambda *a: stream(dynamics, *a), task, *first, action, key)
    assert avals(first) == avals(second) == avals(third) == avals(streamed)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(first))
    return first


@pytest.mark.parametrize("name", NAMES)
def test_reset_and_step_agree_with_each_other_and_with_the_specs(name):
    environment = environments.make(name)
    dynamics, task, key = dynamics_of(environment), environment.params, jax.random.key(0)
    assert isinstance(dynamics, JaxEnvironment)
    assert hash(dynamics) == hash(environments.make(name).dynamics)
    assert dynamics == environments.make(name).dynamics
    first = start_whose_types_stay(dynamics, task, key)
    assert not any(jnp.asarray(leaf).weak_type for leaf in jax.tree.leaves(task))
    spec = dynamics.observation_spec()
    assert not isinstance(spec, dict)
    assert (first[1].observation.shape, first[1].observation.dtype) == (spec.shape, spec.dtype)
    _, timestep = dynamics.reset(task, key)
    spec.validate(np.asarray(timestep.observation))
    assert timestep.first()
    assert timestep.reward == 0.0
    assert timestep.discount == 1.0


@pytest.mark.parametrize("name", ["grid57/03_sparse_random", "gymnax/CartPole-v1"])
def test_rollouts_compile_once(name):
    environment = environments.make(name)
    dynamics, task = dynamics_of(environment), environment.params
    traces = []

    @jax.jit
    def rollout(carry, key):
        traces.append(key)

        def step(carry, key):
            state, timestep = carry
            return stream(dynamics, task, state, timestep, jnp.int32(0), key), None

        return jax.lax.scan(step, carry, jax.random.split(key, 5))[0]

    carry = jax.jit(dynamics.reset)(task, jax.random.key(0))
    for i in range(3):
        carry = rollout(carry, jax.random.key(i))
    assert len(traces) == 1


def test_streams_keep_every_last_observation_and_then_start_anew():
    environment = environments.make("catch/3x3")
    dynamics = dynamics_of(environment)
    state, timestep = dynamics.reset((), jax.random.key(0))
    steps = [timestep]
    for i in range(6):
        state, timestep = stream(
            dynamics, (), state, steps[-1], jnp.int32(1), jax.random.key(i + 1)
        )
        steps.append(timestep)
    first, mid, last = dm_env.StepType
    assert [int(t.step_type) for t in steps] == [first, mid, last, first, mid, last, first]
    assert steps[2].observation[2, 1] == 1.0
    assert abs(float(steps[2].reward)) == 1.0
    assert steps[3].observation[0].sum() == 1.0
    assert steps[3].reward == 0.0
    assert steps[3].discount == 1.0


def test_a_single_environment_is_a_suite_of_one():
    (environment,) = environments.suite("catch/8x8")
    assert environment.name == "catch/8x8"


def test_groups_keep_the_order_of_names_and_stack_tasks():
    names = ["delayed_chain/short", "catch", "delayed_chain/long"]
    chains, catch = environments.group_by_dynamics(environments.make(name) for name in names)
    assert chains.names == ("delayed_chain/short", "delayed_chain/long")
    assert chains.task_params.length.tolist() == [8, 30]
    assert catch.names == ("catch",)
    assert catch.task_params == ()


@pytest.mark.slow
def test_every_listed_name_can_be_made():
    assert "grid57" in registry.suites()
    missing = set()
    for name in registry.names():
        try:
            assert environments.make(name).name == name
        except NoReleaseError:
            pass
        except MissingPackageError:
            missing.add(name.partition("/")[0])
    # Two cannot be installed by pip, and one needs a system library.
    assert missing <= {
        "dmlab",
        "dmlab_test",
        "dmlab_r2d2",
        "dmlab_r2d2_test",
        "minecraft",
        "procgen",
        "procgen_all",
        "procgen_unseen",
    }


@pytest.mark.parametrize("call", [environments.make, environments.suite])
def test_unknown_names_say_what_is_near_and_where_to_look(call):
    near = r"'grid57/00_dense_fix'.*'grid57/00_dense_fixed'"
    with pytest.raises(EnvironmentNameError, match=near):
        call("grid57/00_dense_fix")
    with pytest.raises(ValueError, match=r"'grid58'.*registry\.names\(\)"):
        call("grid58")


def test_a_suite_is_not_an_environment():
    with pytest.raises(ValueError, match=r"'grid57' is a suite of 57.*'grid57/00_dense_fixed'"):
        environments.make("grid57")


def test_frames_per_action_are_those_of_the_simulators():
    of = environments.frames_per_action
    assert of("atari") == of("atari100k") == atari.FRAME_SKIP
    assert of("dmlab") == of("dmlab_r2d2_test") == dmlab.ACTION_REPEAT
    assert of("control_proprio") == of("control_vision") == control.ACTION_REPEAT
    assert of("procgen") == of("gymnasium") == of("no_such_family") == 1


def test_engines_are_imported_only_when_asked_for():
    """And DM Control leaves it to the user with what to draw."""
    code = """
import os, sys
import environments
from environments.suites import bsuite, control
from evaluation.scoring import suite_scores
environments.suite("grid_heldout")
assert not {"bsuite", "dm_control", "gymnax"} & {*sys.modules}
os.environ.pop("MUJOCO_GL", None)
try:
    control.make("control_vision/cartpole_swingup")
except environments.MissingPackageError:
    pass
assert "MUJOCO_GL" not in os.environ
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
