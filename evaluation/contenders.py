"""The contenders of an evaluation: rules, algorithms, and among these the random policy.

A contender is one of two things: a rule with the settings of the agent that learns by it, or an
algorithm (`agents.registry`) with its settings. `NAME` is an algorithm with the settings of its
literature, its network and environments included; `NAME_tuned` has settings that a search has found
(`evaluation.studies.tuning`), and the network and the environments of the evaluated rules' agents
where the search did not vary them.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import disco
import environments
from agents import registry
from agents.networks import NetworkConfig
from agents.protocol import Agent
from agents.registry import Algorithm, ConfiguredAlgorithm
from agents.rule_agent import RuleAgentConfig, make_agent
from agents.search_space import RULE_RANGES, Settings
from evaluation.config import EvaluationConfig, algorithm_of
from evaluation.rules import read
from evaluation.tuned_settings import TunedSettings

RANDOM = "random"
ALGORITHMS = "agents"  # In flags of the config, settings of algorithms by name.
DISCOVERED, RULE = "discovered", "rule"  # Kinds of rules.
# Of a contender's source: steps of its optimiser per environment step; its parameters, the fewest
# and the most over tasks; its environments; environment steps between two updates; settings that a
# search has found.
GRADIENT_STEPS = "gradient_steps_per_environment_step"
PARAMETERS = "parameters"
NUM_ENVIRONMENTS = "num_environments"
STEPS_PER_UNROLL = "environment_steps_per_unroll"
TUNED_SETTINGS = "tuned"


@dataclasses.dataclass(frozen=True)
class RuleAndAgent:
    """A rule, and the agent that learns by it."""

    rule: disco.Rule
    agent: RuleAgentConfig


def _make_by_rule(config: RuleAndAgent, task: environments.Environment) -> Agent:
    return make_agent(config.rule, config.agent, task)


def _refuse(config: None, task: environments.Environment) -> Agent:
    raise ValueError(
        f"A contender on {task.name} is read from a manifest; expected a complete one."
    )


_LEARNING_BY_RULE = Algorithm(name=RULE, paper="", presets={}, make=_make_by_rule)
_READ_FROM_MANIFEST = ConfiguredAlgorithm(Algorithm("", paper="", presets={}, make=_refuse), None)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Contender:
    """A rule and the agent that learns by it, or an algorithm, with its settings.

    Attributes:
      name: unique in an evaluation; also the name of its folder of runs.
      algorithm: its name, with parameters, as `ppo/cleanrl`; `DISCOVERED` for a rule with a
        meta-network, `RULE` for another package's.
      settings: of a rule those of its agent, of an algorithm JSON values of all.
      source: its origin, and what it computes; JSON values.
      configured: makes its agents; none while it is only read from a manifest
        (`evaluation.report.stored`).
    """

    name: str
    algorithm: str
    settings: Mapping[str, Any]
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    configured: ConfiguredAlgorithm = _READ_FROM_MANIFEST

    @classmethod
    def of(
        cls,
        name: str,
        algorithm: str,
        configured: ConfiguredAlgorithm,
        source: Mapping[str, Any] = MappingProxyType({}),
    ) -> "Contender":
        """Return the contender of a configured algorithm, or of a rule and its agent."""
        config = configured.config
        return cls(
            name=name,
            algorithm=algorithm,
            settings=dataclasses.asdict(config.agent)
            if isinstance(config, RuleAndAgent)
            else configured.settings,
            source=dict(source),
            configured=configured,
        )

    @classmethod
    def of_rule(
        cls, name: str, rule: disco.Rule, agent: RuleAgentConfig, source: Mapping[str, Any]
    ) -> "Contender":
        """Return the contender of a rule."""
        kind = DISCOVERED if isinstance(rule, disco.DiscoveredRule) else RULE
        return cls.of(
            name, kind, ConfiguredAlgorithm(_LEARNING_BY_RULE, RuleAndAgent(rule, agent)), source
        )

    def changed(self, name: str = "", **changes: Any) -> "Contender":
        """Return it with other settings (of a rule `rule` and `agent`), and maybe another name."""
        configured = self.configured.replaced(changes)
        return Contender.of(name or self.name, self.algorithm, configured, self.source)

    @property
    def kind(self) -> str:
        """A word for tables: the algorithm, `DISCOVERED` or `RULE`."""
        return algorithm_of(self.algorithm)

    @property
    def is_rule(self) -> bool:
        """Whether it is an evaluated rule, and no algorithm."""
        return self.kind in (DISCOVERED, RULE)

    @property
    def is_random(self) -> bool:
        """Whether it is the random policy."""
        return self.kind == RANDOM

    @property
    def is_baseline(self) -> bool:
        """Whether it is an algorithm, and not the random policy."""
        return not (self.is_rule or self.is_random)

    @property
    def rule(self) -> disco.Rule:
        """The rule, of a rule."""
        return self.configured.config.rule

    @property
    def agent(self) -> RuleAgentConfig:
        """The settings of the agent that learns by it, of a rule."""
        return self.configured.config.agent

    @property
    def parameters_sha256(self) -> str:
        """The rule's fingerprint, of a rule."""
        return self.source["parameters_sha256"]

    def manifest_entry(self) -> dict[str, Any]:
        """Return what a manifest says of it, JSON values."""
        settings = (
            {"agent": self.settings}
            if self.is_rule
            else {"algorithm": self.algorithm, "settings": self.settings}
        )
        return {"name": self.name, "kind": self.kind, **settings, "source": self.source}

    def num_steps(self, config: EvaluationConfig) -> int:
        """Return the environment steps of a run: whole unrolls of its agent."""
        per_unroll = self.source.get(STEPS_PER_UNROLL, 1)
        return config.num_steps // per_unroll * per_unroll

    @property
    def num_environments(self) -> int | None:
        """The environments that its agent acts in at once; None if nobody knows."""
        own = settings_of_agent(self.settings).get("num_environments")
        return self.source.get(NUM_ENVIRONMENTS, own)


