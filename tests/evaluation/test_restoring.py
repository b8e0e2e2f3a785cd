"""Contenders of evaluations on disk, made again."""

import dataclasses
import json
import shutil
from typing import Any

import jax
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from evaluation.config import EvaluationConfig
from evaluation.contenders import (
    Contender,
    make_contenders,
    rule_contenders,
    tuned_algorithm,
)
from evaluation.loading import restored
from evaluation.report.stored import read_manifest, write_manifest
from tests.evaluation.common import BASELINES
from tests.meta.common import small_rule

CONFIG = EvaluationConfig(baselines=())
TASK = environments.make("catch/5x5")


def written(folder, contenders, config=CONFIG):
    """The contenders but the random policy, as they are on disk."""
    random, *_ = make_contenders([], config)
    write_manifest(folder, config, [TASK.name], [random, *contenders], {})
    return read_manifest(folder).contenders[1:]


@pytest.mark.parametrize("name", BASELINES)
def test_an_algorithm_has_the_settings_of_its_trial(name, tmp_path):
    """And a width that the evaluation's config has not, as in a study of widths."""
    wide = dataclasses.replace(
        CONFIG, agent=dataclasses.replace(CONFIG.agent, network=NetworkConfig(torso=(48,)))
    )
    made = tuned_algorithm(f"{name}, trial 3", name, wide, {"learning_rate": 0.0123})
    (stored,) = written(tmp_path, [made])
    found = restored(stored, CONFIG, tmp_path)
    assert (found.name, found.kind, found.configured) == (made.name, name, made.configured)
    assert found.configured != tuned_algorithm(name, name, CONFIG, {}).configured


def of_the_version_before(contender: Contender) -> dict[str, Any]:
    """A manifest's entry as versions until November 2026 wrote it."""
    name, settings = contender.algorithm, dict(contender.settings)
    agent, source = dataclasses.asdict(CONFIG.agent), dict(contender.source)
    if "rule" in settings:
        agent, settings = settings["agent"], settings["rule"]
    by_task = settings.pop("by_task", {})
    if "images" in by_task:
        settings["for_images"] = by_task["images"]
    elif by_task:
        settings["of_family" if contender.kind == "dreamer" else "of_game"] = by_task
    if not contender.is_random:
        source["hyper_parameters"] = settings
    if contender.kind in ("ppo", "dreamer", "iris"):
        source["agent"] = name
    kind = "agent" if contender.kind in ("dreamer", "iris") else contender.kind
    return {"name": contender.name, "kind": kind, "agent": agent, "source": source}


def test_contenders_of_the_version_before_are_read(tmp_path):
    config = dataclasses.replace(CONFIG, baselines=("actor_critic", "ppo/cleanrl", "ppo"))
    made = list(make_contenders([], config, ["dreamer/paper", "iris/paper"]))
    made.append(tuned_algorithm("muesli_tuned", "muesli", CONFIG, {"learning_rate": 0.0123}))
    write_manifest(tmp_path, config, [TASK.name], made, {})
    file = tmp_path / "manifest.json"
    manifest = json.loads(file.read_text())
    algorithms = [x for x in made if not x.is_rule]
    manifest["contenders"] = [of_the_version_before(x) for x in algorithms]
    file.write_text(json.dumps(manifest))
    found = [restored(x, config, tmp_path) for x in read_manifest(tmp_path).contenders]
    assert [x.name for x in found] == [x.name for x in made]
    for one, other in zip(found, algorithms, strict=True):
        assert one.configured == other.configured, one.name


def test_a_rule_is_read_from_its_copy_where_its_file_is_another_now(tmp_path):
    file, copies = tmp_path / "mine.npz", tmp_path / "rules"
    disco.save(small_rule(), file)
    (made,) = rule_contenders([str(file)], CONFIG)
    made = dataclasses.replace(made, name="mine, width x2")  # Of a study: the copy is the file's.
    (stored,) = written(tmp_path, [made])
    assert restored(stored, CONFIG, tmp_path) is not None
    copies.mkdir()
    shutil.copy(file, copies / "mine.npz")
    for damage in (b"damaged", None):
        if damage is None:
            disco.save(disco.load("grid57"), file)
        else:
            file.write_bytes(damage)
        found = restored(stored, CONFIG, tmp_path)
        assert found.is_rule
        assert jax.tree.structure(found.rule) == jax.tree.structure(made.rule)
    (copies / "mine.npz").unlink()
    with pytest.raises(ValueError, match="The rule 'mine, width x2' is gone"):
        restored(stored, CONFIG, tmp_path)


def test_an_agent_with_other_settings_than_its_name_says_is_refused(tmp_path):
    (*_, made) = make_contenders([], CONFIG, ["ppo/learning_rate=0.002"])
    (stored,) = written(tmp_path, [made])
    found = restored(stored, CONFIG, tmp_path)
    assert found.configured == made.configured
    stored = dataclasses.replace(stored, settings={**stored.settings, "learning_rate": 0.5})
    with pytest.raises(ValueError, match=r"other settings, .* called by: 'learning_rate=0\.002'"):
        restored(stored, CONFIG, tmp_path)


@pytest.mark.parametrize(
    "damaged", [{"images": 5}, {"by_task": [1]}, {"by_task": {"images": 5}}, {"num_epochs": "x"}]
)
def test_an_agent_with_damaged_settings_is_refused(damaged, tmp_path):
    (_, made) = make_contenders([], CONFIG, ["ppo/learning_rate=0.004"])
    (stored,) = written(tmp_path, [made])
    stored = dataclasses.replace(stored, settings={**stored.settings, **damaged})
    with pytest.raises(ValueError, match="settings"):
        restored(stored, CONFIG, tmp_path)
