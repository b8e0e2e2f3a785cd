"""Contenders of evaluations on disk, made again."""

import dataclasses
import json
import shutil

import jax
import pytest

import disco
import environments
from agents.networks import NetworkConfig
from evaluation.config import BASELINES, EvaluationConfig
from evaluation.contenders import Contender, make_contenders, restored
from evaluation.report.manifest import read_manifest, write_manifest
from evaluation.training import make_agent
from tests.meta.common import small_rule

CONFIG = EvaluationConfig(baselines=())
TASK = environments.make("catch/5x5")


def written(folder, contenders, config=CONFIG):
    """The contenders but the random policy, as they are on disk."""
    random, *_ = make_contenders([], config)
    write_manifest(folder, config, [TASK.name], [random, *contenders], {})
    return read_manifest(folder).contenders[1:]


def parameters(contender: Contender):
    """Shapes of an agent's learning state, and its settings."""
    agent = make_agent(contender, TASK)
    return jax.eval_shape(agent.init, jax.random.key(0)), contender.agent


@pytest.mark.parametrize("kind", BASELINES)
def test_a_baseline_has_the_settings_of_its_trial(kind, tmp_path):
    """And a width that the evaluation's config has not, as in a study of widths."""
    wide = dataclasses.replace(
        CONFIG, agent=dataclasses.replace(CONFIG.agent, network=NetworkConfig(torso=(48,)))
    )
    made = Contender.of_baseline(f"{kind}, trial 3", kind, wide, {"learning_rate": 0.0123})
    (stored,) = written(tmp_path, [made])
    found = restored(stored, CONFIG, tmp_path)
    assert (found.name, found.kind) == (made.name, kind)
    assert parameters(found) == parameters(made)
    usual = Contender.of_baseline(kind, kind, CONFIG, {})
    assert parameters(found) != parameters(usual)
    if made.other is None:
        assert found.rule == made.rule
        assert found.agent.learning_rate == 0.0123
    else:
        assert found.other == made.other


def test_a_rule_is_read_from_its_copy_where_its_file_is_another_now(tmp_path):
    file, copies = tmp_path / "mine.npz", tmp_path / "rules"
    disco.save(small_rule(), file)
    (*_, made) = make_contenders([str(file)], CONFIG)
    made = dataclasses.replace(made, name="mine, width x2")  # Of a study: the copy is the file's.
    (stored,) = written(tmp_path, [made])
    assert restored(stored, CONFIG, copies).rule is not None
    copies.mkdir()
    shutil.copy(file, copies / "mine.npz")
    for damage in (b"damaged", None):
        if damage is None:
            disco.save(disco.load("grid57"), file)
        else:
            file.write_bytes(damage)
        found = restored(stored, CONFIG, copies)
        assert jax.tree.structure(found.rule) == jax.tree.structure(made.rule)
    (copies / "mine.npz").unlink()
    with pytest.raises(ValueError, match="The rule 'mine, width x2' is gone"):
        restored(stored, CONFIG, copies)


def test_an_agent_with_other_settings_than_its_name_says_is_refused(tmp_path):
    (*_, made) = make_contenders([], CONFIG, ["ppo/learning_rate=0.002"])
    (stored,) = written(tmp_path, [made])
    assert restored(stored, CONFIG, tmp_path).other == made.other
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["contenders"][1]["source"]["hyper_parameters"]["learning_rate"] = 0.5
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"'ppo/learning_rate=0\.002' has other settings"):
        restored(read_manifest(tmp_path).contenders[1], CONFIG, tmp_path)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ppo", {"for_images": None, "unroll_length": 128, "num_environments": 8}),
        ("dreamer/paper", {"of_family": {"atari100k": {"replay_ratio": 256.0}}}),
        ("iris/paper,10m", {"replay_capacity": 100_000}),
        ("dice/paper", {"unroll_length": 40, "batch_size": 80}),
        ("muesli/paper", {"images": None, "network": {"memory": 256, "channels": [16, 32, 32]}}),
        ("muzero/paper", {"images": None, "frame_stack": 4, "replay_capacity": 1_000_000}),
    ],
)
def test_an_agent_of_an_older_preset_has_the_settings_of_its_run(name, changes, tmp_path):
    """Those of the presets before they had their papers' numbers."""

    def changed(settings, changes):
        for key, value in changes.items():
            if value is None:
                settings.pop(key)
            else:
                nested = isinstance(value, dict)
                settings[key] = changed(settings[key], value) if nested else value
        return settings

    (*_, made) = make_contenders([], CONFIG, [name])
    written(tmp_path, [made])
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    old = changed(manifest["contenders"][1]["source"]["hyper_parameters"], changes)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = restored(read_manifest(tmp_path).contenders[1], CONFIG, tmp_path).other
    assert found is not None
    assert json.loads(json.dumps(dict(found.settings))) == old


@pytest.mark.parametrize("damaged", [None, [1], {"images": 5}, {"for_images": [1]}])
def test_an_agent_with_damaged_settings_is_refused(damaged, tmp_path):
    (_, made) = make_contenders([], CONFIG, ["ppo/learning_rate=0.004"])
    (stored,) = written(tmp_path, [made])
    settings = stored.source["hyper_parameters"]
    damaged = settings | damaged if isinstance(damaged, dict) else damaged
    stored = dataclasses.replace(stored, source={**stored.source, "hyper_parameters": damaged})
    with pytest.raises(ValueError, match="settings"):
        restored(stored, CONFIG, tmp_path)
