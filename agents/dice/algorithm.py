"""DiCE by name."""

import functools

from agents.dice.agent import DiceAgent
from agents.dice.config import PAPER, DiceConfig
from agents.making import make_agent
from agents.registry import Algorithm
from agents.search_space import (
    RATE,
    SIZES,
    TRACES,
    Choice,
    Settings,
    Shared,
    given,
    on_policy_settings,
)


def _tuned(shared: Shared, settings: Settings) -> DiceConfig:
    """Return settings by which an update learns from all sequences of an unroll at once."""
    names = ("sample_reuse", "action_value_cost", "max_inverse_temperature", "lambda_")
    return DiceConfig(
        **on_policy_settings(shared, settings),
        burn_in=shared.agent.burn_in,
        batch_size=shared.agent.num_environments,
        **given(names, settings),
    )


DICE = Algorithm(
    name="dice",
    paper="DiCE, Xiao et al. 2021, arXiv 2106.00707",
    presets={"laptop": DiceConfig(total_steps=None), "paper": PAPER},
    make=functools.partial(make_agent, DiceAgent),
    ranges={
        **SIZES,
        "learning_rate": RATE,
        "sample_reuse": Choice((1, 2, 4), may_be_higher=True),
        # A search down to 0.1 and 0.6 had its best trial at both (docs/measurements/tuning.md).
        "action_value_cost": Choice(
            (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), may_be_lower=True, may_be_higher=True
        ),
        "max_inverse_temperature": Choice((1.0, 2.0, 5.0, 15.0, 50.0), may_be_lower=True),
        "lambda_": Choice((0.2, 0.4, *TRACES.values), may_be_lower=True),
    },
    tuned=_tuned,
)
