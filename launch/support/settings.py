"""The settings of a discovery run, as a dataclass; config files return instances of it."""

import dataclasses
from typing import Any

from agents.rule_agent import AgentConfig
from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, POSITIVE
from evaluation.studies.ablations import Ablated
from launch.support.workdirs import ADOPTED
from meta.config import MetaConfig, PopulationConfig
from meta.objective import ObjectiveConfig
from meta.value_function import ValueFunctionConfig

# The fields of a rule of any form, but its parameters.
_OfRule: Any = dataclasses.make_dataclass(
    "_OfRule",
    [
        (field.name, field.type, dataclasses.field(default=field.default))
        for field in dataclasses.fields(Ablated)
        if field.name != "parameters"
    ],
    frozen=True,
)


@dataclasses.dataclass(frozen=True)
class RuleSettings(_OfRule):
    """The rule to discover; further fields as in `disco.AnchoredRule` and `Ablated`.

    The rule has the simplest form that has these settings (`evaluation.studies.ablations.create`):
    with the defaults it is the published one.

    Attributes:
      start: a rule file or zoo name to start from, whose sizes and hyper-parameters replace those
        given here; empty to start from a random rule.
      is_published_init: whether a random rule is drawn exactly as by the authors' release
        (`disco.DiscoveredRule.create`).
    """

    start: str = ""
    is_published_init: bool = False

    def __post_init__(self):
        Ablated(parameters={}, **self.of_rule)  # Refuses what is out of range.
        if self.is_published_init and self.start:
            raise ValueError(
                f"rule.is_published_init is True beside rule.start {self.start!r}, a rule that is"
                " not drawn; expected one of the two."
            )

    @property
    def of_rule(self) -> dict[str, Any]:
        """The settings that are fields of the rule."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(_OfRule)}


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """Fresh agents that learn tasks of the discovery by its average rule (`launch.support.probes`).

    Attributes:
      interval: meta-steps between probes; the last meta-step has one, too. 0 for none.
      num_tasks: that they learn, of those with reference scores.
      seeds: agents on each task.
      budget: environment steps of each agent.
    """

    interval: int = 0
    num_tasks: int = 8
    seeds: int = 1
    budget: int = 99_968

    def __post_init__(self):
        AT_LEAST_0.require(self, "probe.", "interval")
        AT_LEAST_1.require(self, "probe.", "num_tasks", "seeds", "budget")


@dataclasses.dataclass(frozen=True)
class DiscoverSettings:
    """A discovery run.

    Attributes:
      suite: names of suites or environments, separated by commas.
      seed: of all randomness.
      meta_steps: in total.
      checkpoint_interval: meta-steps between checkpoints.
      checkpoints_kept: number of the newest checkpoints to keep.
      log_interval: meta-steps between reports.
      devices_per_agent: number of devices that split an agent's batches, if an agent does not fit
        on one.
      families: changes of `agent` for families of environments, for example
        `"dmlab: memory=256 frame_stack=1"`. The family is the part of the environments' names
        before the slash. The changes may be of memory (units of the network's memory), frame_stack
        and burn_in.
      rule, agent, value_function, objective, population, meta, probe: see their classes.
    """

    suite: str = "grid57"
    seed: int = 0
    meta_steps: int = 1000
    checkpoint_interval: int = 100
    checkpoints_kept: int = 3
    log_interval: int = 10
    devices_per_agent: int = 1
    rule: RuleSettings = RuleSettings()
    agent: AgentConfig = AgentConfig()
    families: tuple[str, ...] = ()
    value_function: ValueFunctionConfig = ValueFunctionConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    population: PopulationConfig = PopulationConfig()
    meta: MetaConfig = MetaConfig()
    probe: ProbeSettings = dataclasses.field(default=ProbeSettings(), metadata=ADOPTED)

    def __post_init__(self):
        counts = "meta_steps checkpoint_interval checkpoints_kept log_interval devices_per_agent"
        AT_LEAST_1.require(self, "", *counts.split())
        POSITIVE.require(self.agent, "agent.", "learning_rate")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is {self.seed}; expected 0 to 2**32 - 1.")


# Fields that may differ when a run is continued: they do not change the result, except for
# devices_per_agent, which changes the order of sums.
CHANGEABLE = (
    "meta_steps",
    "checkpoint_interval",
    "checkpoints_kept",
    "log_interval",
    "devices_per_agent",
    "meta.agents_at_once",
)
