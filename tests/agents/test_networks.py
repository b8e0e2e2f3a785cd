"""The network: outputs as a rule asks for them, sizes, and the action-conditional model."""

import dataclasses
from functools import partial

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dm_env import specs
from jax.flatten_util import ravel_pytree

import disco
from agents.history import History
from agents.networks import NETWORKS, ActionConditionalModel, Network, NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco.types import taken
from disco.values import select_action
from environments.suites.atari import Atari
from environments.suites.crafter import Crafter
from environments.suites.dmlab import DMLab
from environments.suites.nethack import NetHack
from tests.agents.common import network_of, random_params, second_derivatives
from tests.disco.common import float64, random_trajectory, relative_difference, small_rule

NUM_ACTIONS = 3
RULES = {"discovered": small_rule(), "actor-critic": disco.ActorCritic(num_bins=21)}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_outputs_have_the_rules_shapes(rule):
    config = NetworkConfig(torso=(5,), model=4, head=(6,))
    shapes = rule.output_shapes(NUM_ACTIONS)
    spec = specs.Array((2, 2), np.uint8)
    network = network_of(config, spec, NUM_ACTIONS, shapes)
    params = jax.jit(network.init)(jax.random.key(0))
    trajectory = random_trajectory(num_transitions=4, batch_size=2)
    rows = (5, 2)
    observation = jnp.arange(40, dtype=jnp.uint8).reshape(*rows, 2, 2)
    trajectory = dataclasses.replace(trajectory, observation=observation)
    outputs = jax.jit(network.unroll)(params, trajectory)

    assert {name: x.shape for name, x in outputs.items()} == all_shapes(shapes, *rows)
    for name, shape in shapes.items():
        if len(shape) == 2:
            selected = select_action(outputs[name], trajectory.action)
            np.testing.assert_allclose(outputs[taken(name)], selected, rtol=1e-5, atol=1e-6)
    # The policy to act by is the policy that learns, and an initial agent's is nearly uniform.
    logits, _ = jax.jit(network.policy)(params, observation, None)
    np.testing.assert_allclose(logits, outputs["logits"], rtol=1e-5, atol=1e-6)
    policy = jax.nn.softmax(network.policy(params, jnp.ones((1, 2, 2)), None)[0])
    np.testing.assert_allclose(policy, 1 / NUM_ACTIONS, atol=0.05)


def test_without_a_model_outputs_per_action_are_small_functions_of_the_embedding_alone():
    """Each action has its own last layer, whose initial outputs are nearly 0."""
    config = NetworkConfig(torso=(8,), model=0, head=(6,))
    shapes = {"logits": (NUM_ACTIONS,), "q": (NUM_ACTIONS, 5)}
    spec = specs.Array((4,), np.float32)
    network = network_of(config, spec, NUM_ACTIONS, shapes)
    params = network.init(jax.random.key(0))
    by_module = network.unravel(params)
    assert not [name for name in by_module if "action_conditional" in name]
    trajectory = random_trajectory(num_actions=NUM_ACTIONS)
    outputs = jax.jit(network.unroll)(params, trajectory)
    assert outputs["q"].shape == (8, 3, NUM_ACTIONS, 5)
    assert 0.0 < float(jnp.abs(outputs["q"]).max()) < 0.1
    np.testing.assert_array_equal(
        outputs[taken("q")], select_action(outputs["q"], trajectory.action)
    )
    one = by_module["q_head"]["w"].at[:, 5:10].add(1.0)  # Of action 1.
    by_module["q_head"]["w"] = one
    changed = jax.jit(network.unroll)(ravel_pytree(by_module)[0], trajectory)["q"]
    is_changed = np.abs(changed - outputs["q"]).max(axis=(0, 1, 3)) > 0
    assert is_changed.tolist() == [action == 1 for action in range(NUM_ACTIONS)]


def test_action_conditional_model_is_an_lstm_step_with_each_action():
    size, width = 5, 4
    model = hk.without_apply_rng(
        hk.transform(lambda x: ActionConditionalModel(size)(x, NUM_ACTIONS))
    )
    embedding = jax.random.normal(jax.random.key(0), (6, width))
    params = model.init(jax.random.key(1), embedding)
    name = "action_conditional_model"
    # Nothing but the forget gate's constant 1 may be missing.
    gates = {**params[f"{name}/gates"], "b": jax.random.normal(jax.random.key(2), (4 * size,))}
    actual = model.apply({**params, f"{name}/gates": gates}, embedding)
    assert actual.shape == (6, NUM_ACTIONS, size)

    def step(cell, action):
        state = hk.LSTMState(hidden=jnp.tanh(cell), cell=cell)
        return hk.LSTM(size)(action, state)[0]

    lstm = hk.without_apply_rng(hk.transform(step))
    weight = jnp.concatenate([params[name]["action_gates"], gates["w"]])
    linear = params[f"{name}/cell"]
    cell = embedding @ linear["w"] + linear["b"]
    for action in range(NUM_ACTIONS):
        one_hot = jnp.broadcast_to(jnp.eye(NUM_ACTIONS)[action], (6, NUM_ACTIONS))
        expected = lstm.apply({"lstm/linear": {"w": weight, "b": gates["b"]}}, cell, one_hot)
        np.testing.assert_allclose(actual[:, action], expected, rtol=1e-5, atol=1e-6)


