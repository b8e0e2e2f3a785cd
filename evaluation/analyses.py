"""An analysis of a discovered rule, from training to a page (DiscoRL, figure 4).

For each task an agent learns by the rule, and then plays. What `evaluation.analysis` finds in that
becomes a section of a report, beside one on agents that learn by the rule with its own predictions
hidden from it.

    index.html       everything
    analysis.json    the numbers
    agents/          what the training of the agents in host environments left
    evaluation/      agents that learn by the rule, and by it without its predictions
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import disco
import environments
from agents import pictures
from agents.rule_agent import Agent, LearnerState
from common.atomic import write_atomically
from disco.discovered import DiscoveredRule
from evaluation import analysis, archive, folder_names, host_training, page, playing, reports
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender, make_contenders
from evaluation.evaluate import check, evaluate
from evaluation.executors import OpenProgress
from evaluation.training import host_program

_NUM_SPIKES, _SPIKE_DISTANCE = 4, 10
_INFLUENCE_STEPS = 30
_CRITIC = "all of actor-critic"


@dataclasses.dataclass(frozen=True)
class AnalysisConfig:
    """What an analysis looks at.

    Attributes:
      steps: of each environment that the agent plays when it has learned.
      environments: that it plays at once.
      horizon: transitions that "future" means to the probes.
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
    what: AnalysisConfig,
    folder: pathlib.Path,
    read_config: archive.ReadConfig,
    provenance: dict[str, Any],
    open_progress: OpenProgress,
) -> list[pathlib.Path]:
    """Analyses a rule on tasks; returns the files of the report.

    Args:
      rule_name: a discovered rule's file, or name in the zoo.
      tasks: to learn.
      config: of the training.
      what: to look at.
      folder: for all results.
      read_config: see `archive.ReadConfig`.
      provenance: to note; JSON values.
      open_progress: to show progress in.

    Raises:
      ValueError: if the rule is not a discovered one, or cannot act on a task.
      OSError: if something cannot be written.
    """
    config = dataclasses.replace(config, baselines=())
    random, contender = make_contenders([rule_name], config)
    rule = contender.rule
    if not isinstance(rule, DiscoveredRule):
        raise ValueError(
            f"{rule_name!r} is not a discovered rule; expected one, which has y and z."
        )
    contenders = [random, contender, *_without_predictions(contender, rule)]
    check(tasks, contenders, config)
    sections, numbers = [], {}
    for task in tasks:
        agent, learner = _trained(contender, rule, task, config, folder / "agents", open_progress)
        content, numbers[task.name] = _section(rule, agent, learner, task, config.seed, what)
        sections.append((f"{contender.name} on {task.name}", content))
    evaluate(
        tasks, contenders, config, folder / "evaluation", provenance, None, None, open_progress
    )
    found = archive.gather([archive.read_manifest(folder / "evaluation", read_config)])
    title = f"Analysis of {contender.name}"
    files = reports.write(folder, found, title=title, first=sections, reproduced=False)
    text = json.dumps(numbers, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "analysis.json", text)
    return [*files, folder / "analysis.json"]


def _without_predictions(contender: Contender, rule: DiscoveredRule) -> list[Contender]:
    """The rule that does not see y and z when it makes their targets, and when it makes any."""
    blind = {
        "y and z hidden from their targets": analysis.WithoutBootstrapping(rule),
        "y and z hidden from all targets": dataclasses.replace(rule, reads_predictions=False),
    }
    return [
        dataclasses.replace(
            contender,
            name=f"{contender.name}, {label}",
            rule=without,
            source={**contender.source, "hyper_parameters": {"without_predictions": label}},
        )
        for label, without in blind.items()
    ]


def _trained(
    contender: Contender,
    rule: DiscoveredRule,
    task: environments.Environment,
    config: EvaluationConfig,
    folder: pathlib.Path,
    open_progress: OpenProgress,
) -> tuple[Agent, LearnerState]:
    """An agent that has learned a task."""
    with open_progress(f"learn {task.name}", config.num_updates) as progress:
        if progress is not None:
            progress.start(0)

        def report(updates: int, *numbers: Any) -> None:
            if progress is not None:
                progress.update(updates, dict(zip(("steps/s", "return"), numbers, strict=False)))

        if not task.is_host:
            agent = Agent.create(contender.agent, task.dynamics, rule)
            learner = analysis.learn(rule, agent, task, config.num_updates, config.seed, report)
            return agent, learner
        program = host_program(contender, task)
        outcome = host_training.train(
            program,
            rule,
            contender.agent.learning_rate,
            task,
            config.seed,
            config.num_updates,
            folder / folder_names.of_task(task.name),
            log_interval=config.updates_per_call,
            checkpoint_seconds=config.checkpoint_seconds,
            report=report,
        )
        return program.agent, outcome.learner


