import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgent, RuleAgentConfig, to_trajectory
from disco.types import taken
from evaluation import playing
from evaluation.config import EvaluationConfig
from evaluation.contenders import rule_contenders
from evaluation.evaluate import Experiment
from evaluation.studies import analysis, predictions
from evaluation.studies.ablations import WithoutBootstrapping, without_predictions
from evaluation.studies.analysis import AnalysisConfig, analyse
from evaluation.studies.policy_updates import influence
from evaluation.studies.predictions import (
    information,
    learner_outputs,
    outputs_along,
    quantities,
    saliency,
    slice_trajectory,
)
from tests.disco.common import TEN_FEATURES, small_rule
from training import iteration

CONFIG = RuleAgentConfig(
    network=NetworkConfig(torso=(16,), model=8, head=(8,)),
    num_environments=4,
    unroll_length=8,
    batch_size=4,
    replay_ratio=0.0,
)
HIDDEN = {
    "own": WithoutBootstrapping,
    "all": without_predictions,
}


@pytest.fixture(scope="module")
def task():
    return environments.make("catch/5x5")


@pytest.fixture(scope="module")
def rule():
    return disco.load("grid57")


@pytest.fixture(scope="module")
def agent(rule, task):
    return RuleAgent.create(CONFIG, task.dynamics, rule)


@pytest.fixture(scope="module")
def learner(agent, rule, task):
    return learn(agent, task, num_updates=3)


def learn(agent, task, num_updates):
    """The learner after some updates."""
    dynamics, key = task.dynamics, jax.random.key(0)

    @jax.jit
    def update(state, key):
        return iteration.advance(agent, dynamics, task.params, state, key, state.updates)[0]

    state = iteration.init(agent, dynamics, task.params, key)
    for i in range(num_updates):
        state = update(state, jax.random.fold_in(key, i))
    return state.learner


@pytest.fixture(scope="module")
def trajectory(agent, learner, task):
    return to_trajectory(playing.play(agent, learner, task, 12, num_environments=4, seed=0))


@pytest.fixture(scope="module")
def outputs(agent, learner, trajectory):
    return learner_outputs(agent, learner, trajectory)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_predictions_change_no_target_that_they_are_hidden_from(
    hidden, rule, learner, outputs, trajectory
):
    blind = HIDDEN[hidden](rule)
    own, target = outputs
    other = {**own, "y": own["y"] + jnp.arange(float(own["y"].shape[-1])), "z": -own["z"]}

    @jax.jit
    def targets(rule, outputs):
        return rule.targets(outputs, target, trajectory, learner.rule_state)[0]

    before, after = targets(blind, own), targets(blind, other)
    np.testing.assert_array_equal(before.y, after.y)
    np.testing.assert_array_equal(before.z, after.z)
    if hidden == "all":
        np.testing.assert_array_equal(before.pi, after.pi)
    else:
        np.testing.assert_array_equal(before.pi, targets(rule, own).pi)
        assert np.abs(before.pi - after.pi).max() > 1e-4
    assert np.abs(targets(rule, own).y - targets(rule, other).y).max() > 1e-5


def test_later_predictions_reach_into_the_rules_targets(rule, learner, outputs, trajectory):
    own, target = outputs
    key = jax.random.key(1)
    found = influence(rule, own, target, trajectory, learner.rule_state, key)
    # An episode of catch/5x5 has four transitions: a state is at most four after a transition's.
    for name in ("pi", "y", "z"):
        assert found[name].shape == (13,)
        assert (found[name][:4] > 0).all(), name
        assert np.isnan(found[name][-1]), name
    assert found["q_target"][0] == 0.0  # Returns do not read z.