ATARI = Atari().observation_spec()
# What the named networks see (spec, actions, stacked frames), and their parameters with the
# outputs of the published rule.
NAMED = {
    "mlp": (specs.Array((10,), np.float32), 9, 1, 922_651),
    "impala": (ATARI, 18, 4, 1_563_005),
    "impala_large": (ATARI, 18, 4, 35_459_373),
    "dmlab": (DMLab().observation_spec(), 9, 1, 2_034_319),
    "nethack": (NetHack(121).observation_spec(), 121, 4, 3_891_851),
    "crafter": (Crafter().observation_spec(), 17, 32, 3_176_779),
}


def count(params) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


def random_vector(network: Network) -> jax.Array:
    """Parameters as of `random_params`."""
    return ravel_pytree(random_params(network._init, jax.random.key(0)))[0]


def trajectory_of(spec, network, num_actions: int, num_transitions: int) -> disco.Trajectory:
    """Random observations of two environments as this network sees them."""
    rng = np.random.default_rng(0)
    rows = num_transitions + 1

    def draw(leaf, num_rows):
        shape = (num_rows, 2, *leaf.shape)
        if np.issubdtype(leaf.dtype, np.floating):
            return jnp.asarray(rng.normal(size=shape), leaf.dtype)
        return jnp.asarray(rng.integers(min(getattr(leaf, "maximum", 8), 100), size=shape))

    if network.history.is_history:
        before = network.history.rows_before
        frames = jax.tree.map(lambda leaf: draw(leaf, before + rows), spec)
        age = 5 + jnp.arange(network.history.burn_in + rows)
        observation = History(frames=frames, age=jnp.stack([age, age % 7], axis=1))
    else:
        observation = jax.tree.map(lambda leaf: draw(leaf, rows), spec)
    trajectory = random_trajectory(
        num_transitions=num_transitions, batch_size=2, num_actions=num_actions
    )
    return dataclasses.replace(
        trajectory, observation=observation, core_state=network.initial_memory(2)
    )


def all_shapes(shapes, num_rows, batch_size):
    """Of a network's outputs: the rule's, and those per action at the actions taken too."""
    rows = (num_rows, batch_size)
    of_all = {name: (*rows, *shape) for name, shape in shapes.items()}
    of_taken = {
        taken(name): (num_rows - 1, batch_size, shape[1])
        for name, shape in shapes.items()
        if len(shape) == 2
    }
    return of_all | of_taken


@pytest.mark.slow
def test_derivatives_are_those_of_a_network_that_gives_all_actions_only():
    """Of an update, with respect to the rule and the parameters; and they cost less."""
    spec = specs.Array((4,), np.float64)
    config = NetworkConfig(torso=(5,), model=8, head=(16,))
    rng = np.random.default_rng(0)
    with float64():
        rule = small_rule(num_bins=101)
        shapes = rule.output_shapes(NUM_ACTIONS)
        network = network_of(config, spec, NUM_ACTIONS, shapes)
        params = random_vector(network)
        trajectory = random_trajectory(num_transitions=4, batch_size=2)
        observation = jnp.asarray(rng.normal(size=(5, 2, 4)))
        trajectory = dataclasses.replace(trajectory, observation=observation)

        def all_only(params, trajectory):
            outputs = network.unroll(params, trajectory)
            return {name: outputs[name] for name in shapes}

        def along_the_gradient(unroll, rule, params):
            gradients, _ = rule.gradient(params, rule.init(params), trajectory, unroll)
            return optax.tree.norm(gradients) ** 2, gradients

        programs = [
            jax.jit(jax.grad(partial(along_the_gradient, unroll), argnums=(0, 1), has_aux=True))
            .lower(rule, params)
            .compile()
            for unroll in (network.unroll, all_only)
        ]
        assert relative_difference(*(program(rule, params) for program in programs)) < 1e-12
        less, more = ((program.cost_analysis() or {})["flops"] for program in programs)
        assert less < 0.85 * more


@pytest.mark.parametrize("name", NETWORKS)
def test_named_networks(name):
    """Of their published sizes, without any computing."""
    spec, num_actions, frame_stack, num_params = NAMED[name]
    rule = jax.eval_shape(disco.DiscoveredRule.create, jax.random.key(0))
    shapes = rule.output_shapes(num_actions)
    network = network_of(NETWORKS[name], spec, num_actions, shapes, frame_stack)
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert count(params) == num_params
    outputs = jax.eval_shape(
        network.unroll, params, trajectory_of(spec, network, num_actions, num_transitions=3)
    )
    assert {name: x.shape for name, x in outputs.items()} == all_shapes(shapes, 4, 2)


