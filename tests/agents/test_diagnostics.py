"""Each agent learns the five diagnostic tasks: their values within 5%, and the best actions."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import disco
import environments
from agents.dice.algorithm import DiceAgent
from agents.dice.config import DiceConfig
from agents.dreamer.agent import DreamerAgent
from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import Discrete
from agents.iris.agent import IrisAgent
from agents.iris.config import IrisConfig
from agents.iris.learner import as_fractions
from agents.muesli.algorithm import MuesliAgent
from agents.muesli.config import MuesliConfig
from agents.muesli.losses import look_ahead
from agents.muzero.algorithm import MuZeroAgent
from agents.muzero.config import MuZeroConfig
from agents.networks import NetworkConfig
from agents.ppo.algorithm import PPOAgent
from agents.ppo.config import PPOConfig
from agents.protocol import Mode
from agents.rule_agent import RuleAgent, RuleAgentConfig
from disco import values
from environments.base import JaxEnvironment
from environments.suites import pixels
from environments.suites.diagnostic import KINDS
from tests.agents.tiny import dreamer, iris
from training import device
from training.records import Run
from training.schedule import TrainingConfig

DISCOUNT = 0.8
NETWORK = NetworkConfig(torso=(32,), model=16, head=(16,))
STEPS = 32_768
# By task: observations, and the values of both actions there.
EXPECTED: dict[str, list[tuple[float, tuple[float, float]]]] = {
    "constant_reward": [(0.0, (1.0, 1.0))],
    "value_of_observation": [(-1.0, (-1.0, -1.0)), (1.0, (1.0, 1.0))],
    "discounting": [(0.0, (DISCOUNT, DISCOUNT)), (1.0, (1.0, 1.0))],
    "best_action": [(0.0, (1.0, -1.0))],
    "action_of_observation": [(-1.0, (1.0, -1.0)), (1.0, (-1.0, 1.0))],
}


def rule_agent(
    rule: disco.Rule,
    learning_rate: float,
    replay_ratio: float = 0.0,
    unroll_length: int = 8,
    **changes: Any,
) -> Callable[[Any], Any]:
    config = RuleAgentConfig(
        network=NETWORK,
        learning_rate=learning_rate,
        num_environments=8,
        unroll_length=unroll_length,
        batch_size=round(8 / (1.0 - replay_ratio)),
        replay_ratio=replay_ratio,
        **changes,
    )
    return lambda dynamics: RuleAgent.create(config, dynamics, rule)


def ppo_agent(**changes) -> Callable[[Any], Any]:
    config = PPOConfig(
        network=NETWORK,
        learning_rate=5e-3,
        num_environments=8,
        unroll_length=16,
        num_epochs=4,
        num_minibatches=4,
        discount=DISCOUNT,
        value_cost=0.5,
        entropy_cost=0.01,
        **{"separate_value_network": False, **changes},
    )
    return lambda dynamics: PPOAgent.create(config, dynamics)


DREAMER = DreamerConfig(
    deterministic=64,
    latents=4,
    classes=4,
    blocks=1,
    units=32,
    layers=1,
    unimix=0.0,
    policy_unimix=0.0,
    free_nats=0.0,  # Else the prior of so few nats is not learned, and imagination is wrong.
    vector_cost=10.0,
    horizon=5,
    discount_horizon=1.0 / (1.0 - DISCOUNT),
    learning_rate=3e-3,
    warmup=0,
    batch_size=8,
    batch_length=8,
    replay_capacity=8_192,
    replay_ratio=24.0,
    num_environments=4,
    prefill=64,
)

IMAGE_SIDE = 8  # Of a colour: so few pixels make updates fast.
IRIS = IrisConfig(
    vocabulary=4,
    code_size=16,
    latent_channels=16,
    channels=16,
    groups=4,
    tile=4,
    multipliers=(1,),
    residual_blocks=1,
    memory_steps=3,
    layers=1,
    heads=2,
    width=32,
    dropout=0.0,
    actor_channels=(16,),
    lstm_size=16,
    horizon=3,
    burn_in=2,
    discount=DISCOUNT,
    learning_rate=3e-3,
    tokenizer_batch=8,
    world_model_batch=8,
    actor_critic_batch=16,
    epoch_steps=32,
    epoch_updates=8,
    tokenizer_start=2,
    world_model_start=16,
    actor_critic_start=48,
    replay_capacity=4_096,
    num_environments=4,
)


AGENTS: dict[str, Callable[[Any], Any]] = {
    "actor_critic": rule_agent(disco.ActorCritic(discount=DISCOUNT), 1e-2),
    # Its returns end with the trajectory, so that short ones would have smaller values.
    "policy_gradient": rule_agent(disco.PolicyGradient(discount=DISCOUNT), 2e-2, unroll_length=32),
    "impala": rule_agent(
        disco.ActorCritic(discount=DISCOUNT),
        1e-2,
        optimizer_kind="rmsprop",
        end_learning_rate=0.0,
        lifetime=STEPS,
        replay_ratio=0.5,
    ),
    "hand_set": rule_agent(disco.HandSetRule(discount=DISCOUNT, num_bins=41, max_value=3.0), 5e-3),
    "grid57": rule_agent(
        dataclasses.replace(disco.load("grid57"), discount=DISCOUNT),  # pyright: ignore
        5e-3,
    ),
    "ppo": ppo_agent(),
    "ppo, separate networks": ppo_agent(separate_value_network=True),
    "dpo": ppo_agent(drift="dpo"),
}


def learn(
    agent: Any, tasks: list[environments.Environment], num_steps: int, folder: pathlib.Path
) -> Iterator[tuple[str, Any]]:
    """Train on the task of each kind; yield the kinds and their learning states."""
    settings = TrainingConfig(num_steps=num_steps, interval=num_steps)
    runs = [Run(task, 0, folder / task.name) for task in tasks]
    results = device.train(agent, runs, settings, folder / "together")
    for kind, result in zip(KINDS, results, strict=True):
        assert result.is_finite
        yield kind, result.learner


def expected(kind: str) -> Iterator[tuple[list[float], tuple[float, float]]]:
    """Yield the observations from an episode's start to each state, and its action values."""
    before: list[float] = []
    for observation, action_values in EXPECTED[kind]:
        before = [*before, observation] if kind == "discounting" else [observation]
        yield before, action_values