def test_a_part_of_a_trajectory_has_the_frames_that_the_network_stacks(rule, task):
    config, key = dataclasses.replace(CONFIG, frame_stack=3), jax.random.key(0)
    agent = RuleAgent.create(config, task.dynamics, rule)
    born = agent.init(key)
    trajectory = to_trajectory(playing.play(agent, born, task, 12, num_environments=4, seed=0))
    whole, _ = learner_outputs(agent, born, trajectory)
    part, _ = learner_outputs(agent, born, slice_trajectory(trajectory, 5, 2))
    np.testing.assert_allclose(part["logits"], whole["logits"][5:8], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_saliency_is_the_norm_of_the_jacobian(rule, agent, learner, trajectory):
    alone = jax.tree.map(lambda x: x[:, :1], trajectory)
    found = saliency(
        rule, agent, learner.params, alone, row=3, key=jax.random.key(0), num_probes=400
    )
    assert set(found) == {"y", "z", "policy", "value"}

    def logits(frame):
        frames = jnp.asarray(alone.observation, jnp.float32).at[3, 0].set(frame)
        moved = dataclasses.replace(alone, observation=frames)
        outputs = agent.network.unroll(learner.params, moved)
        return outputs["logits"][3, 0], outputs[taken("z")][3, 0]

    for name, jacobian in zip(
        ("policy", "z"), jax.jacrev(logits)(jnp.float32(alone.observation[3, 0])), strict=True
    ):
        exact = np.sqrt(np.square(jacobian).sum(axis=0))
        np.testing.assert_allclose(found[name], exact, rtol=0.3, atol=0.05 * exact.max())


def test_quantities_by_hand(rule, trajectory, agent, learner):
    outputs = outputs_along(agent, learner.params, trajectory)
    zeros = {name: np.zeros_like(x) for name, x in outputs.items()}
    known = quantities(rule, zeros, trajectory)
    np.testing.assert_allclose(known["policy's entropy (nats)"], np.log(3), rtol=1e-6)
    size = outputs["y"].shape[-1]
    np.testing.assert_allclose(known["confidence of y (nats)"], -np.log(size), rtol=1e-6)
    np.testing.assert_allclose(known["value"], 0.0, atol=1e-6)
    np.testing.assert_array_equal(known["reward"], trajectory.reward)


@pytest.mark.slow
def test_probes_find_what_is_there_and_nothing_else(rule, trajectory):
    """y tells in how many steps the reward comes, the others nothing."""
    rng = np.random.default_rng(0)
    steps, batch = 400, 2
    reward = (rng.random((steps, batch)) < 0.05).astype(np.float32)
    ahead = np.zeros((steps, batch))
    for t in range(steps):
        later = reward[t + 1 : t + 5]
        ahead[t] = np.where(later.any(axis=0), 1.0, 0.0)
    noise = rng.normal(size=(steps + 1, batch, 6)).astype(np.float32)
    y = noise.copy()
    y[:-1, :, 0] += 8.0 * ahead
    outputs = {
        "y": y,
        taken("z"): noise[:-1],
        "logits": rng.normal(size=(steps + 1, batch, 3)).astype(np.float32),
        "q": np.zeros((steps + 1, batch, 3, rule.num_bins), np.float32),
    }
    numpy: Any = np  # A type checker takes its arrays for none.
    made_up = disco.Trajectory(
        observation=None,
        action=numpy.zeros((steps, batch), np.int32),
        reward=numpy.asarray(reward),
        discount=numpy.ones((steps, batch), np.float32),
        last=numpy.zeros((steps, batch), bool),
        behaviour_logits=numpy.zeros((steps, batch, 3), np.float32),
        mask=numpy.ones((steps, batch), bool),
    )
    found = information(rule, outputs, made_up, horizon=4, seed=0)
    scores = {name: mean for name, (mean, _) in found["large reward (accuracy)"].items()}
    assert scores["y"] > 0.95
    for name in ("z", "policy", "value"):
        assert scores[name] < scores["chance"] + 0.05
    entropy = {name: mean for name, (mean, _) in found["future entropy (R²)"].items()}
    assert max(entropy.values()) < 0.2


def test_what_never_happens_is_not_probed(rule, trajectory, agent, learner):
    outputs = outputs_along(agent, learner.params, trajectory)
    unpaid = dataclasses.replace(trajectory, reward=np.zeros_like(trajectory.reward))
    found = information(rule, outputs, unpaid, horizon=2, seed=0, max_iter=2)
    assert set(found) == {"future entropy (R²)"}


def test_what_happens_once_is_not_probed(rule, trajectory, agent, learner):
    """Early stopping holds samples of each class out, so that one of them is too few."""
    outputs = outputs_along(agent, learner.params, trajectory)
    reward = np.zeros_like(trajectory.reward)
    reward[1, 0] = 1.0
    paid = dataclasses.replace(trajectory, reward=reward)
    found = information(rule, outputs, paid, horizon=2, seed=0, max_iter=2)
    assert set(found) == {"future entropy (R²)"}


@pytest.mark.parametrize(
    ("rewards", "large"),
    [
        ([0.0, 1.0, -1.0, 1.0], [False, True, False, True]),
        ([-10.0, -10.0, 1.0, 0.0], [False, False, True, False]),
        ([1.0, 2.0, 3.0, -0.1], [False, False, True, False]),
        ([0.0, -1.0, 0.0, -2.0], [False, False, False, False]),
    ],
)
def test_large_rewards_are_the_highest_of_the_positive_ones(rewards, large):
    values = np.array([rewards]).T
    np.testing.assert_array_equal(predictions._is_large(values)[:, 0], large)


def test_no_probe_is_trained_on_what_it_is_tested_on():
    """No step that a test target is made of is one that a training target is made of."""
    usable, batch, horizon = 40, 3, 4
    splits = predictions._splits(usable, batch, horizon)
    tested = np.concatenate([test for _, test in splits])
    np.testing.assert_array_equal(np.sort(tested), np.arange(usable * batch))
    for training, test in splits:
        steps, others = (
            {int(sample) // batch + i for sample in samples for i in range(1, horizon + 1)}
            for samples in (training, test)
        )
        assert not steps & others
        assert len(training) >= usable * batch - len(test) - 2 * (horizon - 1) * batch


def test_peaks_are_local_maxima_and_apart():
    values = np.zeros(60)
    values[[5, 7, 30, 50]] = 4.0, 3.0, 2.0, 1.0
    assert analysis._peaks(values) == [5, 30, 50]
    assert analysis._peaks(np.arange(60.0)) == []
    waves = np.sin(np.arange(200.0) / 4) + np.arange(200.0) / 100
    peaks = analysis._peaks(waves)
    assert len(peaks) == 4
    assert all(waves[x] > max(waves[x - 1], waves[x + 1]) for x in peaks)
    assert peaks[0] > 75  # The last four of eight.


@pytest.mark.slow
def test_from_training_to_the_page(tmp_path, task):
    config = EvaluationConfig(agent=CONFIG, seeds=2, budget=96, num_points=2, resamples=10)
    settings = AnalysisConfig(steps=60, environments=4, horizon=3)
    (contender,) = rule_contenders(["grid57"], config)
    files = analyse(Experiment([task], config, tmp_path), contender, settings)
    assert tmp_path / "analysis.json" in files
    numbers = json.loads((tmp_path / "analysis.json").read_text())["catch/5x5"]
    assert max(x for x in numbers["influence"]["y of the rule"][1:] if x is not None) > 0
    assert "future entropy (R²)" in numbers["information"]
    page = (tmp_path / "index.html").read_text()
    for heading in ("Along an episode", "Saliency", "Bootstrapping", "Information"):
        assert f"<h3>{heading}</h3>" in page
    assert "y and z hidden from all targets" in page
    assert page.count("<figure>") >= 5


@pytest.mark.slow
def test_a_rule_without_predictions_has_the_weights_of_its_prior(tmp_path, task):
    config = EvaluationConfig(agent=CONFIG, seeds=1, budget=96, num_points=2, resamples=10)
    settings = AnalysisConfig(steps=60, environments=4, horizon=3)
    sizes = dataclasses.replace(TEN_FEATURES, prior_outputs=2, agent_features=2)
    rule = small_rule(
        0,
        sizes,
        policy_prior=0.9,
        advantage_weight=2.0,
        reads_predictions=False,
        y_cost=0.0,
        z_cost=0.0,
    )
    disco.save(rule, tmp_path / "own.npz")
    (contender,) = rule_contenders([str(tmp_path / "own.npz")], config)
    analyse(Experiment([task], config, tmp_path), contender, settings)
    numbers = json.loads((tmp_path / "analysis.json").read_text())
    weights = {"policy_prior", "advantage_weight"}
    assert set(numbers["catch/5x5"]["weights"]) == weights
    assert set(numbers["catch/5x5"]["correlations"]) == weights
    assert set(numbers["push"]["by_ratio"]) >= {"PPO", "DPO"}
    page = (tmp_path / "index.html").read_text()
    for heading in ("By the ratio", "Weights of the policy target's prior, by age"):
        assert f"<h3>{heading}</h3>" in page
    assert "<h3>Saliency</h3>" not in page


def test_other_rules_are_refused(tmp_path, task):
    with pytest.raises(ValueError, match="steps is 10; expected at least 100"):
        AnalysisConfig(steps=10)
    config = EvaluationConfig()
    (contender,) = rule_contenders(["disco:ActorCritic"], config)
    with pytest.raises(ValueError, match="is not a discovered rule"):
        analyse(Experiment([task], config, tmp_path), contender, AnalysisConfig())
