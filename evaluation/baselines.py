"""Algorithms that people designed, as an evaluation's baselines.

They have the network, the environments, the unroll and the discount of the evaluated rules' agents.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import disco
from agents.dice.config import DiceConfig
from agents.dice.factory import Dice
from agents.muesli.config import MuesliConfig
from agents.muesli.factory import Muesli
from agents.muzero.config import MuZeroConfig
from agents.muzero.factory import MuZero
from agents.ppo.config import PPOConfig
from agents.ppo.factory import PPO
from agents.rule_agent import AgentConfig
from evaluation.config import EvaluationConfig

Settings = Mapping[str, Any]
_SMALLEST_MINIBATCH = 8  # Transitions, over which PPO normalises advantages.


class Baseline(NamedTuple):
    """An algorithm for one evaluation: an update rule and its agent, or another agent.

    Attributes:
      rule: None for another agent.
      agent: configuration of the rule's agent; of another agent, the unit of the budget.
      other: the other agent; None for a rule.
    """

    rule: disco.Rule | None
    agent: AgentConfig
    other: PPO | Dice | Muesli | MuZero | None = None


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
    defaults: dict[str, Any] = {
        "learning_rate": config.baseline_learning_rate,
        "entropy_cost": config.baseline_entropy_cost,
        "normalize_advantage": config.baseline_normalize_advantage,
        "lambda_": config.actor_critic_lambda,
    }
    if kind == "hand_set":  # Which normalises unless its own settings say otherwise.
        del defaults["normalize_advantage"]
    return _MAKE[kind](config, {**defaults, **settings})


def on_policy(agent: AgentConfig) -> AgentConfig:
    """Return the agent without replay."""
    return dataclasses.replace(agent, replay_ratio=0.0, batch_size=agent.num_environments)


def with_replay(
    agent: AgentConfig, replay_ratio: float, num_environments: int | None = None
) -> AgentConfig:
    """Return the agent with replay: a fresh trajectory per environment, and replayed ones.

    Args:
      agent: the agent.
      replay_ratio: replayed part of a batch.
      num_environments: of the new agent; by default the agent's.
    """
    number = num_environments or agent.num_environments
    return dataclasses.replace(
        agent,
        num_environments=number,
        replay_ratio=replay_ratio,
        batch_size=round(number / (1.0 - replay_ratio)),
    )


def with_settings(agent: AgentConfig, settings: Settings) -> AgentConfig:
    """Return a rule's agent with the settings of `RULE_SETTINGS` that are given."""
    if settings.get("replay_ratio", agent.replay_ratio) != agent.replay_ratio:
        agent = with_replay(agent, settings["replay_ratio"])
    rates = {x: settings[x] for x in ("learning_rate", "end_learning_rate") if x in settings}
    return dataclasses.replace(agent, **rates)


def _discount(config: EvaluationConfig) -> float:
    return disco.ActorCritic().discount if config.rule_discount is None else config.rule_discount


def _actor_critic(config: EvaluationConfig, settings: Settings) -> Baseline:
    rule = disco.ActorCritic(
        discount=_discount(config),
        entropy_cost=settings["entropy_cost"],
        normalize_advantage=settings["normalize_advantage"],
        lambda_=settings["lambda_"],
    )
    agent = with_replay(config.agent, config.actor_critic_replay_ratio)
    return Baseline(rule, with_settings(agent, settings))


def _policy_gradient(config: EvaluationConfig, settings: Settings) -> Baseline:
    rule = disco.PolicyGradient(
        discount=_discount(config),
        entropy_cost=settings["entropy_cost"],
        normalize_advantage=settings["normalize_advantage"],
    )
    return Baseline(rule, with_settings(on_policy(config.agent), settings))


def _impala(config: EvaluationConfig, settings: Settings) -> Baseline:
    """Return V-trace with lambda 1, RMSProp and a learning rate that falls to 0.

    So far IMPALA (Espeholt et al. 2018, arXiv 1802.01561). The learning rate falls along half a
    cosine, linearly in the paper, and RMSProp has no large epsilon. The agent replays as the rules.
    """
    agent = dataclasses.replace(
        config.agent, optimizer_kind="rmsprop", end_learning_rate=0.0, weight_decay=0.0, warmup=0
    )
    rule = disco.ActorCritic(discount=_discount(config), entropy_cost=settings["entropy_cost"])
    return Baseline(rule, with_settings(agent, settings))


def _hand_set(config: EvaluationConfig, settings: Settings) -> Baseline:
    """Return the rule that discoveries start from, and agents like theirs.

    Its weights were set by hand, on discovery tasks (`docs/measurements/discovery.md`). 21 bins are
    for returns up to about 250; with the published rule's 601 an update on a CPU takes several
    times as long. Agents have no action-conditional LSTM, which makes no difference in scores.
    """
    own = {name: settings.get(name, default) for name, default in _HAND_SET.items()}
    rule = disco.HandSetRule(num_bins=21, max_value=15.0, discount=_discount(config), **own)
    network = dataclasses.replace(config.agent.network, model=0)
    agent = dataclasses.replace(config.agent, network=network)
    return Baseline(rule, with_settings(agent, settings))


