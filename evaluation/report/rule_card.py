"""The card of a rule: its discovery, its scores beside the baselines', and where it fails.

The card is Markdown. The same numbers, as JSON values, go into the rule file's header.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disco_common import json_lines
from evaluation.contenders import DISCOVERED, RANDOM, Contender
from evaluation.report.merging import MergedEvaluation
from evaluation.report.texts import interval_legend, number_of
from evaluation.scoring import statistics
from evaluation.scoring.comparison import Comparison, compare, scales
from evaluation.scoring.summary import Summary, in_order

_CLEARLY = 3.0  # Standard errors.
_LEVEL = "The data cannot separate {} from"


def rule_card(
    name: str,
    fingerprint: str,
    provenance: Mapping[str, Any],
    evaluations: Sequence[MergedEvaluation],
) -> tuple[str, list[dict[str, Any]]]:
    """Return the card of a rule, and its numbers for each evaluation.

    Args:
      name: of the rule.
      fingerprint: of its parameters (`evaluation.rules.fingerprint`).
      provenance: of the discovery, as `launch.export` records it.
      evaluations: of the rule.

    Raises:
      ValueError: if the rule is not a contender of one of them.
    """
    parts, numbers = [f"# {name}\n", _origin(provenance)], []
    for merged in evaluations:
        own = _own_contender(merged, fingerprint)
        summary = merged.summary()
        shown = [
            x for x in in_order(merged.contenders) if x.kind != DISCOVERED or x.name == own.name
        ]
        compared = [
            compare(scale, summary, merged.contender_curves, merged.config, shown)
            for scale in scales(summary)
        ]
        failures = _failures(merged, summary, own)
        parts += [
            _heading(merged),
            *(_aggregates(x, own.name, merged.config.confidence) for x in compared),
            _scores(summary, shown),
            "Where it fails: " + ("; ".join(failures) if failures else "nothing was found") + ".\n",
        ]
        numbers.append(_numbers(merged, summary, compared, own, failures))
    return "\n".join(parts), numbers


def _own_contender(merged: MergedEvaluation, fingerprint: str) -> Contender:
    for contender in merged.contenders:
        if contender.source.get("parameters_sha256") == fingerprint:
            return contender
    folders = ", ".join(str(source.folder) for source in merged.sources)
    names = [x.name for x in merged.contenders if x.kind == DISCOVERED]
    raise ValueError(f"{folders} is not an evaluation of this rule; it has those of {names}.")


def _origin(provenance: Mapping[str, Any]) -> str:
    """Return a table of the tasks and the settings of the discovery."""
    agent = provenance.get("agent", {})
    network = agent.get("network", {})
    rows = {
        "discovered on": f"`{provenance.get('environments', '?')}`,"
        f" {provenance.get('population', {}).get('size', '?')} agents at a time",
        "budget": f"{provenance.get('meta_steps', 0):,} meta-steps of K ="
        f" {provenance.get('meta', {}).get('num_updates', '?')} updates;"
        f" {provenance.get('environment_steps', 0):,} environment steps of the agents' learning",
        "seed": provenance.get("seed", "?"),
        "code": f"{provenance.get('code_version', '?')}, jax {provenance.get('jax_version', '?')}",
        "agents": f"torso {network.get('torso')}, model {network.get('model')}, heads"
        f" {network.get('head')}; {agent.get('num_environments')} environments x"
        f" {agent.get('unroll_length')} steps, {agent.get('replay_ratio', 0):.0%} of batches"
        f" replayed; learning rate {agent.get('learning_rate', 0):g}",
    }
    if tasks := provenance.get("tasks"):
        steps = sorted(tasks.values())
        rows["tasks"] = f"{len(steps)}, {steps[0]:,} to {steps[-1]:,} environment steps on each"
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines, ""])


def _heading(merged: MergedEvaluation) -> str:
    missing = f" {len(merged.missing)} runs are missing." if merged.missing else ""
    tasks, seeds = number_of("task", len(merged.tasks)), number_of("seed", len(merged.seeds))
    return (
        f"## {merged.name}\n\n{tasks}, {seeds}. Score: {merged.config.score_definition}.{missing}\n"
    )


def _aggregates(comparison: Comparison, own: str, confidence: float) -> str:
    """Return a table of the aggregates, and whom the rule is better than."""
    labels = list(next(iter(comparison.aggregates.values()), {}))
    lines = [
        f"{comparison.scale.name}: {comparison.scale.definition}\n",
        "| | " + " | ".join(labels) + " |",
        "| --- |" + " --- |" * len(labels),
    ]
    for name, found in comparison.aggregates.items():
        lines.append(f"| {name} | " + " | ".join(found[x].text(2) for x in labels) + " |")
    tasks = int(comparison.scale.counted.sum())
    legend = interval_legend(tasks, confidence, "tasks", comparison.has_discoveries)
    return "\n".join([*lines, "", f"In brackets: {legend}.", "", *_standing(comparison, own)])


def _standing(comparison: Comparison, own: str) -> list[str]:
    """Return whom a rule is better and worse than, by the widest interval of the difference.

    A rule that is not better than the random policy is compared with it alone.
    """
    differences = {y: found for (x, y), found in comparison.differences.items() if x == own}
    if RANDOM in differences and not differences[RANDOM].is_above(0.0):
        differences = {RANDOM: differences[RANDOM]}
    found: dict[str, list[str]] = {}
    for other, difference in differences.items():
        above, below = difference.is_above(0.0), difference.is_below(0.0)
        what = "Better than" if above else "Worse than" if below else _LEVEL.format(own)
        better = comparison.improvement[own, other].text(2)
        numbers = f"difference of means {difference.text(2)}, P(better) {better}"
        found.setdefault(what, []).append(f"{other} ({numbers})")
    return [f"{what} {'; '.join(others)}.\n" for what, others in found.items()]


def _scores(summary: Summary, shown: Sequence[Contender]) -> str:
    lines = [
        "| task | " + " | ".join(x.name for x in shown) + " |",
        "| --- |" + " --- |" * len(shown),
    ]
    for i, task in enumerate(summary.tasks):
        cells = []
        for contender in shown:
            scores = summary.scores[contender.name][i]
            mean, error = statistics.mean(scores), statistics.standard_error(scores)
            plus_minus = "" if np.isnan(error) else f" ± {error:.2f}"
            missing = summary.missing(contender.name, i)
            cells.append(missing if np.isnan(mean) else f"{mean:.2f}{plus_minus}")
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _failures(merged: MergedEvaluation, summary: Summary, own: Contender) -> list[str]:
    """Return the tasks on which the rule is not above random, or clearly below the baseline."""
    scores, random = summary.scores[own.name], summary.scores[RANDOM]
    mean, error = statistics.mean(scores), statistics.standard_error(scores)
    chance = statistics.mean(random)
    found = []
    for i, task in enumerate(summary.tasks):
        if mean[i] <= chance[i]:
            found.append(f"{task} ({mean[i]:.2f}, the random policy {chance[i]:.2f})")
        elif summary.baseline[i] - mean[i] > _CLEARLY * error[i]:
            found.append(f"{task} ({mean[i]:.2f}, the best baseline {summary.baseline[i]:.2f})")
    failed = int(np.sum(~merged.contender_curves[own.name].is_finite))
    return [*found, *([f"{failed} runs ended with non-finite numbers"] if failed else [])]


def _numbers(
    merged: MergedEvaluation,
    summary: Summary,
    compared: Sequence[Comparison],
    own: Contender,
    failures: Sequence[str],
) -> dict[str, Any]:
    """Return the numbers of one evaluation, as JSON values; an estimate is a list of its fields."""
    found = {
        "tasks": list(summary.tasks),
        "seeds": list(merged.seeds),
        "score": merged.config.score_definition,
        "scores": dict(zip(summary.tasks, statistics.mean(summary.scores[own.name]), strict=True)),
        "aggregates": {x.scale.name: x.aggregates for x in compared},
        "failures": list(failures),
    }
    return json_lines.plain(found)
