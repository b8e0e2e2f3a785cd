"""The analysis of a discovered rule (DiscoRL, figure 4 and Methods, "Analysis").

A report shows how the rule changes a policy, beside PPO and DPO. An agent learns each task by the
rule, and then plays. The report shows what the weights of the policy target's prior depend on, if
they are outputs of the meta-network (`evaluation.studies.policy_updates`), and, if agents have
predictions y and z, how confident these are along an episode, on which parts of an observation they
depend, how well probes predict the near future from them (`evaluation.studies.predictions`), and
how a change of a future prediction changes the current targets; and an evaluation of agents that
learn by the rule, and by the rule with y and z hidden from it.

    index.html       the page, whose figures are files beside it
    analysis.json    the numbers
    RULE_formula.md, RULE_formula.npz, RULE_formula_loss.py
                     what the rule computes as a formula (`evaluation.studies.formulas`), a rule
                     file of it, which the evaluation has, too, and its loss in plain JAX
    evaluation/      the evaluation; the first seed's agents are analysed
"""

import dataclasses
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import matplotlib.image
import numpy as np
import scipy.signal
from jaxtyping import Float, Num

import disco
import environments
from agents import pictures
from agents.rule_agent import LearnerState, RuleAgent, to_trajectory
from disco.discovered import DiscoveredRule
from disco_common import json_lines
from disco_common.files import write_atomically
from disco_common.ranges import Count, require_ranges
from evaluation import playing
from evaluation.contenders import Contender, random_policy, rule_contenders
from evaluation.evaluate import Experiment, evaluate
from evaluation.loading import agent_of_run
from evaluation.report.drawing import Curve, draw_line_panels
from evaluation.report.html_report import write_report
from evaluation.report.page import Section
from evaluation.report.stored import merge, read_manifest
from evaluation.runs import ContenderRun
from evaluation.studies import formula_files, formulas, plots, policy_updates, predictions
from evaluation.studies.ablations import WithoutBootstrapping, without_predictions

_NUM_PEAKS, _PEAK_DISTANCE = 4, 10
_INFLUENCE_STEPS = 30
_SHOWN = 200  # Steps of the first environment that are drawn.


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisSection(Section):
    """The section of an agent that has learned a task.

    Its figures are `quantities` along an episode, and with predictions y and z `influences` by
    distance, and the probes' `information` by target and input, if there is a target.

    Attributes:
      horizon: number of future transitions that the probes predict.
      by_age: a table of the weights of the prior, if they are outputs, by the agent's updates.
      correlations: a table of these weights' correlations with other quantities.
      saliency: by step, captions and pictures (PNG); empty if there is no peak, None for agents
        without predictions or if observations are not single arrays.
    """

    template: ClassVar[str] = "analysis.html"
    horizon: int
    by_age: list[dict[str, Any]]
    correlations: list[dict[str, Any]]
    saliency: list[list[tuple[str, bytes]]] | None


@dataclasses.dataclass(frozen=True)
class AnalysisConfig:
    """Settings of an analysis.

    Attributes:
      steps: that the trained agent plays in each environment.
      environments: number of environments that it plays at once.
      horizon: number of future transitions that the probes predict.
    """

    steps: int = 500
    environments: Count = 8
    horizon: Count = 10

    def __post_init__(self):
        require_ranges(self)
        least = max(_INFLUENCE_STEPS, 10 * self.horizon)
        if self.steps < least:
            raise ValueError(f"steps is {self.steps}; expected at least {least}.")


