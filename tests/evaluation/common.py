"""Training without an evaluation, and evaluations on disk whose results are random numbers."""

import dataclasses
import io
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, PngImagePlugin

import disco
import environments
from agents import registry
from agents.search_space import Settings
from evaluation import storage, tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    DISCOVERED,
    RULE,
    Contender,
    make_contenders,
    rule_contenders,
)
from evaluation.report.discoveries import Discovery
from evaluation.report.stored import read_manifest, write_manifest
from evaluation.results import Episodes, LearningCurves, RunResult
from evaluation.rules import fingerprint
from evaluation.runs import ContenderRun, train_runs
from evaluation.scoring import references
from evaluation.scoring.evaluation import Evaluation
from evaluation.scoring.references import Reference
from evaluation.tuned_settings import Tuned, TunedSettings
from training.schedule import Report

CONFIG = EvaluationConfig(
    seeds=2,
    baselines=("actor_critic", "policy_gradient"),
    resamples=50,
    num_points=4,
)
TASKS = ("catch/5x5", "catch/8x8")
BASELINES = (
    "actor_critic",
    "policy_gradient",
    "impala",
    "hand_set",
    "ppo",
    "dpo",
    "dice",
    "muesli",
    "muzero",
)

DISCOVERY = Discovery(
    "mine",
    {"suite": ("grid57",), "seed": 3},
    [
        {
            "meta_step": step,
            "environment_steps": 100 * step,
            "validation_reward": 0.1 * step,
            "policy_entropy": 1.0,
            "target_kl": 0.1,
            "meta_gradient_norm": None,
            "num_resets": 1,
            "non_finite_agents": 0,
            "agents": {
                "task": ["a", "b"],
                "validation_reward": [0.1, None],
                "steps_since_reset": [1, 2],
            },
        }
        for step in (10, 20, 30)
    ],
)


HOSTILE = (
    "</script><script>hacked=1</script>",
    '<a href="javascript:hacked=1">a</a>',
    "<b>bold</b> &lt;i&gt; $x$ %{y}",
    "<img src=x onerror=hacked=1>",
    "\"'><svg onload=hacked=1>",
    "<!--<script>",
)


def train(
    tasks: Sequence[environments.Environment],
    contender: Contender,
    config: EvaluationConfig,
    folder: pathlib.Path,
    report: Report = lambda *_: None,
) -> LearningCurves:
    """A contender's curves on tasks that are all outside JAX, or all of equal dynamics."""
    runs = [
        [ContenderRun.of(contender, task, seed, config, folder) for seed in range(config.seeds)]
        for task in tasks
    ]
    flat = [run for row in runs for run in row]
    groups = [[run] for run in flat] if tasks[0].is_host else [flat]
    found = [result for group in groups for result in train_runs(group, config, folder, report)]
    results = [found[i : i + config.seeds] for i in range(0, len(found), config.seeds)]
    return LearningCurves.of(results, config)


def load(
    folder: pathlib.Path,
    tasks: Sequence[environments.Environment],
    contender: Contender,
    config: EvaluationConfig,
) -> LearningCurves:
    """A contender's curves, from the results that an evaluation kept."""
    results = [
        [
            storage.load(ContenderRun.of(contender, task, seed, config, folder).folder)
            for seed in range(config.seeds)
        ]
        for task in tasks
    ]
    return LearningCurves.of([[x for x in row if x is not None] for row in results], config)


def result(score, config=CONFIG):
    points = len(config.intervals[0])
    curve = Episodes(np.full(points, 2.0), 2.0 * score * np.linspace(0.5, 1.0, points))
    window = Episodes(np.array(2.0), np.array(2.0 * score))
    return RunResult(curve, window, {"length": 4.0}, True, 1.0, 2.0, "1 x cpu", 0)


def write_runs(
    folder: pathlib.Path,
    config: EvaluationConfig = CONFIG,
    tasks: tuple[environments.Environment, ...] = (),
    rule: str = "grid57",
) -> list[environments.Environment]:
    """Writes the results of all runs of an evaluation, nothing else; returns its tasks."""
    found = [*(tasks or [environments.make("catch/5x5")])]
    for level, contender in enumerate(make_contenders(rule_contenders([rule], config), config)):
        for task in found:
            for index in range(config.seeds):
                score = level + 0.1 * index
                run = ContenderRun.of(contender, task, index, config, folder)
                storage.save(run.folder, result(score, config))
    return found


def write_evaluation(
    folder, config=CONFIG, tasks=TASKS, shift=0.0, skip=(), prediction=b"", rule="grid57"
):
    """Random below the baselines below the rule; `skip` has (contender, task, seed index)."""
    contenders = make_contenders(rule_contenders([str(rule)], config), config)
    made = [environments.make(task) for task in tasks]
    write_manifest(folder, config, tasks, contenders, {"code_version": "1"})
    found, _ = references.of_tasks(made, config.num_steps, references.shipped())
    references.write(folder / storage.REFERENCES, found)
    rng = np.random.default_rng(0)
    for level, contender in enumerate(contenders):
        for task in made:
            for index, seed in enumerate(config.all_seeds):
                score = level + 0.1 * rng.normal() + 0.01 * seed + shift
                if (contender.name, task.name, index) not in skip:
                    run = ContenderRun.of(contender, task, index, config, folder)
                    storage.save(run.folder, result(score, config))
                    if prediction:
                        (run.folder / "prediction.png").write_bytes(prediction)
    return read_manifest(folder)


def evaluation(
    tasks: Sequence[str],
    contenders: Sequence[Contender],
    curves: Mapping[str, LearningCurves],
    config: EvaluationConfig,
    scales: Mapping[str, Reference],
    reasons: Mapping[str, str] | None = None,
) -> Evaluation:
    """An evaluation with made-up curves."""
    return Evaluation(
        config=config,
        tasks=tuple(tasks),
        contenders=tuple(contenders),
        contender_curves=curves,
        seeds=config.all_seeds,
        references=scales,
        reasons=reasons or {},
    )


def rule_contender(name: str, is_discovered: bool = True, **source) -> Contender:
    """One that was read from a manifest."""
    kind, agent = DISCOVERED if is_discovered else RULE, dataclasses.asdict(CONFIG.agent)
    return Contender(name=name, algorithm=kind, settings=agent, source=source)


def tuned(config: EvaluationConfig, settings: Mapping[str, Settings]) -> TunedSettings:
    """Settings that a search for these evaluations has found, by the algorithm or the rule."""
    sha256 = {x: fingerprint(disco.load(x)) for x in settings if x in disco.zoo()}
    return TunedSettings(
        tasks=[],
        budget=config.num_steps,
        **tuned_settings.common_settings(config),
        seed=0,
        contenders={name: Tuned(x, 1.0, [], [], sha256.get(name)) for name, x in settings.items()},
    )


def of_algorithm(name: str, algorithm: str = "") -> Contender:
    """One with its default settings."""
    algorithm = algorithm or name
    return Contender.of(name, algorithm, registry.configured(algorithm))


def picture(caption="4 steps of <b>") -> bytes:
    text, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    text.add_text("caption", caption)
    Image.new("RGB", (30, 10)).save(buffer, "PNG", pnginfo=text)
    return buffer.getvalue()
