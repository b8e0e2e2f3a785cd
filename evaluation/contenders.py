"""The contenders of an evaluation: discovered rules, baselines, other agents, a random policy.

Other packages add rules by entry points of the group `disco.rules`: the entry point has the rule's
name, and is a function that returns the rule (`docs/extending.md`).
"""

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import disco
import environments
from agents import registry
from agents.factories import ConfiguredFactory
from agents.registry import AgentFactory, ObservingFactory
from agents.rule_agent import AgentConfig
from agents.self_contained import SelfContainedAgent
from agents.settings import with_stored
from disco import rule_sources
from disco_common import plugins
from disco_common.configuration import from_json
from disco_common.terminal import require_printable
from evaluation import baselines, folder_names
from evaluation.config import BASELINES, EvaluationConfig, kind_of
from evaluation.fingerprints import fingerprint
from evaluation.rule_agents import agent_of
from evaluation.studies import ablations

DISCOVERED, RULE, RANDOM, AGENT = "discovered", "rule", "random", "agent"
PLUGINS = plugins.define("disco.rules", disco.Rule, parameters=0)
# Of a contender's source: steps of its optimiser per environment step; its parameters, the fewest
# and the most over tasks; environment steps between two updates; hash of the rule's file.
GRADIENT_STEPS = "gradient_steps_per_environment_step"
PARAMETERS = "parameters"
STEPS_PER_UNROLL = "environment_steps_per_unroll"
FILE_SHA256 = "file_sha256"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Contender:
    """An update rule and the agent that learns by it, or an agent that needs no rule.

    Attributes:
      name: unique in an evaluation; also the name of its folder of runs.
      kind: `DISCOVERED` for a `disco.DiscoveredRule`, `RULE` for another rule of another package,
        `RANDOM`, `AGENT` for an agent that needs no rule, or a baseline's name.
      rule: None for the uniformly random policy, which does not learn, and for other agents.
      agent: configuration of the agent that learns by the rule. For other agents, it only gives
        the unit of the budget, `steps_per_update`.
      other: makes an agent that learns without a rule, or is an agent that trains itself; None for
        the random policy and for agents that learn by a rule.
      source: origin of the rule; JSON values.
    """

    name: str
    kind: str
    rule: disco.Rule | None
    agent: AgentConfig
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    other: AgentFactory | SelfContainedAgent | None = None

    @property
    def is_agent(self) -> bool:
        """Whether its settings are those of an agent of `agents.registry`."""
        return "agent" in self.source

    @property
    def num_environments(self) -> int:
        """The environments that its agent acts in at once."""
        own = self.source.get("hyper_parameters")
        number = own.get("num_environments") if isinstance(own, Mapping) else None
        return self.agent.num_environments if number is None else number

    def num_steps(self, config: EvaluationConfig) -> int:
        """Return the environment steps of a run: whole unrolls of its agent."""
        per_unroll = self.source.get(STEPS_PER_UNROLL, 1)
        return config.num_steps // per_unroll * per_unroll

    @property
    def trains_itself(self) -> bool:
        """Whether its agent trains itself (`agents.self_contained`)."""
        return isinstance(self.other, SelfContainedAgent)

    def observed(self, task: environments.Environment) -> environments.Environment:
        """Return a task with the observations that its agent chooses."""
        return self.other.observed(task) if isinstance(self.other, ObservingFactory) else task

    @classmethod
    def of_baseline(
        cls, name: str, kind: str, config: EvaluationConfig, settings: baselines.Settings | None
    ) -> "Contender":
        """Make a baseline of an evaluation.

        Args:
          name: the contender's.
          kind: the baseline's; a rule's where `settings` is None.
          config: the evaluation's.
          settings: see `baselines.make`; None for those of the literature.

        Raises:
          ValueError: if a setting is unknown or out of range.
        """
        if settings is None:
            made = baselines.of_literature(kind, config)
        else:
            made = baselines.make(kind, config, settings)
        own: Any = made.rule if made.other is None else made.other.config
        contender = cls(
            name=name,
            kind=kind,
            rule=made.rule,
            agent=made.agent,
            source={"hyper_parameters": dataclasses.asdict(own)},
            other=made.other,
        )
        return contender.with_schedule_length(config)

    def with_settings(self, settings: baselines.Settings) -> "Contender":
        """Return an evaluated rule's contender with other settings of its agent.

        Args:
          settings: of `baselines.RULE_SETTINGS`, some or all.

        Raises:
          ValueError: if there are others, or one is out of range.
        """
        if unknown := sorted(set(settings) - set(baselines.RULE_SETTINGS)):
            raise ValueError(f"{self.name} has no settings {unknown}.")
        agent = baselines.with_settings(self.agent, settings)
        if "end_learning_rate" in settings:  # Over the budget, not over the discovery's lifetime.
            agent = dataclasses.replace(agent, lifetime=0)
        return dataclasses.replace(self, agent=agent)

    def with_schedule_length(self, config: EvaluationConfig) -> "Contender":
        """Return the contender with a length of its learning rate's schedule: the budget."""
        if self.agent.lifetime:
            return self
        agent = dataclasses.replace(self.agent, lifetime=config.budget)
        return dataclasses.replace(self, agent=agent)