def analyse(
    experiment: Experiment,
    contender: Contender,
    settings: AnalysisConfig,
    fitted_on: Sequence[environments.Environment] = (),
) -> list[pathlib.Path]:
    """Analyse a discovered rule on tasks; return the files of the report.

    Agents are trained and stored as `evaluation.evaluate.evaluate` does it. With tasks to fit it
    on, such as those of the discovery, there is a formula of the rule, which is evaluated, too.

    Raises:
      ValueError: if the rule is not a discovered one, or cannot act on a task, or as
        `formulas.fit`.
      OSError: if something cannot be written.
    """
    rule, config, folder = contender.rule, experiment.config, experiment.folder
    runs = folder / "evaluation"
    if not isinstance(rule, DiscoveredRule):
        raise ValueError(f"{contender.name!r} is not a discovered rule; expected one.")
    contenders = [random_policy(config), contender]
    if rule.has_predictions:
        contenders += _without_predictions(contender, rule)
    formula = _formula(experiment, contender, fitted_on) if fitted_on else []
    contenders += rule_contenders([str(x) for x in formula if x.suffix == ".npz"], config)
    evaluate(dataclasses.replace(experiment, folder=runs), contenders)
    first, pushes = policy_updates.push_section(contender.name, rule)
    sections: list[policy_updates.PushSection | AnalysisSection] = [first]
    numbers: dict[str, Any] = {"push": pushes}
    for task in experiment.tasks:
        agent, learner = agent_of_run(ContenderRun.of(contender, task, 0, config, runs))
        assert isinstance(agent, RuleAgent)
        heading = f"{contender.name} on {task.name}"
        section, numbers[task.name] = _analyse_agent(
            heading, rule, agent, learner, task, config.seed, settings
        )
        sections.append(section)
    merged, title = merge([read_manifest(runs)]), f"Analysis of {contender.name}"
    files = write_report(folder, merged, title=title, first=sections)
    write_atomically(folder / "analysis.json", json_lines.dumps(numbers, indent=1) + "\n")
    return [*files, folder / "analysis.json", *formula]


def _formula(
    experiment: Experiment, contender: Contender, tasks: Sequence[environments.Environment]
) -> list[pathlib.Path]:
    """Return the files of a rule's formula, which is fitted unless they are there."""
    name, folder, config = f"{contender.name}_formula", experiment.folder, experiment.config
    page, loss, file = (folder / f"{name}{x}" for x in (".md", "_loss.py", ".npz"))
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        num_updates = config.num_steps // contender.agent.steps_per_update
        rule, numbers = formulas.fit(contender, tasks, num_updates, config.seed)
        provenance = contender.source["header"].get("provenance", {})
        write_atomically(page, formula_files.markdown(contender.name, rule, numbers))
        write_atomically(loss, formula_files.loss_source(contender.name, rule))
        disco.save(rule, file, {**provenance, "formula": numbers})
    return [page, loss, file]


def _without_predictions(contender: Contender, rule: DiscoveredRule) -> list[Contender]:
    """Return the rule with y and z hidden from their own targets, and from all targets."""
    rules = {
        "y and z hidden from their targets": WithoutBootstrapping(rule),
        "y and z hidden from all targets": without_predictions(rule),
    }
    return [
        dataclasses.replace(
            contender.changed(f"{contender.name}, {label}", rule=without),
            source={**contender.source, "without_predictions": label},
        )
        for label, without in rules.items()
    ]


