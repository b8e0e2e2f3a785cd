"""The contenders of an evaluation: rules, algorithms, and among these the random policy.

A contender is one of two things: a rule with the settings of the agent that learns by it, or an
algorithm (`agents.registry`) with its settings. `NAME` is an algorithm with the settings of its
literature, its network and environments included; `NAME_tuned` has settings that a search has found
(`evaluation.studies.tuning`), and the network and the environments of the evaluated rules' agents
where the search did not vary them.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import disco
import environments
from agents import registry, search_space
from agents.networks import NetworkConfig
from agents.protocol import Agent
from agents.rule_agent import AgentConfig, make_agent
from agents.search_space import RULE_RANGES, Settings
from evaluation.config import EvaluationConfig, algorithm_of
from evaluation.rules import agent_of, copy_of_rule, distinct_names, fingerprint, load
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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Contender(abc.ABC):
    """What all contenders have.

    Attributes:
      name: unique in an evaluation; also the name of its folder of runs.
      source: its origin, and what it computes; JSON values.
    """

    name: str
    source: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """A word for tables: the algorithm, `DISCOVERED` for a rule with a meta-network, `RULE`."""

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Return what a manifest says of it, JSON values."""

    def num_steps(self, config: EvaluationConfig) -> int:
        """Return the environment steps of a run: whole unrolls of its agent."""
        per_unroll = self.source.get(STEPS_PER_UNROLL, 1)
        return config.num_steps // per_unroll * per_unroll

    @property
    @abc.abstractmethod
    def num_environments(self) -> int | None:
        """The environments that its agent acts in at once; None if nobody knows."""

    @property
    def own_training(self) -> registry.Configured | None:
        """The algorithm, if it has its own training loop."""
        return None

    @property
    def is_random(self) -> bool:
        """Whether it is the random policy."""
        return self.kind == RANDOM

    def observed(self, task: environments.Environment) -> environments.Environment:
        """Return a task with the observations that it chooses."""
        return task

    @abc.abstractmethod
    def make(self, task: environments.Environment) -> Agent:
        """Return the agent of runs on a task, and on others of equal dynamics; cheap.

        Raises:
          ValueError: if it cannot act or learn there.
        """

    def check(self, task: environments.Environment, num_steps: int) -> None:
        """Raise ValueError if it cannot make a run of a number of environment steps on a task.

        Whether its agent can act there shows as that is made.
        """
        del task, num_steps


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RuleContender(Contender):
    """An update rule, and the agent that learns by it.

    Attributes:
      is_discovered: whether it has a meta-network; otherwise it is another package's.
      rule: None while it is only read from a manifest (`evaluation.report.stored`).
      agent: settings of the agent.
    """

    is_discovered: bool
    rule: disco.Rule | None
    agent: AgentConfig

    @property
    def kind(self) -> str:
        return DISCOVERED if self.is_discovered else RULE

    def described(self) -> dict[str, Any]:
        agent = dataclasses.asdict(self.agent)
        return {"name": self.name, "kind": self.kind, "agent": agent, "source": self.source}

    @property
    def num_environments(self) -> int:
        return self.agent.num_environments

    @property
    def parameters_sha256(self) -> str:
        """The rule's fingerprint."""
        return self.source["parameters_sha256"]

    def make(self, task: environments.Environment) -> Agent:
        return make_agent(self.loaded, self.agent, task)

    @property
    def loaded(self) -> disco.Rule:
        """The rule."""
        assert self.rule is not None, f"{self.name} is read from a manifest."
        return self.rule

    def tuned(self, settings: Settings, budget: int) -> "RuleContender":
        """Return it with settings of its agent that a search has found.

        The settings are some or all of `agents.search_space.RULE_RANGES`.

        Raises:
          ValueError: if there are others, or one is out of range.
        """
        if unknown := sorted(set(settings) - set(RULE_RANGES)):
            raise ValueError(f"{self.name} has no settings {unknown}.")
        agent = search_space.with_settings(self.agent, settings)
        if "end_learning_rate" in settings:  # Over the budget, not over the discovery's lifetime.
            agent = dataclasses.replace(agent, lifetime=budget)
        origins = {f"{x}_from": "tuned settings" for x in settings}
        source = self.source | origins | {TUNED_SETTINGS: dict(settings)}
        return dataclasses.replace(self, agent=agent, source=source)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AlgorithmContender(Contender):
    """An algorithm with its settings.

    Attributes:
      algorithm: its name, with parameters, as `ppo/cleanrl`.
      settings: JSON values of `agents.registry.Configured.settings`.
      configured: None while it is only read from a manifest (`evaluation.report.stored`).
    """

    algorithm: str
    settings: Mapping[str, Any]
    configured: registry.Configured | None = None

    @classmethod
    def of(
        cls, name: str, algorithm: str, configured: registry.Configured, **source: Any
    ) -> "AlgorithmContender":
        """Return the contender of a configured algorithm."""
        return cls(
            name=name,
            algorithm=algorithm,
            settings=configured.settings,
            configured=configured,
            source=source,
        )

    @property
    def kind(self) -> str:
        return algorithm_of(self.algorithm)

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "algorithm": self.algorithm,
            "settings": self.settings,
            "source": self.source,
        }

    @property
    def num_environments(self) -> int | None:
        own = settings_of_agent(self.settings).get("num_environments")
        return self.source.get(NUM_ENVIRONMENTS, own)

    @property
    def own_training(self) -> registry.Configured | None:
        return self.loaded if self.loaded.algorithm.train else None

    def observed(self, task: environments.Environment) -> environments.Environment:
        return self.loaded.observed(task)

    def make(self, task: environments.Environment) -> Agent:
        return self.loaded.make(task)

    def check(self, task: environments.Environment, num_steps: int) -> None:
        self.loaded.check(task, num_steps)

    @property
    def loaded(self) -> registry.Configured:
        """The algorithm and its settings."""
        assert self.configured is not None, f"{self.name} is read from a manifest."
        return self.configured

    @property
    def has_agent_of_config(self) -> bool:
        """Whether it has the network and the environments of the config's agent."""
        return TUNED_SETTINGS in self.source or not self.loaded.algorithm.has_literature

    def has_network(self, network: NetworkConfig) -> bool:
        """Return whether it has a network for images, instead of its literature's."""
        found = (self.loaded.config, *self.loaded.by_task.values())
        networks = (getattr(getattr(x, "agent", x), "network", None) for x in found)
        return bool(network.channels) and network in networks


