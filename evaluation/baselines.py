"""Algorithms that people designed, as an evaluation's baselines.

They have the network, the environments, the unroll and the discount of the evaluated rules' agents.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import disco
from agents.ppo.config import PPOConfig
from agents.ppo.factory import PPO
from agents.rule_agent import AgentConfig
from evaluation.config import EvaluationConfig

_DISCOUNT = 0.997  # The default of all rules.

Settings = Mapping[str, Any]


class Baseline(NamedTuple):
    """An algorithm for one evaluation: an update rule and its agent, or another agent.

    Attributes:
      rule: None for another agent.
      agent: configuration of the rule's agent; of another agent, the unit of the budget.
      other: the other agent; None for a rule.
    """

    rule: disco.Rule | None
    agent: AgentConfig
    other: PPO | None = None


def make(kind: str, config: EvaluationConfig, settings: Settings) -> Baseline:
    """Return a baseline.

    Args:
      kind: one of `evaluation.config.BASELINES`.
      config: of the evaluation.
      settings: that replace the config's, among them the learning rate; see `SETTINGS`.

    Raises:
      ValueError: if the algorithm has no such setting, or it is out of range.
    """
    if unknown := sorted(set(settings) - set(SETTINGS[kind])):
        raise ValueError(f"{kind} has no settings {unknown}; it has {sorted(SETTINGS[kind])}.")
    defaults = {
        "entropy_cost": config.baseline_entropy_cost,
        "normalize_advantage": config.baseline_normalize_advantage,
        "lambda_": config.actor_critic_lambda,
    }
    return _MAKE[kind](config, {**defaults, **settings})


def on_policy(agent: AgentConfig) -> AgentConfig:
    """Return the agent without replay."""
    return dataclasses.replace(agent, replay_ratio=0.0, batch_size=agent.num_environments)


def with_replay(agent: AgentConfig, replay_ratio: float) -> AgentConfig:
    """Return the agent with replay: a fresh trajectory per environment, and replayed ones."""
    batch_size = round(agent.num_environments / (1.0 - replay_ratio))
    return dataclasses.replace(agent, replay_ratio=replay_ratio, batch_size=batch_size)


def _actor_critic(config: EvaluationConfig, settings: Settings) -> Baseline:
    rule = disco.ActorCritic(
        entropy_cost=settings["entropy_cost"],
        normalize_advantage=settings["normalize_advantage"],
        lambda_=settings["lambda_"],
    )
    replay_ratio = settings.get("replay_ratio", config.actor_critic_replay_ratio)
    return Baseline(rule, _with_rate(with_replay(config.agent, replay_ratio), settings))


def _policy_gradient(config: EvaluationConfig, settings: Settings) -> Baseline:
    rule = disco.PolicyGradient(
        entropy_cost=settings["entropy_cost"], normalize_advantage=settings["normalize_advantage"]
    )
    return Baseline(rule, _with_rate(on_policy(config.agent), settings))


def _impala(config: EvaluationConfig, settings: Settings) -> Baseline:
    """Return IMPALA with its optimiser (Espeholt et al. 2018, table D.1), replaying as the rules.

    The learning rate falls to 0 along half a cosine, and linearly in the paper.
    """
    agent = _with_replay_of(settings, config.agent)
    agent = dataclasses.replace(
        agent, optimizer_kind="rmsprop", max_gradient_norm=40.0, end_learning_rate=0.0
    )
    rule = disco.ActorCritic(entropy_cost=settings["entropy_cost"])
    return Baseline(rule, _with_rate(agent, settings))


def _hand_set(config: EvaluationConfig, settings: Settings) -> Baseline:
    names = ("policy_prior", "advantage_weight")
    rule = disco.HandSetRule(**{name: settings[name] for name in names if name in settings})
    return Baseline(rule, _with_rate(_with_replay_of(settings, config.agent), settings))


def _ppo(config: EvaluationConfig, settings: Settings, drift: str = "clip") -> Baseline:
    agent = on_policy(config.agent)
    names = ("learning_rate", "entropy_cost", "num_epochs", "gae_lambda")
    ppo = PPOConfig(
        network=agent.network,
        drift=drift,
        total_steps=config.num_steps,
        num_environments=agent.num_environments,
        unroll_length=agent.unroll_length,
        num_minibatches=_num_minibatches(agent, settings.get("num_minibatches", 4)),
        discount=_DISCOUNT,
        frame_stack=agent.frame_stack,
        **{name: settings[name] for name in names if name in settings},
    )
    return Baseline(None, _with_rate(agent, settings), PPO(ppo))


def _dpo(config: EvaluationConfig, settings: Settings) -> Baseline:
    return _ppo(config, settings, "dpo")


def _with_rate(agent: AgentConfig, settings: Settings) -> AgentConfig:
    rate = settings.get("learning_rate", agent.learning_rate)
    return dataclasses.replace(agent, learning_rate=rate)


def _with_replay_of(settings: Settings, agent: AgentConfig) -> AgentConfig:
    return with_replay(agent, settings["replay_ratio"]) if "replay_ratio" in settings else agent


def _num_minibatches(agent: AgentConfig, most: int) -> int:
    """Return the largest number up to `most` by which an unroll's samples can be divided."""
    samples = agent.num_environments * (1 if agent.network.memory else agent.unroll_length)
    return max(number for number in range(1, most + 1) if samples % number == 0)


_MAKE: Mapping[str, Callable[[EvaluationConfig, Settings], Baseline]] = {
    "actor_critic": _actor_critic,
    "policy_gradient": _policy_gradient,
    "impala": _impala,
    "hand_set": _hand_set,
    "ppo": _ppo,
    "dpo": _dpo,
}

_PPO = ("learning_rate", "entropy_cost", "num_epochs", "num_minibatches", "gae_lambda")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "actor_critic": (
        "learning_rate",
        "entropy_cost",
        "normalize_advantage",
        "lambda_",
        "replay_ratio",
    ),
    "policy_gradient": ("learning_rate", "entropy_cost", "normalize_advantage"),
    "impala": ("learning_rate", "entropy_cost", "replay_ratio"),
    "hand_set": ("learning_rate", "policy_prior", "advantage_weight", "replay_ratio"),
    "ppo": _PPO,
    "dpo": _PPO,
}