def make_contenders(
    rules: Sequence[str],
    config: EvaluationConfig,
    agents: Sequence[str] = (),
    copies: pathlib.Path | None = None,
    tuned: Mapping[str, baselines.Settings] | None = None,
) -> tuple[Contender, ...]:
    """Return all contenders: the random policy, the baselines, the rules, and other agents.

    Args:
      rules: names of rules (`disco.rule_sources`), or of other packages' rules.
      config: of the evaluation.
      agents: names of other agents (`agents.registry`).
      copies: folder with copies of rule files (`copy_of_rule`), which are read if the files no
        longer exist.
      tuned: settings of tuned baselines, and of the agents of rules, by kind and name; rules that
        it lacks have their own.

    Raises:
      FileNotFoundError, disco.RuleFileError: if a rule cannot be read.
      ValueError: if an agent is unknown or its configuration is impossible, a rule has no discount
        to set, or two contenders have the same name.
    """
    random = Contender(name=RANDOM, kind=RANDOM, rule=None, agent=baselines.on_policy(config.agent))
    learning = (
        *_baselines(config, tuned or {}),
        *_rules(rules, config, copies, tuned or {}),
        *(_agent(name, config) for name in agents),
    )
    contenders = (random, *learning)
    for contender in contenders:
        if [x.name for x in contenders].count(contender.name) > 1:
            raise ValueError(f"Two contenders are called {contender.name!r}; expected one.")
    return tuple(contender.with_schedule_length(config) for contender in contenders)


def _baselines(
    config: EvaluationConfig, tuned: Mapping[str, baselines.Settings]
) -> list[Contender]:
    """Return the config's baselines.

    Raises:
      ValueError: if a tuned one has no tuned settings.
    """
    found = []
    for name in config.baselines:
        kind = kind_of(name)
        if name not in config.tuned_baselines:
            is_agent = kind in plugins.names(registry.PLUGINS)
            one = (
                _agent(name, config)
                if is_agent
                else Contender.of_baseline(name, kind, config, None)
            )
        elif kind not in tuned:
            raise ValueError(
                f"baselines has {name!r}, and there are no tuned settings of {kind!r}; expected"
                f" some (launch.tune, --tuned=FILE), or {kind!r}, with its literature's settings."
            )
        else:
            one = Contender.of_baseline(name, kind, config, tuned[kind])
            one = dataclasses.replace(one, source=one.source | _tuned_source(tuned[kind]))
        found.append(one)
    return found


def _tuned_source(settings: baselines.Settings | None) -> dict[str, Any]:
    return {} if settings is None else {"tuned": dict(settings)}