@pytest.mark.parametrize("name", ["impala", "dmlab", "nethack", "crafter"])
def test_named_networks_made_small(name):
    spec, num_actions, frame_stack, _ = NAMED[name]
    small = dataclasses.replace(
        NETWORKS[name],
        torso=(9,),
        channels=(4, 4),
        blocks=1,
        memory=5 * bool(NETWORKS[name].memory),
    )
    shapes = {"logits": (num_actions,), "y": (7,)}
    network = network_of(small, spec, num_actions, shapes, frame_stack)
    params = random_vector(network)
    trajectory = trajectory_of(spec, network, num_actions, num_transitions=1)
    outputs = jax.jit(network.unroll)(params, trajectory)
    assert outputs["logits"].shape == (2, 2, num_actions)
    assert outputs["y"].shape == (2, 2, 7)
    # All states differ, and so does what becomes of them.
    assert np.all(np.isfinite(outputs["y"]))
    assert len(np.unique(outputs["y"].reshape(4, 7), axis=0)) == 4


@pytest.mark.parametrize(
    ("name", "channels", "pooled", "dense", "expected"),
    [
        ("impala", (16, 32, 32), 11, 256, 1_089_232),
        ("impala_large", (256, 384, 384, 256), 6, 768, 25_526_272),
    ],
)
def test_residual_nets_have_the_published_layers(name, channels, pooled, dense, expected):
    """Per section one convolution and two blocks of two; the sides of 84 halved and rounded up."""

    def convolution(inputs, outputs):
        return (3 * 3 * inputs + 1) * outputs

    by_hand = (pooled * pooled * channels[-1] + 1) * dense
    for inputs, outputs in zip((4, *channels), channels, strict=False):
        by_hand += convolution(inputs, outputs) + 4 * convolution(outputs, outputs)
    assert by_hand == expected

    network = network_of(NETWORKS[name], ATARI, 18, {"logits": (18,)}, frame_stack=4)
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert count(params) == expected + (dense + 1) * 18


def test_bfloat16_is_near_float32():
    spec = {"image": specs.Array((8, 8, 1), np.uint8), "number": specs.Array((3,), np.float32)}
    rule = small_rule()
    outputs = {}
    for dtype in ("float32", "bfloat16"):
        config = NetworkConfig(
            torso=(16,), channels=(6,), blocks=1, memory=8, model=8, head=(8,), dtype=dtype
        )
        network = network_of(config, spec, 3, rule.output_shapes(3), frame_stack=2)
        params = random_vector(network)
        trajectory = trajectory_of(spec, network, 3, num_transitions=2)
        outputs[dtype] = jax.jit(network.unroll)(params, trajectory)
        for leaf in jax.tree.leaves((params, outputs[dtype])):
            assert leaf.dtype == jnp.float32
    for name, narrow in outputs["bfloat16"].items():
        assert 1e-4 < relative_difference(narrow, outputs["float32"][name]) < 0.05, name


def test_second_derivatives_through_the_memory():
    config = NetworkConfig(torso=(4,), memory=3, model=3, head=(3,))
    spec = specs.Array((2,), np.float64)
    with float64():
        shapes = {"logits": (3,), "q": (3, 2)}
        network = network_of(config, spec, 3, shapes, frame_stack=2)
        trajectory = trajectory_of(spec, network, 3, num_transitions=3)

        def loss(params):
            outputs = network.unroll(params, trajectory)
            return sum((jnp.mean(jnp.square(x)) for x in outputs.values()), jnp.zeros(()))

        params = random_vector(network)
        exact, differences = second_derivatives(loss, params)
    assert relative_difference(exact, differences) < 1e-5
    assert np.all(network.unravel(exact)["memory/linear"]["w"] != 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"torso": (8, 0)}, r"network.torso\[1\] is 0; expected at least 1"),
        ({"model": -1}, "network.model is -1; expected at least 0"),
        ({"head": (-1,)}, r"network.head\[0\] is -1; expected at least 1"),
        ({"channels": (16, 0)}, r"network.channels\[1\] is 0; expected at least 1"),
        ({"patch": 0}, "network.patch is 0; expected at least 1"),
        ({"patch": 4}, r"network.patch is 4 and network.channels \(\); expected 1"),
        ({"memory": -1}, "network.memory is -1; expected at least 0"),
        ({"blocks": -1}, "network.blocks is -1; expected at least 0"),
        ({"dtype": "float16"}, r"network.dtype is 'float16'; .*'float32', 'bfloat16'"),
    ],
)
def test_config_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        NetworkConfig(**wrong)


def test_burn_in_is_for_a_memory():
    with pytest.raises(ValueError, match=r"burn_in is 3; expected 0 to 0"):
        RuleAgentConfig(burn_in=3)
    remembering = NetworkConfig(memory=2)
    assert RuleAgentConfig(network=remembering, unroll_length=7, burn_in=7).burn_in == 7
    for burn_in in (8, -1):
        with pytest.raises(ValueError, match=rf"burn_in is {burn_in}; expected 0 to 7"):
            RuleAgentConfig(network=remembering, unroll_length=7, burn_in=burn_in)
