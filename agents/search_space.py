"""Ranges of settings for a search, and the settings that an evaluation's contenders share."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agents.rule_agent import RuleAgentConfig

Settings = Mapping[str, Any]
_EDGE = 0.05  # Part of a range, at each end.


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """A range of positive numbers, whose logarithms are drawn uniformly."""

    low: float
    high: float

    def draw(self, random: np.random.Generator) -> float:
        value = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        return float(f"{value:.3g}")

    def is_at_the_edge(self, value: float) -> bool:
        place = math.log(value / self.low) / math.log(self.high / self.low)
        return not _EDGE <= place <= 1.0 - _EDGE


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values in order, each as likely.

    Lower values than the first, or higher ones than the last, may make sense, too.
    """

    values: tuple[float | int | bool, ...]
    may_be_lower: bool = False
    may_be_higher: bool = False

    def draw(self, random: np.random.Generator) -> float | int | bool:
        return self.values[int(random.integers(len(self.values)))]

    def is_at_the_edge(self, value: float) -> bool:
        is_lowest, is_highest = value == self.values[0], value == self.values[-1]
        return (self.may_be_lower and is_lowest) or (self.may_be_higher and is_highest)


Ranges = Mapping[str, LogUniform | Choice]

RATE = LogUniform(1e-4, 3e-2)
ENTROPY = LogUniform(1e-4, 0.3)
REPLAY = Choice((0.0, 0.5, 0.75, 0.875, 0.9375), may_be_higher=True)
YES_OR_NO = Choice((False, True))
TRACES = Choice((0.6, 0.8, 0.9, 0.95, 1.0), may_be_lower=True)
END_RATE = Choice((0.1, 1.0))  # Of the learning rate, at its end.
# How often an algorithm learns from a transition is free: tables say how much each one computes.
SIZES: Ranges = {
    "width": Choice((32, 64, 128, 256), may_be_lower=True, may_be_higher=True),
    "layers": Choice((1, 2)),
    "num_environments": Choice((1, 2, 4, 8, 16)),
    "unroll_length": Choice((8, 16, 32), may_be_lower=True, may_be_higher=True),
}
# Settings of an agent that learns by a rule.
RULE_RANGES: Ranges = {
    "learning_rate": RATE,
    "end_learning_rate": END_RATE,
    "replay_ratio": REPLAY,
}


# Of a search's first trial.
DEFAULTS: Settings = {
    "learning_rate": 3e-3,
    "entropy_cost": 0.01,
    "lambda_": 0.95,
    "normalize_advantage": False,
}


@dataclasses.dataclass(frozen=True)
class CommonSettings:
    """The settings that tuned algorithms share with the rules of an evaluation.

    Attributes:
      agent: of the evaluated rules, whose network and environments are the default.
      budget: environment steps of a run.
      discount: gamma.
    """

    agent: RuleAgentConfig
    budget: int
    discount: float

    @property
    def num_steps(self) -> int:
        """The environment steps of a run in whole updates of the agent."""
        return self.budget // self.agent.steps_per_update * self.agent.steps_per_update

    def with_sizes(self, settings: Settings) -> "CommonSettings":
        """Return this with the network and the environments of `SIZES` that are given.

        An unroll is so short that the budget has an update. Raises ValueError if one of width and
        layers is given for a network without layers.
        """
        agent, torso = self.agent, self.agent.network.torso
        if sizes := {"width", "layers"} & set(settings):
            if not torso and len(sizes) < 2:
                raise ValueError(
                    f"network.torso is (), without layers; expected some, as {sizes.pop()} is given"
                    " for them alone."
                )
            width = settings.get("width", max(torso, default=0))
            torso = (width,) * settings.get("layers", len(torso))
        number = settings.get("num_environments", agent.num_environments)
        length = min(settings.get("unroll_length", agent.unroll_length), self.budget // number)
        agent = dataclasses.replace(
            agent,
            network=dataclasses.replace(agent.network, torso=torso),
            num_environments=number,
            unroll_length=length,
            batch_size=round(number * agent.batch_size / agent.num_environments),
        )
        return dataclasses.replace(self, agent=agent)


def given(names: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Return the settings of these names that are given."""
    return {name: settings[name] for name in names if name in settings}


def on_policy_settings(common: CommonSettings, settings: Settings) -> dict[str, Any]:
    """Return fields of the config of an algorithm that learns without the rules' replay.

    Its learning rate falls over the run.
    """
    agent = common.agent.with_replay(0.0).with_settings(settings)
    return {
        "network": agent.network,
        "learning_rate": agent.learning_rate,
        "total_steps": common.num_steps,
        "num_environments": agent.num_environments,
        "unroll_length": agent.unroll_length,
        "discount": common.discount,
        "frame_stack": agent.frame_stack,
    }
