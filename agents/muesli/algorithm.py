"""Muesli by name."""

import dataclasses
import functools

from agents.making import make_agent, with_images_of
from agents.muesli.agent import MuesliAgent
from agents.muesli.config import PAPER, MuesliConfig
from agents.registry import Algorithm
from agents.search_space import (
    RULE_RANGES,
    SIZES,
    TRACES,
    LogUniform,
    Settings,
    Shared,
    given,
    with_settings,
)


def _tuned(shared: Shared, settings: Settings) -> MuesliConfig:
    agent = with_settings(shared.agent, settings)
    return MuesliConfig(
        **{field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
        | {"lifetime": agent.lifetime or shared.budget},
        discount=shared.discount,
        **given(("regularizer_cost", "lambda_"), settings),
    )


MUESLI = Algorithm(
    name="muesli",
    paper="Muesli, Hessel et al. 2021, arXiv 2104.06159",
    presets={"laptop": MuesliConfig(), "paper": PAPER},
    make=functools.partial(make_agent, MuesliAgent),
    observed=with_images_of,
    ranges={
        **SIZES,
        **RULE_RANGES,
        "regularizer_cost": LogUniform(0.1, 10.0),
        "lambda_": TRACES,
    },
    tuned=_tuned,
)