def _rules(
    rules: Sequence[str],
    config: EvaluationConfig,
    copies: pathlib.Path | None,
    tuned: Mapping[str, baselines.Settings],
) -> list[Contender]:
    found = []
    for name, rule in zip(_distinct_names(rules), rules, strict=True):
        copy = None if copies is None else copy_of_rule(copies, name)
        loaded, header, sha256 = _load(rule, copy)
        if config.rule_discount is not None:
            loaded = _with_discount(name, loaded, config.rule_discount)
        settings = tuned.get(name, {})
        agent, origins = agent_of(rule, header, config)
        origins |= {x: "tuned settings" for x in origins if x in settings}
        contender = Contender(
            name=name,
            kind=DISCOVERED if isinstance(loaded, disco.DiscoveredRule) else RULE,
            rule=loaded,
            agent=agent,
            source={
                "file": rule,
                **sha256,
                "parameters_sha256": fingerprint(loaded),
                "header": header,
                **{f"{x}_from": origin for x, origin in origins.items()},
                **_tuned_source(tuned.get(name)),
            },
        )
        found.append(contender.with_settings(settings))
    return found


def _with_discount(name: str, rule: disco.Rule, discount: float) -> disco.Rule:
    """Return a rule with another discount.

    Raises:
      ValueError: if it has no such field.
    """
    if not dataclasses.is_dataclass(rule) or "discount" not in {
        field.name for field in dataclasses.fields(rule)
    }:
        raise ValueError(
            f"rule_discount is {discount:g}, but the rule {name!r} has no discount to set; expected"
            " None."
        )
    return dataclasses.replace(rule, discount=discount)


def _agent(name: str, config: EvaluationConfig) -> Contender:
    """Return the contender of an agent `family/parameters`, whose family may be a baseline."""
    agent, kind = registry.make(name), kind_of(name)
    if isinstance(agent, ConfiguredFactory):
        network = config.agent.network
        if network.channels:
            agent = agent.with_images_network(network, config.agent.frame_stack)
        agent = agent.for_run(config.num_steps)
    return Contender(
        name=name.replace("/", "_").replace(",", "_"),
        kind=kind if kind in BASELINES else AGENT,
        rule=None,
        agent=baselines.on_policy(config.agent),
        source={"agent": name, "hyper_parameters": dict(agent.settings)},
        other=agent,
    )


def restored(stored: Contender, config: EvaluationConfig, copies: pathlib.Path) -> Contender:
    """Return a contender of an evaluation on disk (`evaluation.report.manifest`), complete.

    Args:
      stored: without its rule or agent.
      config: of the evaluation.
      copies: folder with copies of rule files (`copy_of_rule`).

    Raises:
      ValueError: if its rule is gone or another one now, or an older version stored it.
    """
    source = stored.source
    if stored.kind == RANDOM:
        return stored
    if stored.kind in BASELINES and "agent" not in source:
        return _restored_baseline(stored, config)
    if stored.kind in (AGENT, *BASELINES):
        if "agent" not in source:
            raise ValueError(
                f"The agent {stored.name!r} was trained by an older version, which did not store"
                " what it was called."
            )
        agent, of_run = registry.make(source["agent"]), source["hyper_parameters"]
        if isinstance(of_run, Mapping):
            agent = with_stored(agent, source["agent"], of_run)
        if _as_json(agent.settings) != of_run:
            raise ValueError(
                f"The agent {source['agent']!r} has other settings in this version:"
                f" {_as_json(agent.settings)}; expected those of the run,"
                f" {of_run}."
            )
        return dataclasses.replace(stored, other=agent)
    # A file may have changed since; its copy, by the name of the contender or of the file, has not.
    # A rule of the hub is only read from its copy: reading a run downloads nothing.
    origin = str(source["file"])
    names = dict.fromkeys((stored.name, rule_sources.short_names(origin)[0]))
    files = [str(copy_of_rule(copies, name)) for name in names]
    if not origin.startswith(rule_sources.HUB):
        files = [origin, *files]
    for file in files:
        try:
            rule = _load(file, None)[0]
        except (OSError, disco.RuleFileError):
            continue
        if config.rule_discount is not None:
            rule = _with_discount(stored.name, rule, config.rule_discount)
        if fingerprint(rule) == source["parameters_sha256"]:
            return dataclasses.replace(stored, rule=rule)
    raise ValueError(
        f"The rule {stored.name!r} is gone: {source['file']!r} and its copy in {str(copies)!r} are"
        " missing, or other rules now."
    )


