"""The analysis of a discovered rule (DiscoRL, figure 4 and Methods, "Analysis").

A report shows how the rule changes a policy, beside the drifts of PPO and DPO
(`evaluation.studies.policy_updates`). An agent learns each task by the rule, and then plays. The
report shows, of each task, what the weights of the policy target's prior depend on, if they are
outputs of the meta-network, and, if agents have predictions y and z,

- `evaluation.studies.predictions`: how confident the predictions are along an episode, the parts of
  an observation on which they depend, and how well probes predict the near future from them;
- `policy_updates.influence`: how a change of a future prediction changes the current targets;

and an evaluation of agents that learn by the rule, and, if they have y and z, by the rule with
these hidden from it.

    index.html       the page, whose figures are files beside it
    analysis.json    the numbers
    evaluation/      the evaluation; the first seed's agents are analysed
"""

import dataclasses
import io
import pathlib
from collections.abc import Sequence
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
from evaluation import playing
from evaluation.config import EvaluationConfig
from evaluation.contenders import RuleContender, random_policy, rule_contenders
from evaluation.evaluate import Execution, evaluate
from evaluation.executors import OpenProgress
from evaluation.loading import agent_of_run
from evaluation.report.drawing import Drawing
from evaluation.report.html_report import write_report
from evaluation.report.page import Section
from evaluation.report.stored import merge, read_manifest
from evaluation.studies import plots, policy_updates, predictions
from evaluation.studies.ablations import WithoutBootstrapping, without_predictions
from evaluation.training import Run

_NUM_PEAKS, _PEAK_DISTANCE = 4, 10
_INFLUENCE_STEPS = 30
_CRITIC = "all of actor-critic"


@dataclasses.dataclass(frozen=True)
class PredictionsPart:
    """What an agent's section shows of the predictions y and z.

    Attributes:
      horizon: number of future transitions that the probes predict.
      critic_change: the largest change of actor-critic's targets.
      saliency: by step, captions and pictures (PNG); None if observations are not single arrays,
        empty if there is no peak.
    """

    horizon: int
    critic_change: float
    saliency: list[list[tuple[str, bytes]]] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisSection(Section):
    """The section of an agent that has learned a task.

    Its figures are `quantities` along an episode; the weights of the prior `by_age`, and their
    `correlations` with other quantities, where they have any; and with predictions `influences` by
    distance, and the probes' `information` by target and input, if there is a target.

    Attributes:
      predictions: None for agents without y and z.
    """

    template: ClassVar[str] = "analysis.html"
    predictions: PredictionsPart | None


@dataclasses.dataclass(frozen=True)
class AnalysisConfig:
    """Settings of an analysis.

    Attributes:
      steps: that the trained agent plays in each environment.
      environments: number of environments that it plays at once.
      horizon: number of future transitions that the probes predict.
      shown: steps of the first environment that are drawn.
    """

    steps: int = 500
    environments: int = 8
    horizon: int = 10
    shown: int = 200

    def __post_init__(self):
        if min(self.environments, self.horizon) < 1:
            raise ValueError(
                f"environments is {self.environments} and horizon {self.horizon}; expected at"
                " least 1."
            )
        least = max(_INFLUENCE_STEPS, 10 * self.horizon, self.shown)
        if self.steps < least:
            raise ValueError(f"steps is {self.steps}; expected at least {least}.")


def analyse(
    rule_name: str,
    tasks: Sequence[environments.Environment],
    config: EvaluationConfig,
    settings: AnalysisConfig,
    folder: pathlib.Path,
    provenance: dict[str, Any],
    open_progress: OpenProgress,
) -> list[pathlib.Path]:
    """Analyse a rule on tasks; return the files of the report.

    The rule is a discovered one's file, or its name. Agents are trained and stored as
    `evaluation.evaluate.evaluate` does it, with the same arguments.

    Raises:
      ValueError: if the rule is not a discovered one, or cannot act on a task.
      OSError: if something cannot be written.
    """
    (contender,) = rule_contenders([rule_name], config)
    rule = contender.rule
    if not isinstance(rule, DiscoveredRule):
        raise ValueError(f"{rule_name!r} is not a discovered rule; expected one.")
    contenders = [random_policy(config), contender]
    if rule.has_predictions:
        contenders += _without_predictions(contender, rule)
    runs = folder / "evaluation"
    execution = Execution(open_progress=open_progress)
    evaluate(tasks, contenders, config, runs, provenance, execution)
    first, pushes = policy_updates.push_section(contender.name, rule)
    sections: list[policy_updates.PushSection | AnalysisSection] = [first]
    numbers: dict[str, Any] = {"push": pushes}
    for task in tasks:
        run = Run(contender, task, 0)
        agent, learner = agent_of_run(run.folder(runs), run)
        assert isinstance(agent, RuleAgent)
        heading = f"{contender.name} on {task.name}"
        section, numbers[task.name] = _analyse_agent(
            heading, rule, agent, learner, task, config.seed, settings
        )
        sections.append(section)
    merged = merge([read_manifest(runs)])
    title = f"Analysis of {contender.name}"
    files = write_report(folder, merged, title=title, first=sections)
    text = json_lines.dumps(numbers, indent=1) + "\n"
    write_atomically(folder / "analysis.json", text)
    return [*files, folder / "analysis.json"]