def policy_and_value(agent: Any, state: Any, observation: float) -> tuple[np.ndarray, float]:
    """Action probabilities, and the value that the agent predicts."""
    rows = jnp.full((1, 1, 1), observation, jnp.float32)
    none = jnp.zeros((0, 1))
    trajectory = disco.Trajectory(
        observation=rows,
        action=jnp.zeros((0, 1), jnp.int32),
        reward=none,
        discount=none,
        last=none.astype(bool),
        behaviour_logits=jnp.zeros((0, 1, 2)),
        mask=none.astype(bool),
    )
    outputs = agent.network.unroll(state.params, trajectory)
    policy = jax.nn.softmax(outputs["logits"])[0, 0]
    if "value" in outputs:
        return np.asarray(policy), float(outputs["value"][0, 0, 0])
    q = values.decode_value(outputs["q"], agent.rule.max_value)[0, 0]
    return np.asarray(policy), float(jnp.sum(policy * q))


def dreamers_policy_and_value(
    agent: DreamerAgent, params: Any, observations: list[float]
) -> tuple[np.ndarray, float]:
    """Action probabilities and value in the state after observations from an episode's start."""
    model, memory = agent.model, agent.initial_memory(64)  # Its states are random.
    for step, observation in enumerate(observations):
        kind = jnp.full(64, dm_env.StepType.MID if step else dm_env.StepType.FIRST)
        timestep = dm_env.TimeStep(kind, None, None, jnp.full((64, 1), observation))
        memory, *_ = agent.act(params, memory, timestep, jax.random.key(step), Mode.TRAINING)
    features = memory.state.features
    chosen = model.policy(params, features)
    assert isinstance(chosen, Discrete)
    policy = jnp.exp(chosen.log_probabilities)
    value = model.regression.mean(model.critic(params, features))
    return np.mean(policy, axis=0), float(np.mean(value))


@pytest.mark.learning
def test_values_and_actions_of_dreamer(tmp_path):
    tasks = [environments.make(f"diagnostic/{kind}") for kind in KINDS]
    agent = dreamer(DREAMER).make(tasks[0])
    for kind, learned in learn(agent, tasks, 4_096, tmp_path):
        for observations, action_values in expected(kind):
            found = dreamers_policy_and_value(agent, learned.params, observations)
            check(kind, found, action_values)


def iris_policy_and_value(
    agent: IrisAgent, params: Any, observations: list[float]
) -> tuple[np.ndarray, float]:
    """Action probabilities and value after images of observations from an episode's start."""
    params = jax.tree.map(jnp.asarray, params)
    output, memory = None, agent.initial_memory(1)
    for observation in observations:
        fraction = (observation + 1.0) / 2.0  # Between the observation's bounds.
        image = pixels.draw(jnp.full(1, fraction), IMAGE_SIDE)
        frames = agent.model.reconstruct(params, as_fractions(image)[None])
        output, memory = agent.model.react(params, agent.model.vision(params, frames), memory)
    assert output is not None
    return np.asarray(jax.nn.softmax(output.logits[0])), float(output.value[0])