def _analyse_agent(
    heading: str,
    rule: DiscoveredRule,
    agent: RuleAgent,
    learner: LearnerState,
    task: environments.Environment,
    seed: int,
    settings: AnalysisConfig,
) -> tuple[AnalysisSection, dict[str, Any]]:
    """Return the section of a trained agent, and its numbers as JSON values."""
    played = playing.play(agent, learner, task, settings.steps, settings.environments, seed)
    _, trajectory = agent.scaled(learner, to_trajectory(played))
    outputs = predictions.outputs_along(agent, learner.params, trajectory)
    known = predictions.quantities(rule, outputs, trajectory)
    weights, by_age = {}, {}
    if isinstance(rule, disco.AnchoredRule) and rule.sizes.prior_outputs:
        both = predictions.learner_outputs(agent, learner, trajectory)
        of_learner = (rule, *both, trajectory, learner.rule_state)
        weights = policy_updates.weights_of(*of_learner)
        by_age = policy_updates.weights_by_age(*of_learner)
    correlations = policy_updates.correlations(weights, known)
    shown = {name: x[:_SHOWN, 0] for name, x in {**known, **weights}.items()}
    peaks = _peaks(next(iter(shown.values()))) if rule.has_predictions else []
    figures, saliency = {"quantities": plots.time_series(shown, peaks)}, None
    numbers: dict[str, Any] = {
        "rewards_per_step": float(np.mean(known["reward"])),
        "weights": {name: float(np.mean(x)) for name, x in weights.items()},
        "weights_by_updates": by_age,
        "correlations": correlations,
    }
    if rule.has_predictions:
        influences = _influences(rule, agent, learner, trajectory)
        informed = predictions.information(rule, outputs, trajectory, settings.horizon, seed)
        distances = np.arange(_INFLUENCE_STEPS + 1.0)
        curves = {name: Curve(distances, x) for name, x in influences.items()}
        figures["influences"] = draw_line_panels(
            {"": curves}, xlabel="k", ylabel="change of the target", log={"": "y"}
        )
        if informed:
            figures["information"] = plots.bars(informed)
        saliency = _saliency_pictures(rule, agent, learner, task, trajectory, peaks, seed)
        numbers |= {"influence": influences, "information": informed, "spikes": peaks}
    section = AnalysisSection(
        name=heading,
        plots=figures,
        horizon=settings.horizon,
        by_age=_table("updates", {name: dict(found) for name, found in by_age.items()}),
        correlations=_table("quantity", correlations),
        saliency=saliency,
    )
    return section, numbers


def _table(header: str, columns: Mapping[str, Mapping[Any, float]]) -> list[dict[str, Any]]:
    """Return rows of columns, which have equal keys, after a first column of the keys."""
    keys = next(iter(columns.values()), {})
    return [{header: key, **{name: f"{x[key]:.7g}" for name, x in columns.items()}} for key in keys]


def _peaks(values: Float[np.ndarray, "steps"]) -> list[int]:
    """Return the steps of the highest local maxima that are some distance apart, in order."""
    peaks, _ = scipy.signal.find_peaks(values, distance=_PEAK_DISTANCE)
    highest = sorted(map(int, peaks), key=lambda step: -values[step])[:_NUM_PEAKS]
    return sorted(highest)


def _saliency_pictures(
    rule: DiscoveredRule,
    agent: RuleAgent,
    learner: LearnerState,
    task: environments.Environment,
    trajectory: disco.Trajectory,
    steps: Sequence[int],
    seed: int,
) -> list[list[tuple[str, bytes]]] | None:
    """Return pictures of the observation at some steps, and of each quantity's saliency there."""
    frames = playing.frames(agent, trajectory)
    if not isinstance(frames, np.ndarray):
        return None
    alone, spec = predictions.one_environment(trajectory, 0), task.dynamics.observation_spec()
    found = []
    for step in steps:
        key = jax.random.fold_in(jax.random.key(seed), step)
        by_quantity = predictions.saliency(rule, agent, learner.params, alone, step, key)
        shown = pictures.as_image if pictures.is_picture(spec) else _flat
        images = {f"step {step}": shown(frames[step, 0])}
        images |= {name: _flat(x) for name, x in by_quantity.items()}
        found.append([(caption, _png(image)) for caption, image in images.items()])
    return found


def _flat(values: Num[np.ndarray, "*parts"]) -> Num[np.ndarray, "height width"]:
    """Return vectors as one row, grids as they are, and planes of grids summed."""
    x = np.atleast_2d(values)
    return x if x.ndim == 2 else x.sum(axis=-1)


def _png(image: Num[np.ndarray, "height width *channels"]) -> bytes:
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, image, cmap="viridis", format="png")
    return buffer.getvalue()


def _influences(
    rule: DiscoveredRule, agent: RuleAgent, learner: LearnerState, trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "distances"]]:
    """Return the influence of z on the rule's targets, by distance."""
    short = predictions.slice_trajectory(trajectory, 0, _INFLUENCE_STEPS)
    outputs = predictions.learner_outputs(agent, learner, short)
    found = policy_updates.influence(rule, *outputs, short, learner.rule_state, jax.random.key(0))
    return {f"{name} of the rule": found[name] for name in ("pi", "y", "z")}
