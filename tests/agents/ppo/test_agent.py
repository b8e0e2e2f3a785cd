"""PPO at work: minibatches, annealing, what is refused, and that it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import environments
from agents import registry
from agents.networks import NetworkConfig
from agents.ppo.algorithm import PPOAgent
from agents.ppo.config import PPOConfig
from agents.rule_agent import to_trajectory
from training import device, iteration
from training.records import Run
from training.schedule import TrainingConfig

TASK = environments.make("catch/5x4")
LENGTH, WIDTH = 6, 4
CONFIG = PPOConfig(
    network=NetworkConfig(torso=(16,)),
    separate_value_network=False,
    num_epochs=4,
    num_environments=WIDTH,
    unroll_length=LENGTH,
    num_minibatches=3,
)
RECURRENT = {"network": NetworkConfig(torso=(16,), memory=5), "num_minibatches": 2}


def agent_of(**changes) -> PPOAgent:
    return PPOAgent.create(dataclasses.replace(CONFIG, **changes), TASK.dynamics)


def unroll_of(agent: PPOAgent):
    """The learning state, and the second unroll, within which episodes end."""
    dynamics = TASK.dynamics
    assert isinstance(dynamics, environments.JaxEnvironment)

    @jax.jit
    def unrolls(key):
        state = iteration.init(agent, dynamics, (), key)
        state, _, _ = iteration.collect(agent, dynamics, (), state, jax.random.key(0))
        state, batch, _ = iteration.collect(agent, dynamics, (), state, jax.random.key(1))
        return state.learner, batch

    return unrolls(jax.random.key(0))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"separate_value_network": True},
        {"frame_stack": 3},
        RECURRENT,
        RECURRENT | {"frame_stack": 2},
    ],
    ids=["plain", "separate", "stacked", "recurrent", "recurrent and stacked"],
)
def test_minibatches_have_the_outputs_of_whole_unrolls(changes):
    """Each transition is in one minibatch, with the logits, values and estimates that it has."""
    agent = agent_of(**changes)
    state, batch = unroll_of(agent)
    trajectory = to_trajectory(batch)
    samples = jax.jit(agent.samples)(state.params, trajectory)
    unroll = jax.jit(agent.network.unroll)
    whole = unroll(state.params, trajectory)
    minibatch_of = jax.jit(agent._minibatch)
    seen = np.zeros(samples.action.shape, int)
    order = jax.random.permutation(jax.random.key(0), agent.config.num_samples)
    for index in np.asarray(order).reshape(agent.config.num_minibatches, -1):
        minibatch, chosen = minibatch_of(trajectory, samples, jnp.asarray(index))
        outputs = dict(unroll(state.params, minibatch))
        if agent.config.network.memory:
            where = (np.arange(LENGTH)[:, None], index[None])
            outputs = jax.tree.map(lambda x: x[:-1], outputs)
        else:
            where = (index[None] // WIDTH, index[None] % WIDTH)
        for name in ("logits", "value"):
            np.testing.assert_allclose(outputs[name], whole[name][where], rtol=1e-5, atol=1e-6)
        for one, every in zip(jax.tree.leaves(chosen), jax.tree.leaves(samples), strict=True):
            np.testing.assert_array_equal(one, every[where])
        seen[where] += 1
    assert np.all(seen == 1)


def test_samples_that_do_not_divide_are_left_out_at_random():
    agent = agent_of(num_minibatches=5)
    assert (agent.config.num_samples, agent.config.minibatch_size) == (24, 4)
    state, batch = unroll_of(agent)
    update = jax.jit(lambda key: agent.update(state, batch, key, "update").state.params)
    first, second = (update(jax.random.key(seed)) for seed in range(2))
    assert not np.array_equal(first, second)
    assert np.isfinite(first).all()


def test_behaviour_probabilities_are_those_of_the_policy_before_the_update():
    agent = agent_of(num_epochs=1, num_minibatches=1)
    state, batch = unroll_of(agent)
    update = jax.jit(agent.update, static_argnums=3)
    updated = update(state, batch, jax.random.key(0), "update")
    assert float(updated.metrics["kl_from_behaviour"]) == pytest.approx(0.0, abs=1e-6)
    assert float(updated.metrics["clipped_fraction"]) == 0.0
    update = jax.jit(agent_of(num_epochs=3).update, static_argnums=3)
    several = update(state, batch, jax.random.key(0), "update")
    assert float(several.metrics["kl_from_behaviour"]) > 0.0


def test_every_minibatch_is_a_step_of_the_optimiser():
    agent = agent_of(num_epochs=3, num_minibatches=2)
    per_unroll = CONFIG.num_environments * CONFIG.unroll_length
    assert agent.requirements.gradient_steps_per_step == pytest.approx(3 * 2 / per_unroll)


def test_the_learning_rate_falls_to_zero_over_the_updates():
    """Two updates of four gradient steps each: with the peak, half of it, and then 0."""
    agent = agent_of(total_steps=48, num_epochs=2, num_minibatches=2, max_gradient_norm=0.0)
    optimizer, params = agent.optimizer, jnp.zeros(3)
    state, steps = optimizer.init(params), []
    for _ in range(10):
        change, state = optimizer.update(jnp.ones(3), state, params)
        steps.append(-np.asarray(change)[0] / agent.config.learning_rate)
    np.testing.assert_allclose(steps, [1.0] * 4 + [0.5] * 4 + [0.0] * 2, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_minibatches": 13},
            "num_minibatches is 13; expected at most 12, with at least 2 of the 24",
        ),
        ({"drift": "bounce"}, "drift is 'bounce'; expected one of clip, dpo"),
        ({"clip": 0.0}, "clip is 0.0; expected"),
        ({"discount": 1.5}, "discount is 1.5; expected 0 to 1"),
        (
            {"network": NetworkConfig(memory=4), "num_minibatches": 5},
            "num_minibatches is 5; expected at most 4, with at least 1 of the 4 unrolls",
        ),
        (
            {"network": NetworkConfig(memory=4), "separate_value_network": True},
            "expected one network where there is a memory",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_it_is_made_by_name():
    ppo, dpo = (
        registry.configured("ppo/learning_rate=1e-3,num_epochs=2"),
        registry.configured("dpo"),
    )
    assert (ppo.config.drift, ppo.config.learning_rate, ppo.config.num_epochs) == ("clip", 1e-3, 2)
    cleanrl = registry.configured("ppo/cleanrl")
    assert dpo.config == dataclasses.replace(cleanrl.config, drift="dpo")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ppo/epochs=2", "ppo has no setting 'epochs'; expected one of .*num_epochs"),
        ("ppo/num_epochs=two", "ppo's num_epochs is 'two'; expected a number without"),
        ("ppo/large", "ppo has the parameters 'large'; expected one preset of sb3, cleanrl"),
    ],
)
def test_unknown_settings_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        registry.configured(name)


def test_continuous_actions_are_refused():
    pytest.importorskip("dm_control")
    task = environments.make("control_proprio/cartpole_swingup")
    with pytest.raises(ValueError, match="continuous actions"):
        registry.configured("ppo").make(task)


@pytest.mark.parametrize("drift", ["clip", "dpo"])
def test_it_learns_catch(drift, tmp_path):
    config = PPOConfig(
        network=NetworkConfig(torso=(32,)),
        drift=drift,
        learning_rate=3e-3,
        num_environments=8,
        unroll_length=16,
        num_epochs=4,
        num_minibatches=4,
    )
    agent = PPOAgent.create(config, TASK.dynamics)
    settings = TrainingConfig(num_steps=30_000, interval=5_000)
    runs = [Run(TASK, seed, tmp_path / str(seed)) for seed in range(2)]
    for result in device.train(agent, runs, settings, tmp_path / "together"):
        last = result.episodes[-1]
        assert last.return_sum / last.episodes > 0.8