@pytest.mark.learning
def test_values_and_actions_of_iris_from_images(tmp_path):
    tasks = []
    for kind in KINDS:
        task = environments.make(f"diagnostic/{kind}")
        assert isinstance(task.dynamics, JaxEnvironment)
        images = pixels.Pixels(task.dynamics, IMAGE_SIDE)
        tasks.append(dataclasses.replace(task, dynamics=images))
    agent = iris(IRIS).make(tasks[0])
    for kind, learned in learn(agent, tasks, 3_072, tmp_path):
        for observations, action_values in expected(kind):
            found = iris_policy_and_value(agent, learned.params, observations)
            check(kind, found, action_values)


# The value is that of the policy at a temperature, which is therefore fixed.
DICE = DiceConfig(
    network=NETWORK,
    learning_rate=5e-3,
    discount=DISCOUNT,
    exploration="fixed",
    temperature=0.1,
    shapes_reward=False,
)
MUESLI = MuesliConfig(network=NETWORK, learning_rate=5e-3, discount=DISCOUNT, max_value=3.0)
MUZERO = MuZeroConfig(
    network=NETWORK, learning_rate=5e-3, discount=DISCOUNT, max_value=3.0, num_simulations=8
)


@pytest.mark.thorough
def test_values_and_actions_of_dice(tmp_path):
    tasks = [environments.make(f"diagnostic/{kind}") for kind in KINDS]
    agent = DiceAgent.create(DICE, tasks[0].dynamics)
    for kind, learned in learn(agent, tasks, STEPS, tmp_path):
        for observations, action_values in expected(kind):
            policy, value = policy_and_value(agent, learned, observations[-1])
            tempered = policy ** (1.0 / DICE.temperature)
            check(kind, (tempered / np.sum(tempered), value), action_values)


@pytest.mark.thorough
def test_values_and_actions_of_muesli(tmp_path):
    """Its value is the mean of its look-ahead."""
    tasks = [environments.make(f"diagnostic/{kind}") for kind in KINDS]
    agent = MuesliAgent.create(MUESLI, tasks[0].dynamics)
    model = agent.network
    for kind, learned in learn(agent, tasks, STEPS, tmp_path):
        for observations, action_values in expected(kind):
            params, seen = learned.params, jnp.full((1, 1), observations[-1], jnp.float32)
            embedding, _ = model.embed_step(params, seen, None)
            policy = np.asarray(jax.nn.softmax(model.logits(params, embedding)[0]))
            q = look_ahead(model, params, embedding, DISCOUNT, MUESLI.max_value)[0]
            check(kind, (policy, float(np.dot(policy, q))), action_values)


@pytest.mark.learning
def test_values_and_actions_of_muzero(tmp_path):
    tasks = [environments.make(f"diagnostic/{kind}") for kind in KINDS]
    agent = MuZeroAgent.create(MUZERO, tasks[0].dynamics)
    model = agent.network
    for kind, learned in learn(agent, tasks, STEPS, tmp_path):
        for observations, action_values in expected(kind):
            params, seen = learned.params, jnp.full((1, 1), observations[-1], jnp.float32)
            embedding, _ = model.embed_step(params, seen, None)
            predicted = model.predict(params, model.start(params, embedding))
            policy = np.asarray(jax.nn.softmax(predicted.logits[0]))
            value = values.decode_value(predicted.value, MUZERO.max_value)
            check(kind, (policy, float(value[0])), action_values)


def check(kind: str, found: tuple[np.ndarray, float], action_values: tuple[float, float]) -> None:
    """Check that a value is the policy's, within 0.05 (rewards are 1), and the best action."""
    policy, value = found
    assert value == pytest.approx(float(np.dot(policy, action_values)), abs=0.05), kind
    if action_values[0] != action_values[1]:
        assert policy[np.argmax(action_values)] > 0.9, kind


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("actor_critic", "ppo") else pytest.param(name, marks=pytest.mark.thorough)
        for name in AGENTS
    ],
)
def test_values_and_actions(name, tmp_path):
    """Values are those of the policy, within 5%; it prefers the better action."""
    tasks = [environments.make(f"diagnostic/{kind}") for kind in KINDS]
    agent = AGENTS[name](tasks[0].dynamics)
    for kind, learned in learn(agent, tasks, STEPS, tmp_path):
        for observations, action_values in expected(kind):
            check(kind, policy_and_value(agent, learned, observations[-1]), action_values)
