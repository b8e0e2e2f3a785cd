"""Configuration of an evaluation: agents, budgets, baselines, and scoring."""

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

import disco
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from agents.search_space import CommonSettings
from disco_common.ranges import (
    POSITIVE,
    AtLeast0,
    Below1,
    Count,
    Fraction,
    Positive,
    require_ranges,
)
from training.schedule import TrainingConfig

TUNED = "_tuned"  # End of the name of a baseline that has tuned settings.


def algorithm_of(algorithm: str) -> str:
    """Return an algorithm's name without parameters, and without `TUNED`."""
    return algorithm.partition("/")[0].removesuffix(TUNED)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation; the defaults suit a laptop.

    Attributes:
      agent: configuration of the agents of evaluated rules and of tuned baselines. An update's
        environment steps are the unit of `budget` for all contenders.
      seed: the first seed.
      seeds: number of runs of each contender on each task, with consecutive seeds.
      budget: environment steps of a run, rounded down to whole updates. The transitions from an
        episode's last observation to the next one's first count, too (`agents.protocol`): on
        catch/8x8, one step in eight is no action.
      rule_learning_rate: learning rate of the agents that learn by discovered rules or by those of
        other packages. By default the one in the rule's file, with which the rule was discovered,
        divided by how many times wider `agent.network.torso` is than there, or else
        `agent.learning_rate`. If it fell in the discovery, it falls over the same lifetime, unless
        `rule_lifetime` is set.
      rule_replay_ratio: replayed part of the same agents' batches, which also have a fresh
        trajectory for each environment. By default `agent.replay_ratio` or, if that is 0, the one
        with which the rule was discovered.
      rule_num_environments: parallel environments of the same agents, a divisor of
        `agent.num_environments`, which is the default. With fewer, as many environment steps make
        more updates.
      rule_lifetime: environment steps in which the same agents' learning rate falls; 0 for the
        budget. By default those of the discovery, but at most the budget.
      rule_reward_scale: factor of the rewards that the same agents learn from, in place of
        `agent.reward_scale`. By default, and if that is 1, the one with which the rule was
        discovered.
      rule_discount: discount of the same rules' value functions and of tuned baselines'; None for
        each rule's own, 0.997 for tuned baselines.
      baselines: algorithms to compare with (`agents.registry`): with their literature's settings,
        with a preset as `"ppo/cleanrl"`, or tuned as `"ppo_tuned"` (`evaluation.contenders`).
      num_points: of a learning curve.
      score_window: the last fraction of a run's updates; the score is the mean return over it.
      confidence: level of the confidence intervals.
      resamples: of the bootstrap.
      runs_at_once: per device and vectorised pass. By default one on a CPU, whose caches hold one
        agent, and all on an accelerator. It changes speed only.
      updates_per_call: most updates of an agent between two lines of `metrics.jsonl`. Lines of an
        agent that needs no rule are of at most as many environment steps; an agent that trains
        itself ignores it.
      checkpoint_seconds: seconds between two checkpoints of unfinished runs.
    """

    agent: RuleAgentConfig = RuleAgentConfig(
        network=NetworkConfig(torso=(32,), model=32, head=(32,)),
        learning_rate=1e-3,
        num_environments=8,
        unroll_length=16,
        batch_size=8,
        replay_ratio=0.0,
    )
    seed: int = 0
    seeds: Count = 5
    budget: int = 100_000
    rule_learning_rate: Positive | None = None
    rule_replay_ratio: Below1 | None = None
    rule_num_environments: int | None = None
    rule_lifetime: AtLeast0[int] | None = None
    rule_reward_scale: Positive | None = None
    rule_discount: Fraction | None = None
    baselines: tuple[str, ...] = ("actor_critic", "ppo")
    num_points: Count = 20
    score_window: float = 0.2
    confidence: float = 0.95
    resamples: Count = 2000
    runs_at_once: Count | None = None
    updates_per_call: Count = 50
    checkpoint_seconds: AtLeast0[float] = 600.0

    # Fields of earlier versions, which are ignored where a stored config has them.
    REMOVED: ClassVar[tuple[str, ...]] = (
        "baseline_learning_rates",
        "min_separation",
        "baseline_learning_rate",
        "baseline_entropy_cost",
        "baseline_normalize_advantage",
        "actor_critic_lambda",
        "actor_critic_replay_ratio",
        "strip_frames",
    )

    def __post_init__(self):
        require_ranges(self)
        if not 0 <= self.seed <= 2**32 - self.seeds:
            raise ValueError(f"seed is {self.seed}; expected 0 to 2**32 - seeds.")
        if self.budget < self.agent.steps_per_update:
            raise ValueError(
                f"budget is {self.budget} environment steps; expected at least one update's"
                f" {self.agent.steps_per_update} (agent.num_environments"
                f" {self.agent.num_environments} times agent.unroll_length"
                f" {self.agent.unroll_length})."
            )
        for name in self.baselines:
            if "/" in name and name.endswith(TUNED):
                raise ValueError(f"baselines has {name!r}; expected no preset before {TUNED}.")
        if len(set(self.baselines)) < len(self.baselines):
            raise ValueError(f"baselines is {self.baselines}; expected each once.")
        of_rules = self.rule_num_environments
        if of_rules is not None and (of_rules < 1 or self.agent.num_environments % of_rules):
            raise ValueError(
                f"rule_num_environments is {of_rules}; expected a divisor of"
                f" agent.num_environments, {self.agent.num_environments}."
            )
        POSITIVE.require_value("agent.learning_rate", self.agent.learning_rate)
        if not 0 < self.score_window <= 1:
            raise ValueError(f"score_window is {self.score_window}; expected more than 0, up to 1.")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}; expected between 0 and 1.")

    @property
    def tuned_baselines(self) -> dict[str, str]:
        """The algorithm of each baseline that has tuned settings, by its name."""
        return {x: algorithm_of(x) for x in self.baselines if x.endswith(TUNED)}

    @property
    def common(self) -> CommonSettings:
        """The settings that tuned algorithms share with the evaluated rules."""
        own = disco.ActorCritic().discount
        discount = own if self.rule_discount is None else self.rule_discount
        return CommonSettings(self.agent, self.budget, discount)

    @property
    def num_updates(self) -> int:
        """Updates of a run of `agent`."""
        return self.budget // self.agent.steps_per_update

    @property
    def num_steps(self) -> int:
        """Environment steps of a run."""
        return self.num_updates * self.agent.steps_per_update

    @functools.cached_property
    def intervals(self) -> tuple[Int[np.ndarray, "points"], int]:
        """The updates at which a curve's intervals end, and the update before the window."""
        points = np.linspace(0, self.num_updates, self.num_points + 1)
        ends = np.unique(np.round(points).astype(int))[1:]
        return ends, self.num_updates - max(1, round(self.num_updates * self.score_window))

    @functools.cached_property
    def training(self) -> TrainingConfig:
        """The length of a run, and the ends of its intervals."""
        ends, window_start = self.intervals
        per_update = self.agent.steps_per_update
        return TrainingConfig(
            num_steps=self.num_steps,
            boundaries=tuple(sorted(int(x) * per_update for x in {*ends, window_start})),
            interval=self.updates_per_call * per_update,
            scored_from=window_start * per_update,
            checkpoint_seconds=self.checkpoint_seconds,
            runs_at_once=self.runs_at_once,
        )

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seed of each run on a task."""
        return tuple(range(self.seed, self.seed + self.seeds))

    @property
    def bootstrap(self) -> dict[str, Any]:
        """The arguments of `statistics.interval` that all intervals share."""
        return {
            "resamples": self.resamples,
            "confidence": self.confidence,
            "seed": self.seed,
        }

    @property
    def score_definition(self) -> str:
        """The definition of a score, for captions."""
        return (
            "mean undiscounted return of the episodes that ended in the last"
            f" {self.score_window:.0%} of {self.num_steps:,} environment steps"
        )
