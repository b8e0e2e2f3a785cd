"""The table of an evaluation's contenders: runs, settings as used, compute, speed."""

import datetime
from collections.abc import Mapping
from typing import Any

from evaluation.contenders import GRADIENT_STEPS, PARAMETERS, RANDOM, Contender
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
    own: Mapping[str, Any] = contender.source.get("hyper_parameters", {})
    if contender.kind == RANDOM:
        return ""
    if contender.is_agent:
        on_images = own.get("for_images")
        return _of_agent(own) + (f" (on images {_of_agent(on_images)})" if on_images else "")
    first, last = contender.agent.learning_rate, contender.agent.end_learning_rate
    end = 0.0 if own.get("total_steps") else first * last
    falls = f" to {end:g}" * (end != first)
    origin = _origin(contender)
    return f"{first:g}{falls}" + (f" ({origin})" if origin else "")


def _of_agent(settings: Mapping[str, Any]) -> str:
    """Return the learning rate in an agent's settings; it falls to 0 if they have `total_steps`."""
    found, falls = settings.get("learning_rate"), " to 0" * bool(settings.get("total_steps"))
    return f"{found:g}{falls}" if isinstance(found, int | float) else ""


def _origin(contender: Contender) -> str:
    """Return where the learning rate of a contender comes from."""
    source = contender.source
    if "learning_rate_from" in source:  # A rule's.
        is_tuned = "learning_rate" in source.get("tuned", {})
        return "tuned" if is_tuned else source["learning_rate_from"]
    if "tuned" in source:
        return "tuned"
    return "" if contender.kind == "hand_set" else "literature"


def _settings(contender: Contender) -> dict[str, str]:
    agent, network = contender.agent, contender.agent.network
    columns = {
        "batch": f"{agent.batch_size} x {agent.unroll_length}",
        "replayed": f"{agent.replay_ratio:.0%}",
        "settings": f"torso {network.torso}, model {network.model}, heads {network.head}",
    }
    if not contender.is_agent:
        tuned = contender.source.get("tuned")
        own = "" if tuned is None else ", ".join(f"{k} {x:g}" for k, x in tuned.items()) or "as set"
        return columns | {"tuned": own}
    own = contender.source["hyper_parameters"]
    settings = ", ".join(f"{name} {value}" for name, value in own.items())
    return dict.fromkeys((*columns, "tuned"), "") | {"settings": settings}
