"""The hand-designed rules: numbers worked out by hand, and agents that learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import disco
from agents.optimizers import agent_optimizer
from disco import values
from tests.disco.common import relative_difference, targets_of

HALF = 0.5  # The discount throughout: it makes sums easy.
VALUES = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0])  # Of the five states of four transitions.
REWARDS = jnp.ones(4)

# G_3 = 1 + 5/2. Without an end G_t = 1 + G_{t+1}/2; a termination at t = 1 makes G_1 = 1, a cut
# there G_1 = 1 + V(s_2)/2 = 2.5.
RETURNS = {
    "no end": ([], [], [2.1875, 2.375, 2.75, 3.5]),
    "terminated": ([1], [1], [1.5, 1.0, 2.75, 3.5]),
    "cut": ([1], [], [2.25, 2.5, 2.75, 3.5]),
}
# Those of REINFORCE end with the trajectory, and with a cut.
SUMS = {
    "no end": ([], [], [1.875, 1.75, 1.5, 1.0]),
    "terminated": ([1], [1], [1.5, 1.0, 1.5, 1.0]),
    "cut": ([1], [], [1.5, 1.0, 1.5, 1.0]),
}


def one_trajectory(last, terminated, num_actions: int = 2) -> disco.Trajectory:
    def flags(steps):
        return jnp.zeros((4, 1)).at[jnp.array(steps, int)].set(1.0)

    return disco.Trajectory(
        observation=jnp.zeros((5, 1)),
        action=jnp.zeros((4, 1), int),
        reward=REWARDS[:, None],
        discount=1.0 - flags(terminated),
        last=flags(last).astype(bool),
        behaviour_logits=jnp.zeros((4, 1, num_actions)),
        mask=jnp.ones((4, 1), bool),
    )


@pytest.mark.parametrize("end", RETURNS)
@pytest.mark.parametrize("name", ["actor_critic", "policy_gradient"])
def test_returns_of_an_on_policy_trajectory(name, end):
    last, terminated, returns = (RETURNS if name == "actor_critic" else SUMS)[end]
    rule = disco.hand_designed(name, discount=HALF)
    trajectory = one_trajectory(last, terminated)
    outputs = {"logits": jnp.zeros((5, 1, 2)), "value": VALUES[:, None, None]}
    targets, _ = targets_of(rule, outputs, None, trajectory, rule.init({}))
    np.testing.assert_allclose(targets.value[:, 0], returns, rtol=1e-6)
    np.testing.assert_allclose(
        targets.advantage[:, 0], np.array(returns) - np.arange(1, 5), rtol=1e-6
    )


@pytest.mark.parametrize(("last", "terminated", "returns"), RETURNS.values(), ids=RETURNS)
def test_retrace_with_one_action_is_the_lambda_return(last, terminated, returns):
    q = VALUES[:, None, None]
    trajectory = one_trajectory(last, terminated, num_actions=1)
    estimates = values.retrace(jnp.zeros((5, 1, 1)), q, q, trajectory, discount=HALF, lambda_=1.0)
    np.testing.assert_allclose(estimates.q_target[:, 0], returns, rtol=1e-6)


@pytest.mark.parametrize(
    ("policy", "behaviour", "advantage"),
    # One step: reward 1, V = 1, V' = 2, so that delta = 1 + 2/2 - 1 = 1, times min(1, pi / mu).
    [(0.25, 0.5, 0.5), (0.8, 0.4, 1.0)],
)
def test_vtrace_weighs_by_the_clipped_importance_ratio(policy, behaviour, advantage):
    def logits(probability, rows):
        row = jnp.log(jnp.array([probability, 1.0 - probability]))
        return jnp.broadcast_to(row, (rows, 1, 2))

    whole = one_trajectory([], [])
    trajectory = dataclasses.replace(
        jax.tree.map(lambda x: x[:1], whole),
        observation=jnp.zeros((2, 1)),
        behaviour_logits=logits(behaviour, 1),
    )
    rule = disco.ActorCritic(discount=HALF)
    outputs = {"logits": logits(policy, 2), "value": VALUES[:2, None, None]}
    targets, _ = targets_of(rule, outputs, None, trajectory, rule.init({}))
    np.testing.assert_allclose(targets.advantage, [[advantage]], rtol=1e-6)
    np.testing.assert_allclose(targets.value, [[1.0 + advantage]], rtol=1e-6)


def test_actor_critic_loss_by_hand():
    """-A log pi + (G - V)^2 / 4 - entropy / 100, with pi uniform over two actions."""
    rule = disco.ActorCritic(discount=HALF, value_cost=0.5, entropy_cost=0.01)
    trajectory = one_trajectory([], [])
    outputs = {"logits": jnp.zeros((5, 1, 2)), "value": VALUES[:, None, None]}
    targets, _ = targets_of(rule, outputs, None, trajectory, rule.init({}))
    losses, _ = rule.transition_losses(outputs, targets, trajectory)
    difference = np.array(RETURNS["no end"][2]) - np.arange(1, 5)
    expected = difference * np.log(2) + 0.25 * difference**2 - 0.01 * np.log(2)
    np.testing.assert_allclose(losses[:, 0], expected, rtol=1e-5)


def test_categorical_and_scalar_values_mean_the_same():
    trajectory = one_trajectory([1], [])
    codes = values.signed_hyperbolic(VALUES)[:, None]
    # Logits of a two-hot code; -100 stands for no probability.
    categorical = jnp.log(values.two_hot(codes, 41, 4.0) + jnp.exp(-100.0))
    logits = jnp.zeros((5, 1, 2))

    def targets(rule, value):
        outputs = {"logits": logits, "value": value}
        return targets_of(rule, outputs, None, trajectory, rule.init({}))[0]

    scalar = targets(disco.ActorCritic(discount=HALF), VALUES[:, None, None])
    transformed = targets(disco.ActorCritic(discount=HALF, transform_value=True), codes[..., None])
    binned = targets(disco.ActorCritic(discount=HALF, num_bins=41, max_value=4.0), categorical)
    assert relative_difference(transformed, scalar) < 1e-4
    assert relative_difference(binned, scalar) < 1e-3


RULES = {
    "actor-critic": disco.ActorCritic(),
    "categorical actor-critic": disco.ActorCritic(num_bins=21, max_value=2.0),
    "normalised actor-critic": disco.ActorCritic(normalize_advantage=True),
    "policy gradient": disco.PolicyGradient(),
    "hand-set": disco.HandSetRule(num_bins=21, max_value=2.0, advantage_weight=3.0),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_learns_which_action_pays_in_which_context(rule):
    """A contextual bandit: three contexts, three actions, 1 for the action of the context."""

    def unroll(params, trajectory):
        shapes = rule.output_shapes(3)
        return {k: jnp.tensordot(trajectory.observation, params[k], 1) for k in shapes}

    params = {k: jnp.zeros((3, *shape)) for k, shape in rule.output_shapes(3).items()}
    optimizer = agent_optimizer(0.02)

    def update(agent, key):
        params, optimizer_state, state = agent
        context_key, action_key = jax.random.split(key)
        context = jax.random.randint(context_key, (5, 16), 0, 3)
        observation = jax.nn.one_hot(context, 3)
        logits = (observation @ params["logits"])[:-1]
        action = jax.random.categorical(action_key, logits)
        reward = (action == context[:-1]).astype(float)
        trajectory = disco.Trajectory(
            observation=observation,
            action=action,
            reward=reward,
            discount=jnp.zeros_like(reward),
            last=jnp.ones_like(reward, bool),
            behaviour_logits=logits,
            mask=jnp.ones_like(reward, bool),
        )
        gradients, aux = rule.gradient(params, state, trajectory, unroll)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        agent = (optax.apply_updates(params, updates), optimizer_state, aux.state)
        return agent, (jnp.mean(reward), aux.metrics["td"])

    agent = (params, optimizer.init(params), rule.init(params))
    keys = jax.random.split(jax.random.key(0), 500)
    (params, _, _), (reward, td) = jax.jit(lambda a: jax.lax.scan(update, a, keys))(agent)
    assert float(jnp.mean(reward[:5])) < 0.5
    assert float(jnp.mean(reward[-20:])) > 0.9
    assert abs(float(jnp.mean(td[-20:]))) < 0.1


def test_refuses_unknown_names():
    with pytest.raises(ValueError, match=r"'ppo'; known are \['actor_critic', 'hand_set', 'pol"):
        disco.hand_designed("ppo")
    with pytest.raises(ValueError, match=r"no hyper-parameters \['lamda'\]; it has .*'lambda_'"):
        disco.hand_designed("actor_critic", lamda=0.9)
    with pytest.raises(ValueError, match="num_bins is 10"):
        disco.ActorCritic(num_bins=10)
