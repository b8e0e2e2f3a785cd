"""Algorithms that people designed, as an evaluation's baselines.

`NAME` has the settings of its literature, its network and environments included: those of the
agent of this name (`agents.registry`), or `of_literature` where it is a rule. `NAME_tuned` has the
network and the environments of the evaluated rules' agents, and settings that a search has found
(`evaluation.studies.tuning`).
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
from agents.networks import NetworkConfig
from agents.ppo.config import PPOConfig
from agents.ppo.factory import PPO
from agents.rule_agent import AgentConfig
from evaluation.config import EvaluationConfig

Settings = Mapping[str, Any]
_SMALLEST_MINIBATCH = 8  # Transitions, over which PPO normalises advantages.
_UNBOUNDED = 1e9  # For elements of an optimiser's update.


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


def of_literature(kind: str, config: EvaluationConfig) -> Baseline:
    """Return a baseline that is a rule, with the settings of its literature.

    - `actor_critic`: that of bsuite, whose updates also begin at an episode's end.
    - `policy_gradient`: as `actor_critic`, with longer unrolls, as returns end with them.
    - `impala`: Haiku's example of IMPALA, which learns Catch, but rewards are not clipped.
    - `hand_set`: the rule that discoveries start from, which has no literature.

    The network is the evaluation's where that has convolutions.

    Raises:
      KeyError: if there is no such rule.
    """
    if kind == "hand_set":
        return make(kind, config, {})
    rule, agent = _OF_LITERATURE[kind]
    if config.agent.network.channels:
        agent = dataclasses.replace(agent, network=config.agent.network)
    return Baseline(rule, dataclasses.replace(agent, frame_stack=config.agent.frame_stack))


def make(kind: str, config: EvaluationConfig, settings: Settings) -> Baseline:
    """Return a baseline with the network and the environments of the evaluated rules' agents.

    Args:
      kind: one of `evaluation.config.BASELINES`.
      config: the evaluation's.
      settings: replace the defaults, and sizes of the network and numbers of environments; see
        `SETTINGS`.

    Raises:
      ValueError: if the algorithm has no such setting, or it is out of range.
    """
    if unknown := sorted(set(settings) - set(SETTINGS[kind])):
        raise ValueError(f"{kind} has no settings {unknown}; it has {sorted(SETTINGS[kind])}.")
    agent = _sized(config, settings)
    config = dataclasses.replace(config, agent=agent, rule_num_environments=None)
    return _MAKE[kind](config, {**_DEFAULTS, **settings})


def _sized(config: EvaluationConfig, settings: Settings) -> AgentConfig:
    """Return the agent with a network and environments of the sizes that are given.

    An unroll is so short that the budget has an update.
    """
    agent, torso = config.agent, config.agent.network.torso
    if "width" in settings or "layers" in settings:
        torso = (settings.get("width", max(torso)),) * settings.get("layers", len(torso))
    number = settings.get("num_environments", agent.num_environments)
    return dataclasses.replace(
        agent,
        network=dataclasses.replace(agent.network, torso=torso),
        num_environments=number,
        unroll_length=min(
            settings.get("unroll_length", agent.unroll_length), config.budget // number
        ),
        batch_size=round(number * agent.batch_size / agent.num_environments),
    )


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


_BSUITE = AgentConfig(
    network=NetworkConfig(torso=(64, 64), model=0),
    learning_rate=3e-3,
    max_abs_update=_UNBOUNDED,
    num_environments=1,
    unroll_length=32,
    batch_size=1,
    replay_ratio=0.0,
)
_OF_LITERATURE: Mapping[str, tuple[disco.Rule, AgentConfig]] = {
    "actor_critic": (
        disco.ActorCritic(discount=0.99, lambda_=0.9, value_cost=2.0, entropy_cost=0.0),
        _BSUITE,
    ),
    "policy_gradient": (
        disco.PolicyGradient(discount=0.99, value_cost=2.0, entropy_cost=0.0),
        dataclasses.replace(_BSUITE, unroll_length=128),
    ),
    "impala": (
        disco.ActorCritic(discount=0.99),
        dataclasses.replace(
            _BSUITE,
            network=NetworkConfig(torso=(128, 64), model=0),
            learning_rate=5e-3,
            optimizer_kind="rmsprop",
            num_environments=2,
            unroll_length=20,
            batch_size=2,
        ),
    ),
}


def _discount(config: EvaluationConfig) -> float:
    return disco.ActorCritic().discount if config.rule_discount is None else config.rule_discount


def _actor_critic(config: EvaluationConfig, settings: Settings) -> Baseline:
    rule = disco.ActorCritic(
        discount=_discount(config),
        entropy_cost=settings["entropy_cost"],
        normalize_advantage=settings["normalize_advantage"],
        lambda_=settings["lambda_"],
    )
    return Baseline(rule, with_settings(on_policy(config.agent), settings))


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
    ppo = PPOConfig(
        network=agent.network,
        separate_value_network=False,
        drift=drift,
        learning_rate=agent.learning_rate,
        total_steps=config.num_steps,
        num_environments=agent.num_environments,
        unroll_length=agent.unroll_length,
        num_epochs=settings.get("num_epochs", 4),
        num_minibatches=_num_minibatches(agent, settings.get("num_minibatches", 4)),
        discount=_discount(config),
        value_cost=0.5,
        frame_stack=agent.frame_stack,
        **_given(("entropy_cost", "gae_lambda"), settings),
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
# Of a search's first trial.
_DEFAULTS: Settings = {
    "learning_rate": 3e-3,
    "entropy_cost": 0.01,
    "lambda_": 0.95,
    "normalize_advantage": False,
}
_HAND_SET: Mapping[str, float | bool] = {
    "policy_prior": 0.99,
    "advantage_weight": 5.0,
    "action_advantage_weight": 0.1,
    "normalize_advantage": False,
}
_SIZES = ("width", "layers", "num_environments", "unroll_length")
_PPO = (*_SIZES, "learning_rate", "entropy_cost", "num_epochs", "num_minibatches", "gae_lambda")
_DICE = ("sample_reuse", "action_value_cost", "max_inverse_temperature", "lambda_")
_MUESLI = ("regularizer_cost", "lambda_")
_MUZERO = ("updates_per_step", "td_steps", "weight_decay")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "actor_critic": (*_SIZES, *RULE_SETTINGS, "entropy_cost", "normalize_advantage", "lambda_"),
    "policy_gradient": (
        *_SIZES,
        "learning_rate",
        "end_learning_rate",
        "entropy_cost",
        "normalize_advantage",
    ),
    "impala": (*_SIZES, "learning_rate", "entropy_cost", "replay_ratio"),
    "hand_set": (*_SIZES, *RULE_SETTINGS, *_HAND_SET),
    "ppo": _PPO,
    "dpo": _PPO,
    "dice": (*_SIZES, "learning_rate", *_DICE),
    "muesli": (*_SIZES, *RULE_SETTINGS, *_MUESLI),
    "muzero": (*_SIZES, "learning_rate", *_MUZERO),
}
