"""The inner loop, and the meta-gradient through it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.networks import Network, NetworkConfig
from agents.rule_agent import LearnerState, RuleAgent
from meta import inner_loop
from meta.config import DiscoveryConfig, ObjectiveConfig, PopulationConfig, ValueFunctionConfig
from meta.groups import AgentGroup
from meta.meta_step import meta_gradient
from meta.objective import TargetStatistics, ValueFunction, meta_loss, target_statistics
from tests.agents.common import Specs
from tests.disco.common import (
    float64,
    mlp_params,
    mlp_unroll,
    random_state,
    random_trajectory,
    relative_difference,
)
from tests.environments.streams import dynamics_of
from tests.meta.common import AGENT, small_rule
from training import iteration

K = 4


@dataclasses.dataclass(frozen=True)
class Recorded:
    """An agent and its experience, so that only learning remains to be done."""

    agent: RuleAgent
    learner: LearnerState
    batches: disco.Trajectory
    validation: disco.Trajectory
    advantage: jax.Array


class Unrolled(Network):
    """A network of `mlp_params`."""

    def unroll(self, params, trajectory):
        return mlp_unroll(params, trajectory)


def recorded(rule: disco.DiscoveredRule) -> Recorded:
    trajectories = [
        random_trajectory(seed, num_transitions=5, batch_size=2) for seed in range(K + 1)
    ]
    agent = RuleAgent(
        config=dataclasses.replace(AGENT, learning_rate=1e-2),
        network=Unrolled(NetworkConfig(), Specs(None, num_actions=3), shapes=()),
        rule=rule,
    )
    params = mlp_params(rule, trajectories[0], seed=1)
    # In the middle of a lifetime: moments that are not zero, a target network of its own.
    learner = LearnerState(
        params=params,
        optimizer=agent.optimizer.init(params),
        rule_state=disco.RuleState(
            target_params=mlp_params(rule, trajectories[0], seed=2),
            memory=random_state(rule).memory,
        ),
    )
    validation = trajectories.pop()
    return Recorded(
        agent=agent,
        learner=learner,
        batches=jax.tree.map(lambda *x: jnp.stack(x), *trajectories),
        validation=validation,
        advantage=jnp.asarray(np.random.default_rng(0).normal(size=validation.reward.shape)),
    )


def score(experience: Recorded, params, statistics) -> jax.Array:
    outputs = experience.agent.network.unroll(params, experience.validation)
    loss, _ = meta_loss(
        ObjectiveConfig(), outputs, experience.advantage, experience.validation, statistics
    )
    return loss


def run_inner_loop(experience: Recorded, rule: disco.DiscoveredRule):
    """(learner, residuals) after the updates on the recorded batches."""

    def update(learner, batch):
        learner, residuals, _ = inner_loop.update_with_residuals(
            dataclasses.replace(experience.agent, rule=rule), learner, batch
        )
        return learner, residuals

    return jax.lax.scan(update, experience.learner, experience.batches)


def mixed_mode(experience: Recorded, rule, segment_length: int):
    """(objective, meta-gradient, learner of the inner loop, learner of the differentiable one)."""
    updated, residuals = run_inner_loop(experience, rule)

    def loss_of(rule):
        learner, statistics = inner_loop.differentiable_inner_loop(
            experience.agent, rule, experience.learner, residuals, segment_length
        )
        return score(experience, learner.params, statistics), learner

    (loss, rebuilt), gradient = jax.value_and_grad(loss_of, has_aux=True)(rule)
    return loss, gradient, updated, rebuilt


def plain(experience: Recorded, rule):
    """(objective, meta-gradient) in reverse over reverse, from the rule's definition alone."""
    unroll = experience.agent.network.unroll

    def loss_of(rule):
        learner, statistics = experience.learner, []
        params, target_params = learner.params, learner.rule_state.target_params
        memory, optimizer = learner.rule_state.memory, _Adam(params)
        for k in range(K):
            batch = jax.tree.map(lambda x, k=k: x[k], experience.batches)
            target_outputs = unroll(target_params, batch)
            targets, state = rule.targets(
                unroll(params, batch),
                target_outputs,
                batch,
                disco.RuleState(target_params=target_params, memory=memory),
            )
            memory = state.memory
            gradients = jax.grad(
                lambda p, batch=batch, targets=targets: rule.output_loss(
                    unroll(p, batch), targets, batch
                )[0]
            )(params)
            keep = rule.target_params_coefficient
            target_params = jax.tree.map(
                lambda old, p, keep=keep: keep * old + (1 - keep) * p, target_params, params
            )
            params = jax.tree.map(lambda p, u: p - 1e-2 * u, params, optimizer.update(gradients))
            statistics.append(target_statistics(targets, target_outputs["logits"]))
        return score(experience, params, jax.tree.map(lambda *x: jnp.stack(x), *statistics))

    return jax.value_and_grad(loss_of)(rule)


class _Adam:
    """The agent's optimiser, from its definition."""

    def __init__(self, params):
        self._step = 0
        self._mean = self._square = jax.tree.map(jnp.zeros_like, params)

    def update(self, gradients):
        self._step += 1
        constant = jax.lax.stop_gradient(gradients)
        self._mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self._mean, gradients)
        self._square = jax.tree.map(
            lambda v, g: 0.999 * v + 0.001 * jnp.square(g), self._square, constant
        )
        corrections = (1 - 0.9**self._step, 1 - 0.999**self._step)
        return jax.tree.map(
            lambda m, v: jnp.clip(
                m / corrections[0] / (jnp.sqrt(v / corrections[1]) + 1e-8), -1.0, 1.0
            ),
            self._mean,
            self._square,
        )