def _restored_baseline(stored: Contender, config: EvaluationConfig) -> Contender:
    """Return a stored baseline with the settings that it had, also those of a study or a trial."""
    made = Contender.of_baseline(stored.name, stored.kind, config, {})
    settings = stored.source["hyper_parameters"]
    if made.other is None:
        rule: Any = made.rule
        return dataclasses.replace(stored, rule=from_json(type(rule), settings))
    other: Any = made.other
    restored = dataclasses.replace(other, config=from_json(type(other.config), settings))
    return dataclasses.replace(stored, other=restored)


def _as_json(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(settings)))


def copies_in(workdir: str | os.PathLike) -> pathlib.Path:
    """Return the folder in a workdir for copies of rule files, by the contenders' names."""
    return pathlib.Path(workdir) / "rules"


def copy_of_rule(copies: pathlib.Path, contender: str) -> pathlib.Path:
    """Return the path of the copy of a contender's rule file, in a folder of copies."""
    return copies / f"{folder_names.of_contender(contender)}.npz"


def find_plugin(rule: str) -> Callable[..., disco.Rule] | None:
    """Return the function of another package that makes a rule; None if there is none.

    Raises:
      PluginError: (an `ImportError`) if it cannot be imported.
    """
    return None if rule.startswith(rule_sources.HUB) else plugins.find(PLUGINS, rule)


def _load(
    rule: str, copy: pathlib.Path | None
) -> tuple[disco.Rule, dict[str, Any], dict[str, str]]:
    """Return a rule, its file's header, and the file's hash for the contender's source.

    Args:
      rule: a name of `disco.rule_sources`, or of a plugin, which has neither header nor hash.
      copy: of the file, to read if the file is gone; None for none.
    """
    if plugin := find_plugin(rule):
        return plugin(), {}, {}
    path = _source(rule, copy)
    if path == copy:
        _log.warning("Rule file %r does not exist. The rule's copy %s is used.", rule, copy)
    return *ablations.read(path), {FILE_SHA256: rule_sources.sha256_of(path)}


def check_names(
    rules: Sequence[str], agents: Sequence[str] = (), copies: pathlib.Path | None = None
) -> None:
    """Refuse names of no rule and of no agent, before something else starts that takes long.

    Arguments and errors are those of `make_contenders`.
    """
    for name, rule in zip(_distinct_names(rules), rules, strict=True):
        if find_plugin(rule) is None:
            _source(rule, None if copies is None else copy_of_rule(copies, name))
    for agent in agents:
        registry.make(agent)


def _source(rule: str, copy: pathlib.Path | None) -> pathlib.Path:
    """Return the path of a rule's file, or of its copy if the file is gone."""
    try:
        return rule_sources.find(rule)
    except FileNotFoundError:
        if copy is None or not copy.is_file():
            raise
        return copy


def _distinct_names(rules: Sequence[str]) -> list[str]:
    """Return the rules' names: file stems, prefixed by the folder's name where stems are equal."""
    found = [rule_sources.short_names(rule) for rule in rules]
    stems = [stem for stem, _ in found]
    names = [longer if stems.count(stem) > 1 else stem for stem, longer in found]
    for name, rule in zip(names, rules, strict=True):
        require_printable(f"--rule {rule!r}: the name", name)
        if names.count(name) > 1:
            raise ValueError(
                f"--rule names {rule!r} and another rule that would also be called {name!r};"
                " expected files of different names or in folders of different names."
            )
        if name == RANDOM or kind_of(name) in BASELINES or "@" in name:
            kept = ", ".join((RANDOM, *BASELINES))
            raise ValueError(
                f"--rule {rule!r} would be called {name!r}, which is kept for other contenders;"
                f" expected a file name without '@' and other than {kept}."
            )
    return names