def _section(
    rule: DiscoveredRule,
    agent: Agent,
    learner: LearnerState,
    task: environments.Environment,
    seed: int,
    what: AnalysisConfig,
) -> tuple[str, dict[str, Any]]:
    """All findings on one agent, as HTML and as JSON values."""
    trajectory = playing.play(agent, learner.params, task, what.steps, what.environments, seed)
    outputs = analysis.outputs_along(agent, learner.params, trajectory)
    known = analysis.quantities(rule, outputs, trajectory)
    marks = _spikes(known["confidence of y (nats)"][: what.shown, 0])
    influences = _influences(rule, agent, learner, trajectory)
    still = np.nanmax(influences[_CRITIC])
    informed = analysis.information(rule, outputs, trajectory, what.horizon, seed)
    parts = [
        "<h3>Along an episode</h3>",
        page.paragraph(
            "Confidence is negative entropy. Dotted lines are where the confidence of y is at its"
            " local heights; the observations there are below.",
            "quiet",
        ),
        page.series({name: x[: what.shown, 0] for name, x in known.items()}, marks),
        *_pictures(rule, agent, learner, trajectory, marks, seed),
        "<h3>Bootstrapping</h3>",
        page.paragraph(
            "How much a change of z, k steps later, changes the targets of now: root mean square."
            f" Actor-critic is given the same z: its targets change by {still:.1g} at most.",
            "quiet",
        ),
        page.lines(influences, "k", "change of the target", log=True),
    ]
    if informed:
        parts += [
            "<h3>Information</h3>",
            page.paragraph(
                f"How well MLPs read the next {what.horizon} transitions from each: five-fold"
                " cross-validation, mean ± standard deviation over the folds.",
                "quiet",
            ),
            page.bars(informed),
        ]
    numbers = {
        "rewards_per_step": float(np.mean(known["reward"])),
        "influence": {name: _plain(x) for name, x in influences.items()},
        "information": informed,
        "spikes": marks,
    }
    return "".join(parts), numbers


def _spikes(values: np.ndarray) -> list[int]:
    """Where a series is highest, some steps apart."""
    marks: list[int] = []
    for step in np.argsort(-values):
        if all(abs(int(step) - mark) >= _SPIKE_DISTANCE for mark in marks):
            marks.append(int(step))
        if len(marks) == _NUM_SPIKES:
            break
    return sorted(marks)


def _pictures(
    rule: DiscoveredRule,
    agent: Agent,
    learner: LearnerState,
    trajectory: disco.Trajectory,
    marks: Sequence[int],
    seed: int,
) -> list[str]:
    """Observations where the confidence spikes, and what each quantity looks at there."""
    frames = playing.frames(agent, trajectory)
    if not isinstance(frames, np.ndarray):
        return [page.paragraph("Observations are not single arrays: no pictures.", "quiet")]
    alone, spec = playing.one_environment(trajectory, 0), agent.environment.observation_spec()
    parts = [
        "<h3>What each looks at</h3>",
        page.paragraph(
            "The observation at each line, and the norm of each quantity's gradient with respect to"
            " its parts.",
            "quiet",
        ),
    ]
    for mark in marks:
        key = jax.random.fold_in(jax.random.key(seed), mark)
        found = analysis.saliency(rule, agent, learner.params, alone, mark, key)
        shown = [(f"step {mark}", _image(frames[mark, 0], spec))]
        shown += [(name, _flat(x)) for name, x in found.items()]
        parts.append(page.pictures(shown))
    return parts


def _image(observation: np.ndarray, spec: environments.ObservationSpec) -> np.ndarray:
    return pictures.as_image(observation) if pictures.is_picture(spec) else _flat(observation)


def _flat(values: np.ndarray) -> np.ndarray:
    """`[H, W]`, of vectors, grids, and planes of grids: summed over the planes."""
    x = np.atleast_2d(values)
    return x if x.ndim == 2 else x.sum(axis=-1)


def _influences(
    rule: DiscoveredRule, agent: Agent, learner: LearnerState, trajectory: disco.Trajectory
) -> dict[str, np.ndarray]:
    """Of z on the targets of the rule, and on all of actor-critic's together."""
    short = analysis.stretch(agent, trajectory, 0, _INFLUENCE_STEPS)
    key = jax.random.key(0)
    outputs, target_outputs = analysis.learner_outputs(agent, learner, short)
    found = analysis.influence(
        rule, outputs, target_outputs, short, learner.rule, outputs["z"], key
    )
    other = disco.hand_designed("actor_critic")
    critic = Agent.create(agent.config, agent.environment, other)
    born = critic.init_learner(other, key)
    theirs, _ = analysis.learner_outputs(critic, born, short)
    none = analysis.influence(other, theirs, None, short, born.rule, outputs["z"], key)
    return {
        **{f"{name} of the rule": found[name] for name in ("pi", "y", "z")},
        _CRITIC: np.sqrt(sum(np.square(x) for x in none.values())),
    }


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in values]