@pytest.fixture(scope="module")
def plain_meta_gradient():
    with float64():
        rule = small_rule()
        return jax.device_get(jax.jit(lambda rule: plain(recorded(rule), rule))(rule))


@pytest.mark.parametrize(
    "segment_length",
    [2, *(pytest.param(x, marks=pytest.mark.thorough) for x in (4, 1))],
)
def test_mixed_mode_equals_reverse_over_reverse(segment_length, plain_meta_gradient):
    with float64():
        rule = small_rule()
        loss, gradient, updated, rebuilt = jax.jit(
            lambda rule: mixed_mode(recorded(rule), rule, segment_length)
        )(rule)

    assert relative_difference((loss, gradient), plain_meta_gradient) < 1e-9
    # Every meta-parameter is learned, those of the RNN across updates included.
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(plain_meta_gradient[1]))
    assert relative_difference(rebuilt.params, updated.params) < 1e-13


def test_the_differentiable_inner_loop_reproduces_the_inner_loop_exactly():
    """On a real environment, with replay, in float32."""
    rule = small_rule()
    environment = environments.make("catch/4x3")
    dynamics, task = dynamics_of(environment), environment.params
    template = RuleAgent.create(AGENT, dynamics, rule)
    value_function = ValueFunction.create(
        ValueFunctionConfig(hidden=(4,)), dynamics.observation_spec()
    )

    @jax.jit
    def both(rule, key):
        agent = dataclasses.replace(template, rule=rule)
        state = iteration.init(agent, dynamics, task, key)
        value_state = value_function.init(key)
        updated, _, residuals, _, _ = inner_loop.inner_loop(
            agent, dynamics, value_function, state, value_state, task, key, 2
        )
        rebuilt, _ = inner_loop.differentiable_inner_loop(agent, rule, state.learner, residuals, 1)
        return updated, rebuilt, state.learner

    updated, rebuilt, before = both(rule, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, rebuilt, updated.learner)
    assert int(updated.updates) == 2
    assert not np.array_equal(
        jax.tree.leaves(updated.learner.params)[0], jax.tree.leaves(before.params)[0]
    )


def test_segment_length_must_divide_the_number_of_updates():
    experience = recorded(rule := small_rule())
    with pytest.raises(ValueError, match="segment_length 3 does not divide K = 4"):
        jax.eval_shape(lambda rule: mixed_mode(experience, rule, 3), rule)


def test_agents_without_predictions_have_no_entropy_of_them_in_the_objective():
    """Uniform predictions with it, on the other hand, add their greatest entropy."""
    experience = recorded(rule := small_rule())
    outputs = mlp_unroll(experience.learner.params, experience.validation)
    own = {name: outputs[name] for name in ("logits", "q")}
    uniform = own | {name: jnp.zeros_like(outputs[name]) for name in ("y", "z")}
    statistics = TargetStatistics(
        **dict.fromkeys(("pi_mean", "y_mean", "z_mean", "policy_kl"), jnp.zeros(K))
    )
    config = ObjectiveConfig(prediction_entropy_cost=0.5)
    (loss, metrics), (with_uniform, _) = (
        meta_loss(config, x, experience.advantage, experience.validation, statistics)
        for x in (own, uniform)
    )
    assert not {"y_entropy", "z_entropy"} & set(metrics)
    greatest = 2 * np.log(rule.sizes.prediction)
    assert float(loss - with_uniform) == pytest.approx(0.5 * greatest, rel=1e-5)


def test_illegal_actions_leave_the_meta_gradient_finite():
    """Their logits are -inf; in the last state, and in a masked one, no action is legal."""
    rule = small_rule()
    experience = recorded(rule)
    validation = experience.validation
    mask = validation.mask.at[2, 1].set(False)
    validation = dataclasses.replace(validation, mask=mask)

    class Masked(Unrolled):
        def unroll(self, params, trajectory):
            outputs = super().unroll(params, trajectory)
            is_legal = ~jax.nn.one_hot((trajectory.action + 1) % 3, 3, dtype=bool)
            is_legal = jnp.pad(is_legal, ((0, 1), (0, 0), (0, 0))) & trajectory_has_action
            return outputs | {"logits": jnp.where(is_legal, outputs["logits"], -jnp.inf)}

    trajectory_has_action = jnp.ones((6, 2, 1), bool).at[2, 1].set(False)
    batches = [jax.tree.map(lambda x, k=k: x[k], experience.batches) for k in range(K)]
    batches = [dataclasses.replace(x, mask=x.mask.at[2, 1].set(False)) for x in batches]
    batches = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    network = Masked(NetworkConfig(), Specs(None, num_actions=3), shapes=())
    agent = dataclasses.replace(experience.agent, network=network)
    experience = dataclasses.replace(experience, agent=agent, batches=batches)
    value_function = ValueFunction(
        ValueFunctionConfig(),
        init_params=lambda key: jax.random.normal(key, (1,)),
        apply=lambda params, observation: params[0] * jnp.mean(observation, axis=-1),
    )
    group = AgentGroup(
        agent=agent,
        dynamics=dynamics_of(environments.make("catch/5x5")),
        value_function=value_function,
        task_params=None,
        names=("catch/5x5",),
        indices=np.arange(1),
        padded_indices=np.arange(1),
        population=PopulationConfig(),
    )
    config = DiscoveryConfig()
    _, residuals = run_inner_loop(experience, rule)
    gradient, metrics, _ = meta_gradient(
        config,
        group,
        rule,
        value_function.init(jax.random.key(0)),
        experience.learner,
        residuals,
        validation,
    )
    assert np.isfinite(gradient).all()
    assert np.any(np.asarray(gradient) != 0.0)
    assert all(np.isfinite(x) for x in jax.tree.leaves(metrics))