def _without_predictions(contender: RuleContender, rule: DiscoveredRule) -> list[RuleContender]:
    """Return the rule with y and z hidden from their own targets, and from all targets."""
    rules = {
        "y and z hidden from their targets": WithoutBootstrapping(rule),
        "y and z hidden from all targets": without_predictions(rule),
    }
    return [
        dataclasses.replace(
            contender,
            name=f"{contender.name}, {label}",
            rule=without,
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
    trajectory = agent.config.scaled(
        to_trajectory(
            playing.play(agent, learner, task, settings.steps, settings.environments, seed)
        )
    )
    outputs = predictions.outputs_along(agent, learner.params, trajectory)
    known = predictions.quantities(rule, outputs, trajectory)
    weights, by_age = {}, {}
    if rule.sizes.prior_outputs:
        both = predictions.learner_outputs(agent, learner, trajectory)
        of_learner = (rule, *both, trajectory, learner.rule_state)
        weights = policy_updates.weights_of(*of_learner)
        by_age = policy_updates.weights_by_age(*of_learner)
    correlations = policy_updates.correlations(weights, known)
    shown = {name: x[: settings.shown, 0] for name, x in {**known, **weights}.items()}
    peaks = _peaks(next(iter(shown.values()))) if rule.has_predictions else []
    figures = {"quantities": plots.time_series(shown, peaks)}
    if by_age:
        figures["by_age"] = policy_updates.by_age_figure(by_age)
    if correlations:
        figures["correlations"] = policy_updates.correlations_figure(correlations)
    part, numbers = None, {}
    if rule.has_predictions:
        part, numbers, found = _predictions(
            rule, agent, learner, task, trajectory, outputs, peaks, seed, settings
        )
        figures |= found
    section = AnalysisSection(name=heading, plots=figures, predictions=part)
    return section, numbers | {
        "rewards_per_step": float(np.mean(known["reward"])),
        "weights": {name: float(np.mean(x)) for name, x in weights.items()},
        "weights_by_updates": by_age,
        "correlations": correlations,
    }


def _predictions(
    rule: DiscoveredRule,
    agent: RuleAgent,
    learner: LearnerState,
    task: environments.Environment,
    trajectory: disco.Trajectory,
    outputs: dict[str, np.ndarray],
    peaks: Sequence[int],
    seed: int,
    settings: AnalysisConfig,
) -> tuple[PredictionsPart, dict[str, Any], dict[str, Drawing]]:
    """Return what is shown of y and z, its numbers as JSON values, and its figures."""
    influences = _influences(rule, agent, learner, task, trajectory)
    informed = predictions.information(rule, outputs, trajectory, settings.horizon, seed)
    part = PredictionsPart(
        horizon=settings.horizon,
        critic_change=float(np.nanmax(influences[_CRITIC])),
        saliency=_saliency_pictures(rule, agent, learner, task, trajectory, peaks, seed),
    )
    distances = np.arange(len(influences[_CRITIC]), dtype=float)
    label = "change of the target"
    figures = {"influences": plots.line_panels(distances, {"": influences}, "k", label, log="y")}
    if informed:
        figures["information"] = plots.bars(informed)
    numbers = {
        "influence": influences,
        "information": informed,
        "spikes": peaks,
    }
    return part, numbers, figures


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
        images = {f"step {step}": _image(frames[step, 0], spec)}
        images |= {name: _flat(x) for name, x in by_quantity.items()}
        found.append([(caption, _png(image)) for caption, image in images.items()])
    return found


def _image(
    observation: Num[np.ndarray, "*parts"], spec: environments.ObservationSpec
) -> Num[np.ndarray, "height width *channels"]:
    return pictures.as_image(observation) if pictures.is_picture(spec) else _flat(observation)


def _flat(values: Num[np.ndarray, "*parts"]) -> Num[np.ndarray, "height width"]:
    """Return vectors as one row, grids as they are, and planes of grids summed."""
    x = np.atleast_2d(values)
    return x if x.ndim == 2 else x.sum(axis=-1)


def _png(image: Num[np.ndarray, "height width *channels"]) -> bytes:
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, image, cmap="viridis", format="png")
    return buffer.getvalue()


def _influences(
    rule: DiscoveredRule,
    agent: RuleAgent,
    learner: LearnerState,
    task: environments.Environment,
    trajectory: disco.Trajectory,
) -> dict[str, Float[np.ndarray, "distances"]]:
    """Return the influence of z on the rule's targets, and on all of actor-critic's together."""
    short = predictions.slice_trajectory(agent, trajectory, 0, _INFLUENCE_STEPS)
    key = jax.random.key(0)
    outputs, target_outputs = predictions.learner_outputs(agent, learner, short)
    found = policy_updates.influence(
        rule, outputs, target_outputs, short, learner.rule_state, outputs["z"], key
    )
    critic_rule = disco.hand_designed("actor_critic")
    critic = RuleAgent.create(agent.config, task.dynamics, critic_rule)
    initial = critic.init(key)
    critic_outputs, _ = predictions.learner_outputs(critic, initial, short)
    none = policy_updates.influence(
        critic_rule, critic_outputs, None, short, initial.rule_state, outputs["z"], key
    )
    return {
        **{f"{name} of the rule": found[name] for name in ("pi", "y", "z")},
        _CRITIC: np.sqrt(sum(np.square(x) for x in none.values())),
    }
