"""Update rules that people designed, and their agents, as algorithms by name.

Their losses are those of the rules, `disco.hand_designed_rules`; `agents.rule_agent` applies them.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import disco
import environments
from agents import search_space
from agents.networks import NetworkConfig
from agents.registry import Algorithm
from agents.rule_agent import RuleAgent, RuleAgentConfig, make_agent
from agents.search_space import Choice, CommonSettings, LogUniform, Settings, given

_UNBOUNDED = 1e9  # For elements of an optimiser's update.
# bsuite's actor-critic, whose updates also begin at an episode's end.
_BSUITE = RuleAgentConfig(
    network=NetworkConfig(torso=(64, 64), model=0),
    learning_rate=3e-3,
    max_abs_update=_UNBOUNDED,
    num_environments=1,
    unroll_length=32,
    batch_size=1,
    replay_ratio=0.0,
)
# Haiku's example of IMPALA, which learns Catch, but rewards are not clipped.
_HAIKU = dataclasses.replace(
    _BSUITE,
    network=NetworkConfig(torso=(128, 64), model=0),
    learning_rate=5e-3,
    optimizer_kind="rmsprop",
    num_environments=2,
    unroll_length=20,
    batch_size=2,
)


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig:
    """An actor-critic rule, and the agent that learns by it. By default bsuite's."""

    rule: disco.ActorCritic = disco.ActorCritic(
        discount=0.99, lambda_=0.9, value_cost=2.0, entropy_cost=0.0
    )
    agent: RuleAgentConfig = _BSUITE


@dataclasses.dataclass(frozen=True)
class PolicyGradientConfig:
    """REINFORCE, and its agent. Unrolls are longer than bsuite's, as returns end with them."""

    rule: disco.PolicyGradient = disco.PolicyGradient(
        discount=0.99, value_cost=2.0, entropy_cost=0.0
    )
    agent: RuleAgentConfig = dataclasses.replace(_BSUITE, unroll_length=128)


@dataclasses.dataclass(frozen=True)
class HandSetConfig:
    """The rule that discoveries start from, and agents like theirs.

    It has no literature. The rule's weights were set by hand, on discovery tasks
    (`docs/measurements/discovery.md`). 21 bins are for returns up to about 250; with the published
    rule's 601 an update on a CPU takes several times as long. Agents have no action-conditional
    LSTM, which makes no difference in scores.
    """

    rule: disco.HandSetRule = disco.HandSetRule(
        num_bins=21,
        max_value=15.0,
        policy_prior=0.99,
        advantage_weight=5.0,
        action_advantage_weight=0.1,
        normalize_advantage=False,
    )
    agent: RuleAgentConfig = RuleAgentConfig(
        network=NetworkConfig(torso=(32,), model=0, head=(32,)),
        learning_rate=3e-3,
        num_environments=8,
        unroll_length=16,
        batch_size=8,
        replay_ratio=0.0,
    )


def _make(config: Any, task: environments.Environment) -> RuleAgent:
    return make_agent(config.rule, config.agent, task)


def _tuned(
    config: Any,
    rule: Any,
    names: Sequence[str],
    agent_of: Callable[[RuleAgentConfig], RuleAgentConfig],
    common: CommonSettings,
    settings: Settings,
) -> Any:
    """Return a config like this one, of the rule with the settings of these names.

    Its agent is made of the evaluated rules' one. The learning rate's schedule is over the budget,
    unless it has one.
    """
    rule = dataclasses.replace(rule, discount=common.discount, **given(names, settings))
    agent = agent_of(common.agent).with_settings(settings)
    agent = agent if agent.lifetime else dataclasses.replace(agent, lifetime=common.budget)
    return type(config)(rule, agent)


def _on_policy(agent: RuleAgentConfig) -> RuleAgentConfig:
    return agent.with_replay(0.0)


def _as_impala(agent: RuleAgentConfig) -> RuleAgentConfig:
    """Return an agent with RMSProp and a learning rate that falls to 0.

    So far IMPALA (Espeholt et al. 2018, arXiv 1802.01561). The learning rate falls along half a
    cosine, linearly in the paper, and RMSProp has no large epsilon. The agent replays as the rules.
    """
    return dataclasses.replace(
        agent, optimizer_kind="rmsprop", end_learning_rate=0.0, weight_decay=0.0, warmup=0
    )


def _without_model(agent: RuleAgentConfig) -> RuleAgentConfig:
    return dataclasses.replace(agent, network=dataclasses.replace(agent.network, model=0))


def _algorithm(
    name: str,
    paper: str,
    config: Any,
    rule: Any,
    agent_of: Callable[[RuleAgentConfig], RuleAgentConfig],
    /,
    **ranges: Any,
) -> Algorithm:
    """Return an algorithm, which a search tunes from a rule and an agent."""
    names = [field.name for field in dataclasses.fields(rule) if field.name in ranges]
    return Algorithm(
        name=name,
        paper=paper,
        has_literature=name != "hand_set",
        presets={"default": config},
        make=_make,
        ranges={**search_space.SIZES, **ranges},
        tuned=functools.partial(_tuned, config, rule, names, agent_of),
    )


ACTOR_CRITIC = _algorithm(
    "actor_critic",
    "Actor-critic with bsuite's settings, Osband et al. 2020, arXiv 1908.03568",
    ActorCriticConfig(),
    disco.ActorCritic(),
    _on_policy,
    **search_space.RULE_RANGES,
    entropy_cost=search_space.ENTROPY,
    normalize_advantage=search_space.YES_OR_NO,
    lambda_=search_space.TRACES,
)
POLICY_GRADIENT = _algorithm(
    "policy_gradient",
    "REINFORCE with a baseline, Williams 1992",
    PolicyGradientConfig(),
    disco.PolicyGradient(),
    _on_policy,
    learning_rate=search_space.RATE,
    end_learning_rate=search_space.END_RATE,
    entropy_cost=LogUniform(1e-5, 0.3),
    normalize_advantage=search_space.YES_OR_NO,
)
IMPALA = _algorithm(
    "impala",
    "IMPALA, Espeholt et al. 2018, arXiv 1802.01561",
    ActorCriticConfig(disco.ActorCritic(discount=0.99), _HAIKU),
    disco.ActorCritic(),
    _as_impala,
    # Of RMSProp: in Adam's range, the best rate was at the upper end.
    learning_rate=LogUniform(1e-3, 0.3),
    entropy_cost=search_space.ENTROPY,
    replay_ratio=search_space.REPLAY,
)
HAND_SET = _algorithm(
    "hand_set",
    "The rule that discoveries start from",
    HandSetConfig(),
    HandSetConfig.rule,
    _without_model,
    **search_space.RULE_RANGES,
    policy_prior=Choice((0.8, 0.9, 0.95, 0.98, 0.99, 1.0), may_be_lower=True),
    advantage_weight=LogUniform(0.1, 30.0),
    action_advantage_weight=Choice((0.0, 0.01, 0.03, 0.1, 0.3, 1.0), may_be_higher=True),
    normalize_advantage=search_space.YES_OR_NO,
)
