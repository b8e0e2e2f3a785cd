"""The card of a rule, Markdown: its discovery, its scores beside the baselines', its failures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.contenders import DISCOVERED, RANDOM, Contender
from evaluation.report.main_result import main_result
from evaluation.report.tables import aggregate_rows, intervals_of, number_of, score_table
from evaluation.scoring import statistics
from evaluation.scoring.evaluation import Comparison, Evaluation, compare

_CLEARLY = 3.0  # Standard errors.


def rule_card(
    name: str,
    fingerprint: str,
    provenance: Mapping[str, Any],
    evaluations: Sequence[Evaluation],
) -> str:
    """Return the card of a rule.

    Args:
      name: of the rule.
      fingerprint: of its parameters (`evaluation.rules.fingerprint`).
      provenance: of the discovery, as `launch.export` records it.
      evaluations: of the rule.

    Raises:
      ValueError: if the rule is not a contender of one of them.
    """
    parts = [f"# {name}\n", _origin(provenance)]
    for merged in evaluations:
        own = _own_contender(merged, fingerprint)
        shown = [x for x in merged.ordered if x.kind != DISCOVERED or x.name == own.name]
        compared = [compare(merged, scale, shown) for scale in merged.scales]
        failures = _failures(merged, own)
        scores = score_table(merged, shown)
        rows = [[task, *(x.text for x in cells)] for task, cells in scores.scores]
        parts += [
            _heading(merged),
            " ".join(main_result(merged)) + "\n",
            *(_aggregates(merged, x) for x in compared),
            _table(["task", *(x.name for x in shown)], [row[: 1 + len(shown)] for row in rows]),
            "Where it fails: " + ("; ".join(failures) if failures else "nothing was found") + ".\n",
        ]
    return "\n".join(parts)


def _own_contender(merged: Evaluation, fingerprint: str) -> Contender:
    for contender in merged.contenders:
        if contender.source.get("parameters_sha256") == fingerprint:
            return contender
    folders = ", ".join(str(source.folder) for source in merged.sources)
    names = [x.name for x in merged.contenders if x.kind == DISCOVERED]
    raise ValueError(f"{folders} is not an evaluation of this rule; it has those of {names}.")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), ""])


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
        "seed": str(provenance.get("seed", "?")),
        "code": f"{provenance.get('code_version', '?')}, jax {provenance.get('jax_version', '?')}",
        "agents": f"torso {network.get('torso')}, model {network.get('model')}, heads"
        f" {network.get('head')}; {agent.get('num_environments')} environments x"
        f" {agent.get('unroll_length')} steps, {agent.get('replay_ratio', 0):.0%} of batches"
        f" replayed; learning rate {agent.get('learning_rate', 0):g}",
    }
    if tasks := provenance.get("tasks"):
        steps = sorted(tasks.values())
        rows["tasks"] = f"{len(steps)}, {steps[0]:,} to {steps[-1]:,} environment steps on each"
    return _table(["", ""], [*rows.items()])


def _heading(merged: Evaluation) -> str:
    missing = f" {len(merged.missing)} runs are missing." if merged.missing else ""
    tasks, seeds = number_of("task", len(merged.tasks)), number_of("seed", len(merged.seeds))
    return (
        f"## {merged.name}\n\n{tasks}, {seeds}. Score: {merged.config.score_definition}.{missing}\n"
    )


def _aggregates(merged: Evaluation, comparison: Comparison) -> str:
    """Return a table of the aggregates."""
    rows = aggregate_rows(merged, comparison)
    parts = [
        f"{comparison.scale.name}: {comparison.scale.definition}\n",
        _table([*rows[0]], [[*row.values()] for row in rows]) if rows else "",
        f"In brackets: {intervals_of(comparison)}.\n",
    ]
    return "\n".join(parts)


def _failures(merged: Evaluation, own: Contender) -> list[str]:
    """Return the tasks on which the rule is not above random, or clearly below the baseline."""
    scores, best = merged.scores[own.name], merged.best_baseline
    mean, error = statistics.mean(scores), statistics.standard_error(scores)
    chance = statistics.mean(merged.scores[RANDOM])
    found = []
    for i, task in enumerate(merged.tasks):
        if mean[i] <= chance[i]:
            found.append(f"{task} ({mean[i]:.2f}, the random policy {chance[i]:.2f})")
        elif best[i] - mean[i] > _CLEARLY * error[i]:
            found.append(f"{task} ({mean[i]:.2f}, the best baseline {best[i]:.2f})")
    failed = int(np.sum(~merged.contender_curves[own.name].is_finite))
    return [*found, *([f"{failed} runs ended with non-finite numbers"] if failed else [])]