def _ppo(config: EvaluationConfig, settings: Settings, drift: str = "clip") -> Baseline:
    agent = with_settings(on_policy(config.agent), settings)
    names = ("entropy_cost", "num_epochs", "gae_lambda")
    ppo = PPOConfig(
        network=agent.network,
        drift=drift,
        learning_rate=agent.learning_rate,
        total_steps=config.num_steps,
        num_environments=agent.num_environments,
        unroll_length=agent.unroll_length,
        num_minibatches=_num_minibatches(agent, settings.get("num_minibatches", 4)),
        discount=_discount(config),
        frame_stack=agent.frame_stack,
        **_given(names, settings),
    )
    return Baseline(None, agent, PPO(ppo))


def _dpo(config: EvaluationConfig, settings: Settings) -> Baseline:
    return _ppo(config, settings, "dpo")


def _dice(config: EvaluationConfig, settings: Settings) -> Baseline:
    """Return DiCE; an update learns from all sequences of an unroll at once."""
    agent = with_settings(on_policy(config.agent), settings)
    dice = DiceConfig(
        network=agent.network,
        learning_rate=agent.learning_rate,
        total_steps=config.num_steps,
        num_environments=agent.num_environments,
        unroll_length=agent.unroll_length,
        burn_in=agent.burn_in,
        batch_size=agent.num_environments,
        discount=_discount(config),
        frame_stack=agent.frame_stack,
        **_given(_DICE, settings),
    )
    return Baseline(None, agent, Dice(dice))


def _muesli(config: EvaluationConfig, settings: Settings) -> Baseline:
    agent = with_settings(config.agent, settings)
    muesli = MuesliConfig(
        **{field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)},
        discount=_discount(config),
        **_given(_MUESLI, settings),
    )
    if not muesli.lifetime:  # The schedule of a learning rate that falls.
        muesli = dataclasses.replace(muesli, lifetime=config.budget)
    return Baseline(None, agent, Muesli(muesli))


def _muzero(config: EvaluationConfig, settings: Settings) -> Baseline:
    """Return MuZero, which learns after 1% of the budget, but after 1,024 steps at most."""
    agent = with_settings(on_policy(config.agent), settings)
    muzero = MuZeroConfig(
        network=agent.network,
        learning_rate=agent.learning_rate,
        total_steps=config.num_steps,
        num_environments=agent.num_environments,
        unroll_length=agent.unroll_length,
        min_steps=min(1024, config.num_steps // 100),
        discount=_discount(config),
        frame_stack=agent.frame_stack,
        **_given(_MUZERO, settings),
    )
    return Baseline(None, agent, MuZero(muzero))


def _given(names: tuple[str, ...], settings: Settings) -> dict[str, Any]:
    """Return the settings of these names that are given."""
    return {name: settings[name] for name in names if name in settings}


def _num_minibatches(agent: AgentConfig, wanted: int) -> int:
    """Return the number wanted, or as many as have enough samples."""
    if agent.network.memory:
        return min(wanted, agent.num_environments)
    return max(1, min(wanted, agent.steps_per_update // _SMALLEST_MINIBATCH))


_MAKE: Mapping[str, Callable[[EvaluationConfig, Settings], Baseline]] = {
    "actor_critic": _actor_critic,
    "policy_gradient": _policy_gradient,
    "impala": _impala,
    "hand_set": _hand_set,
    "ppo": _ppo,
    "dpo": _dpo,
    "dice": _dice,
    "muesli": _muesli,
    "muzero": _muzero,
}

RULE_SETTINGS = ("learning_rate", "end_learning_rate", "replay_ratio")
_HAND_SET: Mapping[str, float | bool] = {
    "policy_prior": 0.99,
    "advantage_weight": 5.0,
    "action_advantage_weight": 0.1,
    "normalize_advantage": False,
}
_PPO = ("learning_rate", "entropy_cost", "num_epochs", "num_minibatches", "gae_lambda")
# Besides the learning rate.
_DICE = ("sample_reuse", "action_value_cost", "max_inverse_temperature", "lambda_")
_MUESLI = ("regularizer_cost", "lambda_")
_MUZERO = ("updates_per_step", "td_steps", "weight_decay")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "actor_critic": (*RULE_SETTINGS, "entropy_cost", "normalize_advantage", "lambda_"),
    "policy_gradient": (
        "learning_rate",
        "end_learning_rate",
        "entropy_cost",
        "normalize_advantage",
    ),
    "impala": ("learning_rate", "entropy_cost", "replay_ratio"),
    "hand_set": (*RULE_SETTINGS, *_HAND_SET),
    "ppo": _PPO,
    "dpo": _PPO,
    "dice": ("learning_rate", *_DICE),
    "muesli": (*RULE_SETTINGS, *_MUESLI),
    "muzero": ("learning_rate", *_MUZERO),
}
