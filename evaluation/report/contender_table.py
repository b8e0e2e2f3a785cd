"""The table of an evaluation's contenders: runs, settings as used, compute, speed."""

import datetime
from collections.abc import Mapping
from typing import Any

from evaluation.contenders import (
    GRADIENT_STEPS,
    PARAMETERS,
    TUNED_SETTINGS,
    AlgorithmContender,
    Contender,
    RuleContender,
    settings_of_agent,
)
from evaluation.report.merging import MergedEvaluation


def contender_row(contender: Contender, merged: MergedEvaluation) -> dict[str, Any]:
    """Return the row of a contender in an evaluation."""
    curves, config = merged.contender_curves[contender.name], merged.config
    runs = sum(name == contender.name for name, _, _ in merged.folders)
    steps = contender.num_steps(config)
    rate = runs * steps / curves.train_seconds if curves.train_seconds else 0.0
    return {
        "contender": contender.name,
        "kind": contender.kind,
        "runs": runs,
        "seeds": len(merged.seeds),
        "steps of a run": f"{steps:,}",
        "learning rate": learning_rate(contender),
        **_settings(contender),
        **compute(contender, steps),
        "training": str(datetime.timedelta(seconds=round(curves.train_seconds))),
        "steps/s": f"{rate:,.0f}",
        "devices": ", ".join(curves.devices),
    }


def compute(contender: Contender, num_steps: int) -> dict[str, str]:
    """Return the gradient steps of a run, and the parameters, of which tasks may differ."""
    per_step = contender.source.get(GRADIENT_STEPS)
    counts = dict.fromkeys(contender.source.get(PARAMETERS, ()))
    return {
        "gradient steps": "" if per_step is None else f"{per_step * num_steps:,.0f}",
        "parameters": " to ".join(f"{count:,}" for count in counts),
    }


def learning_rate(contender: Contender) -> str:
    """Return the learning rate by which a contender learned, and where it comes from.

    Of one that falls it is the first and, if it is known, the last.
    """
    if isinstance(contender, RuleContender):
        agent = contender.agent
        shown = _falling(agent.learning_rate, agent.learning_rate * agent.end_learning_rate)
        is_tuned = "learning_rate" in contender.source.get(TUNED_SETTINGS, {})
        origin = "tuned" if is_tuned else contender.source.get("learning_rate_from")
        return shown + (f" ({origin})" if origin else "")
    assert isinstance(contender, AlgorithmContender)
    own = contender.settings
    shown, on_images = _of_algorithm(own), own.get("by_task", {}).get("images")
    if shown and TUNED_SETTINGS in contender.source:
        return f"{shown} (tuned)"
    return shown + (f" (on images {_of_algorithm(on_images)})" if on_images else "")


def _of_algorithm(settings: Mapping[str, Any]) -> str:
    """Return the learning rate in an algorithm's settings; empty if there is none."""
    settings = settings_of_agent(settings)
    first, end = settings.get("learning_rate"), settings.get("end_learning_rate", 1.0)
    if not isinstance(first, int | float):
        return ""
    last = 0.0 if settings.get("total_steps") or not isinstance(end, int | float) else first * end
    return _falling(first, last)


def _falling(first: float, last: float) -> str:
    return f"{first:g}" + f" to {last:g}" * (last != first)


def _settings(contender: Contender) -> dict[str, str]:
    tuned = contender.source.get(TUNED_SETTINGS)
    own = "" if tuned is None else ", ".join(f"{k} {x:g}" for k, x in tuned.items()) or "as set"
    if isinstance(contender, RuleContender):
        agent, network = contender.agent, contender.agent.network
        return {
            "batch": f"{agent.batch_size} x {agent.unroll_length}",
            "replayed": f"{agent.replay_ratio:.0%}",
            "settings": f"torso {network.torso}, model {network.model}, heads {network.head}",
            "tuned": own,
        }
    assert isinstance(contender, AlgorithmContender)
    settings = ", ".join(f"{name} {value}" for name, value in contender.settings.items())
    return {"batch": "", "replayed": "", "settings": settings, "tuned": own}