def settings_of_agent(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of an algorithm's settings that are its agent's, or all."""
    agent = settings.get("agent")
    return agent if isinstance(agent, Mapping) else settings


def make_contenders(
    rules: Sequence[Contender],
    config: EvaluationConfig,
    agents: Sequence[str] = (),
    tuned: TunedSettings | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Contender, ...]:
    """Return all contenders: the random policy, the baselines, the rules, and other algorithms.

    Args:
      rules: from `rule_contenders`.
      config: of the evaluation.
      agents: names of algorithms (`agents.registry`), besides the config's baselines.
      tuned: settings of tuned baselines, and of the agents of rules.
      changes: the config's fields that flags give, with their values, of which a contender must
        read each. `agents.NAME.FIELD`, which is no field of `config`, is a setting of an algorithm
        that is not tuned, with dots for parts of a setting.

    Raises:
      ValueError: if an agent is unknown or its configuration is impossible, two contenders have
        the same name, no contender reads a change, or tuned settings do not fit.
    """
    fingerprints = {x.name: x.parameters_sha256 for x in rules}
    found = {} if tuned is None else tuned.chosen(config, fingerprints)
    contenders = (
        random_policy(config),
        *(_algorithm(name, config, found, changes) for name in config.baselines),
        *(tuned_rule(x, config, found[x.name]) if x.name in found else x for x in rules),
        *(_algorithm(name, config, {}, changes) for name in agents),
    )
    for contender in contenders:
        if [x.name for x in contenders].count(contender.name) > 1:
            raise ValueError(f"Two contenders are called {contender.name!r}; expected one.")
    _require_read(changes, contenders, config)
    return contenders


def _require_read(
    changes: Iterable[str], contenders: Sequence[Contender], config: EvaluationConfig
) -> None:
    """Refuse changes that no contender reads."""
    rules = [x for x in contenders if x.is_rule]
    algorithms = [x for x in contenders[1:] if not x.is_rule]
    tuned = [x for x in algorithms if TUNED_SETTINGS in x.source]
    untuned = [x for x in algorithms if TUNED_SETTINGS not in x.source]
    # These have the network and the environments of the config's agent.
    shared = [*rules, *tuned]
    shared += [x for x in untuned if not x.configured.algorithm.has_literature]
    for name in changes:
        section, _, field = name.partition(".")
        # The random policy has the number of environments and the unroll; both give the budget.
        if section == "agent" and field in ("num_environments", "unroll_length"):
            continue
        of_rules = name.startswith("rule_") and name != "rule_discount"
        of_rules |= name == "agent.learning_rate"
        readers = rules if of_rules else shared
        if name == "agent.frame_stack" or name.startswith("agent.network."):
            network = config.agent.network
            readers = [*shared, *(x for x in algorithms if _has_network(x.configured, network))]
        if (section == "agent" or name.startswith("rule_")) and not readers:
            raise ValueError(
                f"--config.{name} is given, and no contender reads it:"
                f" {', '.join(x.name for x in contenders)} have settings of their own; expected a"
                f" --rule{'' if of_rules else ' or a tuned baseline, such as ppo_tuned'}."
            )
        algorithm = field.partition(".")[0]
        if section == ALGORITHMS and algorithm not in [x.kind for x in untuned]:
            raise ValueError(
                f"--config.{ALGORITHMS}.{algorithm} is given, and no contender reads it; expected"
                f" {algorithm!r}, which is not tuned, in --agent or --baselines."
            )


def _has_network(configured: ConfiguredAlgorithm, network: NetworkConfig) -> bool:
    """Return whether an algorithm has a network for images, instead of its literature's."""
    found = (configured.config, *configured.by_task.values())
    networks = (getattr(getattr(x, "agent", x), "network", None) for x in found)
    return bool(network.channels) and network in networks


def random_policy(config: EvaluationConfig) -> Contender:
    """Return the random policy, in the environments of the config's agents."""
    own = {x: getattr(config.agent, x) for x in ("num_environments", "unroll_length")}
    return Contender.of(RANDOM, RANDOM, registry.configured(RANDOM).replaced(own))


def _algorithm(
    name: str,
    config: EvaluationConfig,
    tuned: Mapping[str, Settings],
    changes: Mapping[str, Any],
) -> Contender:
    """Return the contender of an algorithm `NAME/PARAMETERS` or `NAME_tuned`.

    `tuned` are as of `TunedSettings.chosen`, `changes` as of `make_contenders`.

    Raises:
      ValueError: if there is none, it has no tuned settings, or a setting does not fit.
    """
    family = algorithm_of(name)
    if name in config.tuned_baselines:
        if family not in tuned:
            raise ValueError(
                f"baselines has {name!r}, and there are no tuned settings of {family!r}; expected"
                f" some (launch.tune, --tuned=FILE), or {family!r}, with its literature's settings."
            )
        return tuned_algorithm(name, family, config, tuned[family])
    made = registry.find(name).in_evaluation(config.common, name.partition("/")[2])
    prefix = f"{ALGORITHMS}.{family}."
    own = {x.removeprefix(prefix): y for x, y in changes.items() if x.startswith(prefix)}
    made = made.replaced(own).for_run(config.num_steps)
    shown = made.algorithm.display_name(name) if made.algorithm.display_name else name
    return Contender.of(shown.replace("/", "_").replace(",", "_"), name, made)


def tuned_algorithm(
    name: str, algorithm: str, config: EvaluationConfig, settings: Settings
) -> Contender:
    """Return the contender of an algorithm with settings that a search has found.

    Raises:
      ValueError: if a setting is unknown or out of range.
    """
    made = registry.find(algorithm).with_tuned(config.common, settings)
    return Contender.of(name, algorithm, made, {TUNED_SETTINGS: dict(settings)})


def tuned_rule(rule: Contender, config: EvaluationConfig, settings: Settings) -> Contender:
    """Return a rule with settings of its agent that a search has found.

    The settings are some or all of `agents.search_space.RULE_RANGES`.

    Raises:
      ValueError: if there are others, or one is out of range.
    """
    if unknown := sorted(set(settings) - set(RULE_RANGES)):
        raise ValueError(f"{rule.name} has no settings {unknown}.")
    agent = rule.agent.with_settings(settings)
    if "end_learning_rate" in settings:  # Over the budget, not over the discovery's lifetime.
        agent = dataclasses.replace(agent, lifetime=config.budget)
    origins = {f"{x}_from": "tuned settings" for x in settings}
    source = rule.source | origins | {TUNED_SETTINGS: dict(settings)}
    return dataclasses.replace(rule.changed(agent=agent), source=source)


def rule_contenders(
    rules: Sequence[str], config: EvaluationConfig, workdir: pathlib.Path | None = None
) -> list[Contender]:
    """Return the contenders of rules, which are not tuned.

    Arguments and errors are those of `evaluation.rules.read`.
    """
    return [Contender.of_rule(*one) for one in read(rules, config, workdir)]