def settings_of_agent(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of an algorithm's settings that are its agent's, or all."""
    agent = settings.get("agent")
    return agent if isinstance(agent, Mapping) else settings


def make_contenders(
    rules: Sequence[RuleContender],
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
    contenders = (
        random_policy(config),
        *(_algorithm(name, config, tuned, changes) for name in config.baselines),
        *(_tuned_rule(x, config, tuned) for x in rules),
        *(_algorithm(name, config, None, changes) for name in agents),
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
    rules = [x for x in contenders if isinstance(x, RuleContender)]
    algorithms = [x for x in contenders[1:] if isinstance(x, AlgorithmContender)]
    untuned = {x.kind for x in algorithms if TUNED_SETTINGS not in x.source}
    shared = [*rules, *(x for x in algorithms if x.has_agent_of_config)]
    for name in changes:
        section, _, field = name.partition(".")
        # The random policy has the number of environments and the unroll; both give the budget.
        if section == "agent" and field in ("num_environments", "unroll_length"):
            continue
        of_rules = name.startswith("rule_") and name != "rule_discount"
        of_rules |= name == "agent.learning_rate"
        readers = rules if of_rules else shared
        if name == "agent.frame_stack" or name.startswith("agent.network."):
            readers = [*shared, *(x for x in algorithms if x.has_network(config.agent.network))]
        if (section == "agent" or name.startswith("rule_")) and not readers:
            raise ValueError(
                f"--config.{name} is given, and no contender reads it:"
                f" {', '.join(x.name for x in contenders)} have settings of their own; expected a"
                f" --rule{'' if of_rules else ' or a tuned baseline, such as ppo_tuned'}."
            )
        if section == ALGORITHMS and (algorithm := field.partition(".")[0]) not in untuned:
            raise ValueError(
                f"--config.{ALGORITHMS}.{algorithm} is given, and no contender reads it; expected"
                f" {algorithm!r}, which is not tuned, in --agent or --baselines."
            )


def _tuned_rule(
    rule: RuleContender, config: EvaluationConfig, tuned: TunedSettings | None
) -> RuleContender:
    """Return a rule with its tuned settings, if it has any."""
    settings = tuned and tuned.of_rule(rule.name, rule.parameters_sha256, config)
    return rule if settings is None else rule.tuned(settings, config.budget)


def random_policy(config: EvaluationConfig) -> AlgorithmContender:
    """Return the random policy, in the environments of the config's agents."""
    own = {x: getattr(config.agent, x) for x in ("num_environments", "unroll_length")}
    return AlgorithmContender.of(RANDOM, RANDOM, registry.configured(RANDOM).replaced(own))


def _algorithm(
    name: str,
    config: EvaluationConfig,
    tuned: TunedSettings | None,
    changes: Mapping[str, Any],
) -> AlgorithmContender:
    """Return the contender of an algorithm `NAME/PARAMETERS` or `NAME_tuned`.

    Raises:
      ValueError: if there is none, it has no tuned settings, or a setting does not fit.
    """
    family = algorithm_of(name)
    if name in config.tuned_baselines:
        if tuned is None:
            raise ValueError(
                f"baselines has {name!r}, and there are no tuned settings of {family!r}; expected"
                f" some (launch.tune, --tuned=FILE), or {family!r}, with its literature's settings."
            )
        return tuned_algorithm(name, family, config, tuned.of_baseline(name, config))
    algorithm = registry.find(name)
    made = algorithm.in_evaluation(config.shared, name.partition("/")[2])
    if algorithm.has_literature and config.agent.network.channels:
        made = made.with_images_network(config.agent.network, config.agent.frame_stack)
    prefix = f"{ALGORITHMS}.{family}."
    own = {x.removeprefix(prefix): y for x, y in changes.items() if x.startswith(prefix)}
    made = made.replaced(own).for_run(config.num_steps)
    shown = made.algorithm.display_name(name) if made.algorithm.display_name else name
    return AlgorithmContender.of(shown.replace("/", "_").replace(",", "_"), name, made)


def tuned_algorithm(
    name: str, algorithm: str, config: EvaluationConfig, settings: Settings
) -> AlgorithmContender:
    """Return the contender of an algorithm with settings that a search has found.

    Raises:
      ValueError: if a setting is unknown or out of range.
    """
    made = registry.find(algorithm).with_tuned(config.shared, settings)
    return AlgorithmContender.of(name, algorithm, made, **{TUNED_SETTINGS: dict(settings)})


def rule_contenders(
    rules: Sequence[str], config: EvaluationConfig, copies: pathlib.Path | None = None
) -> list[RuleContender]:
    """Return the contenders of rules, which are not tuned.

    Args:
      rules: names of rules (`disco.rule_sources`), or of other packages' rules.
      config: of the evaluation.
      copies: folder with copies of rule files (`copy_of_rule`), which are read if the files no
        longer exist.

    Raises:
      FileNotFoundError, disco.RuleFileError: if a rule cannot be read.
      ValueError: if a rule has no discount to set, or its name is not its own.
    """
    found = []
    for name, rule in zip(distinct_names(rules), rules, strict=True):
        copy = None if copies is None else copy_of_rule(copies, name)
        loaded, header, sha256 = load(name, rule, copy, config.rule_discount)
        agent, origins = agent_of(rule, header, config)
        source = {
            "file": rule,
            **sha256,
            "parameters_sha256": fingerprint(loaded),
            "header": header,
            **{f"{x}_from": origin for x, origin in origins.items()},
        }
        found.append(
            RuleContender(
                name=name,
                is_discovered=isinstance(loaded, disco.DiscoveredRule),
                rule=loaded,
                agent=dataclasses.replace(agent, lifetime=agent.lifetime or config.budget),
                source=source,
            )
        )
    return found
