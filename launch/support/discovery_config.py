"""The config of a discovery run, which config files return, and the rule that it starts from."""

import dataclasses
import pathlib
from typing import Any

import jax

import disco
from disco_common.ranges import POSITIVE, AtLeast0, Count, require_ranges
from evaluation.studies import ablations
from evaluation.studies.ablations import Ablated
from meta.config import DiscoveryConfig

START = "start.npz"  # In a run's workdir: a copy of the rule file that it started from, if any.

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
class RuleConfig(_OfRule):
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
class ProbeConfig:
    """Fresh agents that learn tasks by a discovery's average rule (`discovery_rules.Probes`).

    Attributes:
      interval: meta-steps between probes; the last meta-step has one, too. 0 for none.
      num_tasks: that they learn, of those with reference scores.
      seeds: agents on each task.
      budget: environment steps of each agent.
    """

    interval: AtLeast0[int] = 0
    num_tasks: Count = 8
    seeds: Count = 1
    budget: Count = 99_968

    def __post_init__(self):
        require_ranges(self, "probe.")


@dataclasses.dataclass(frozen=True)
class DiscoveryRunConfig(DiscoveryConfig):
    """A discovery run; further fields are those of its population (`meta.config`).

    Attributes:
      suite: names of suites or environments, separated by commas.
      meta_steps: in total.
      checkpoint_interval: meta-steps between checkpoints.
      checkpoints_kept: number of the newest checkpoints to keep.
      log_interval: meta-steps between reports.
      rule, probe: see their classes.
    """

    suite: str = "grid57"
    meta_steps: Count = 1000
    checkpoint_interval: Count = 100
    checkpoints_kept: Count = 3
    log_interval: Count = 10
    rule: RuleConfig = RuleConfig()
    probe: ProbeConfig = ProbeConfig()

    def __post_init__(self):
        require_ranges(self)
        POSITIVE.require_value("agent.learning_rate", self.agent.learning_rate)
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


def make_rule(
    config: DiscoveryRunConfig, folder: pathlib.Path | None = None
) -> disco.DiscoveredRule:
    """Return the rule that a run starts from: of the copy in its folder, a file, or a random one.

    Raises:
      FileNotFoundError, disco.RuleFileError: if the file cannot be read.
    """
    rule = config.rule
    if rule.start:
        copy = folder / START if folder is not None else None
        return ablations.load(copy if copy is not None and copy.is_file() else rule.start)
    return ablations.create(
        jax.random.key(config.seed), is_published=rule.is_published_init, **rule.of_rule
    )
