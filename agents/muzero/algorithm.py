"""MuZero by name."""

import functools

from agents.making import make_agent, with_images_of
from agents.muzero.agent import MuZeroAgent
from agents.muzero.config import PAPER, MuZeroConfig
from agents.registry import Algorithm
from agents.search_space import (
    RATE,
    SIZES,
    Choice,
    LogUniform,
    Settings,
    Shared,
    given,
    on_policy_settings,
)


def _tuned(shared: Shared, settings: Settings) -> MuZeroConfig:
    """Return settings by which it learns after 1% of the budget, but after 1,024 steps at most."""
    return MuZeroConfig(
        **on_policy_settings(shared, settings),
        min_steps=min(1024, shared.num_steps // 100),
        **given(("updates_per_step", "td_steps", "weight_decay"), settings),
    )


MUZERO = Algorithm(
    name="muzero",
    paper="MuZero, Schrittwieser et al. 2020, arXiv 1911.08265, with the search of Danihelka et al."
    " 2022",
    presets={"laptop": MuZeroConfig(total_steps=None), "paper": PAPER},
    make=functools.partial(make_agent, MuZeroAgent),
    observed=with_images_of,
    ranges={
        **SIZES,
        "learning_rate": RATE,
        "updates_per_step": Choice(
            (0.03125, 0.0625, 0.125, 0.25), may_be_lower=True, may_be_higher=True
        ),
        # One step is worse than three with the best settings (docs/measurements/tuning.md).
        "td_steps": Choice((3, 5, 10), may_be_higher=True),
        "weight_decay": LogUniform(1e-6, 1e-2),
    },
    tuned=_tuned,
)
