"""Dreamer at work, as small as can be."""

import dataclasses
import io
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from PIL import Image

import environments
from agents import pictures
from agents.dreamer import agent as agent_module
from agents.dreamer import held_out, learner, losses
from agents.dreamer.agent import Dreamer
from agents.dreamer.config import PRESETS, DreamerConfig, preset, sizes
from agents.dreamer.model import count_parameters, make_model
from agents.dreamer.networks import ActionPart
from agents.dreamer.replay import DreamerReplay
from agents.dreamer.rssm import State, initial_state
from environments.processes import SerialSimulators
from tests.annotations import unchecked

TINY = dataclasses.replace(
    preset("nature"),
    deterministic=32,
    hidden=16,
    latents=4,
    classes=4,
    units=16,
    layers=1,
    bins=41,
    horizon=4,
    imagine_last=3,
    num_environments=2,
    batch_size=2,
    batch_length=8,
    prefill=8,
    replay_capacity=200,
    replay_ratio=4.0,
)


def told(agent: Dreamer, folder, stop: int | None = None, checkpoint_seconds: float = 600.0):
    """What a run on Catch tells, until it is stopped."""
    folder.mkdir(exist_ok=True)
    found = []
    task = environments.make("catch/5x5")
    training = agent.train(task, 0, 160, folder, checkpoint_seconds)
    next(training)  # Where it begins.
    for stretch in training:
        found.append(stretch)
        if stop is not None and stretch.environment_steps >= stop:
            training.close()
            break
    return found


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_if_it_never_was(tmp_path):
    whole = told(Dreamer(TINY, stretches=20), tmp_path / "whole")
    assert whole[-1].metrics["updates"] > 10
    assert sum(len(x.episodes) for x in whole) >= 20
    assert all(np.isfinite(list(x.metrics.values())).all() for x in whole)
    saving = Dreamer(TINY, stretches=20)
    first = told(saving, tmp_path / "stopped", stop=80, checkpoint_seconds=0.0)
    second = told(saving, tmp_path / "stopped")
    assert second[0].environment_steps > first[-1].environment_steps
    assert [*first, *second] == whole


@pytest.mark.parametrize(
    ("name", "size", "expected", "critic"),
    [
        ("nature", "1m", 687_875, 66_111),
        ("nature", "12m", 10_498_259, 853_503),
        ("nature", "25m", 23_495_475, None),
        ("nature", "50m", 41_658_259, None),
        ("nature", "100m", 93_480_531, None),
        ("nature", "200m", 165_965_075, None),
        ("nature", "400m", 372_920_979, None),
        ("v1", "xs", 8.27e6, None),
        ("v1", "s", 18e6, None),
        ("v1", "m", 37e6, None),
        ("v1", "l", 77e6, None),
        ("v1", "xl", 200e6, None),
    ],
)
def test_sizes(name, size, expected, critic):
    """Exactly the reference's figures, and within 1% the arXiv version's Table B.1.

    The table gives whole millions: xs is "8M".
    """
    image = {"image": specs.BoundedArray((64, 64, 3), np.uint8, 0, 255)}
    model = make_model(preset(name, size), image, {"action": ActionPart(17, True)})
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert count_parameters(params) == pytest.approx(expected, rel=0 if name == "nature" else 0.01)
    if critic is not None:
        assert count_parameters(params["critic"]) == critic


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nature", "v1"])
def test_bfloat16_is_near_float32(name):
    """The losses and their gradients, whose parameters stay in float32."""
    small = {"deterministic": 32, "hidden": 16, "units": 16, "depth": 4, "bins": 41, "horizon": 4}
    shape, number = (4, 3), 6
    seen = {
        "image": specs.BoundedArray((16, 16, 3), np.uint8, 0, 255),
        "vector": specs.Array((5,), np.float32),
    }
    keys, never = jax.random.split(jax.random.key(0), 4), jnp.zeros(shape, bool)
    batch = losses.Batch(
        observation={
            "image": jax.random.randint(keys[0], (*shape, 16, 16, 3), 0, 256, np.uint8),
            "vector": jax.random.normal(keys[1], (*shape, 5)),
        },
        action={"action": jax.random.randint(keys[2], shape, 0, number)},
        reward=jax.random.normal(keys[3], shape),
        is_first=never,
        is_last=never,
        is_terminal=never,
    )
    found = {}
    for dtype in ("float32", "bfloat16"):
        config = dataclasses.replace(preset(name, "1m"), **small, dtype=dtype)
        model = make_model(config, seen, {"action": ActionPart(number, is_discrete=True)})
        params = model.init(jax.random.key(1))
        assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype(np.float32)}

        def loss(params, model=model, config=config):
            total, outcome = losses.loss(
                params,
                params["critic"],
                model,
                batch,
                initial_state(config, shape[1]),
                losses.newborn_scales(model),
                None,
            )
            return total, jax.tree.map(jnp.mean, outcome.losses)

        run = jax.value_and_grad(loss, has_aux=True)
        program = str(jax.make_jaxpr(run)(params))
        assert ("bf16" in program) == (dtype == "bfloat16")
        gradients = jax.eval_shape(run, params)[1]
        assert {x.dtype for x in jax.tree.leaves(gradients)} == {np.dtype(np.float32)}
        found[dtype] = jax.jit(loss)(params)[1]
    for term in ("decoder/image", "decoder/vector", "reward", "continuation", "dynamics"):
        np.testing.assert_allclose(found["bfloat16"][term], found["float32"][term], rtol=0.05)
    assert found["bfloat16"]["decoder/image"] != found["float32"]["decoder/image"]


def test_unknown_presets_sizes_and_ablations_are_refused():
    assert sizes("v1") == ("1m", "xs", "s", "m", "l", "xl")
    with pytest.raises(ValueError, match="preset is 'v2'; expected one of nature, v1"):
        preset("v2")
    with pytest.raises(ValueError, match="size is '3m'; 'nature' has 1m, 12m"):
        preset("nature", "3m")
    with pytest.raises(ValueError, match="ablation is 'NoLuck'; expected one of NoFreeBits"):
        preset("nature", "1m", "NoLuck")


@pytest.mark.parametrize("name", ["nature", "v1"])
@pytest.mark.parametrize("shape", [(64, 64, 3), (20, 27, 1), (9, 8, 2)])
def test_images_of_any_size_come_back_in_their_size(name, shape):
    seen = {"image": specs.BoundedArray(shape, np.uint8, 0, 255)}
    model = make_model(preset(name, sizes(name)[0]), seen, {"action": ActionPart(2, True)})
    params = jax.eval_shape(model.init, jax.random.key(0))
    config = model.config
    h = jax.ShapeDtypeStruct((5, config.deterministic), np.float32)
    z = jax.ShapeDtypeStruct((5, config.latents * config.classes), np.float32)
    assert jax.eval_shape(model.decode, params, h, z)["image"].shape == (5, *shape)


def test_a_model_that_does_not_fit_is_refused_before_it_is_compiled(tmp_path):
    huge = dataclasses.replace(preset("nature", "400m"), batch_size=512, prefill=512)
    message = r"needs about \d+\.\d GB, and .* has \d+\.\d GB; expected a smaller size, batch_size"
    task, steps = environments.make("catch"), 100_000
    with pytest.raises(ValueError, match=message):
        Dreamer(huge).check(task, steps)
    with pytest.raises(ValueError, match=message):
        next(Dreamer(huge).train(task, 0, steps, tmp_path, 600.0))


def test_a_replay_that_does_not_fit_is_refused_before_it_is_allocated():
    """It counts twice, and what an update takes of the host's memory is not free."""
    agent = Dreamer(dataclasses.replace(preset("nature", "200m"), replay_capacity=10**9))
    message = r"replay needs \d+\.\d GB with the copy .* expected a smaller replay_capacity"
    with pytest.raises(ValueError, match=message):
        agent.check(environments.make("catch"), 10**9)


def test_the_memory_of_a_replay_is_foreseen(tmp_path, monkeypatch):
    found = []

    class Measured(DreamerReplay):
        def __init__(self, example, capacity, length, *, online):
            super().__init__(example, capacity, length, online=online)
            found.append(sum(x.nbytes for x in self.snapshot()["kept"].values()) / capacity)

    monkeypatch.setattr(agent_module, "DreamerReplay", Measured)
    task = environments.make("catch/5x5")
    for version in PRESETS:
        kept = {name: getattr(preset(version), name) for name in ("online_queue", "stored_latents")}
        config = dataclasses.replace(TINY, **kept)
        next(Dreamer(config).train(task, 0, 160, tmp_path / version, 600.0))
        model = agent_module._model(config, *agent_module._interfaces(task))
        assert agent_module._step_bytes(model) == found.pop()


@dataclasses.dataclass(frozen=True)
class Seeing:
    """Dynamics that have other observations, by their specs."""

    dynamics: Any
    seen: Any

    def observation_spec(self):
        return self.seen

    def action_spec(self):
        return self.dynamics.action_spec()

    def reset(self, task, key):
        raise NotImplementedError

    def step(self, task, state, action, key):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({}, "has no observation"),
        ({"a": {"b": specs.Array((2,), np.float32)}}, "'a', which is dict; expected an array"),
        (specs.Array((0,), np.float32), r"'observation' of \(0,\); expected some numbers"),
        ({"image": specs.BoundedArray((64, 64, 0), np.uint8, 0, 255)}, "expected some numbers"),
        ({"words": specs.Array((2,), np.dtype("U3"))}, "'words' of <U3; expected numbers"),
    ],
)
@unchecked()
def test_observations_that_cannot_be_encoded_are_named(seen, message):
    task = environments.make("catch/5x5")
    task = dataclasses.replace(task, dynamics=Seeing(task.dynamics, seen))
    with pytest.raises(ValueError, match=message):
        Dreamer(TINY).check(task, 160)


def test_observations_may_have_any_names():
    seen = {name: specs.Array((2,), np.float32) for name in ("a-b", "a_b", "a/b", "2", "reward")}
    seen["RGB.x"] = specs.BoundedArray((16, 16, 3), np.uint8, 0, 255)
    model = make_model(TINY, seen, {"action": ActionPart(2, True)})
    params = model.init(jax.random.key(0))
    outputs = [name for name in params["decoder"] if "_output" in name]
    assert len(outputs) == 7  # Two more for images.


def test_a_long_run_is_told_of_and_saved_at_least_every_200_updates():
    config = DreamerConfig(replay_ratio=512.0)  # An update every two steps.
    assert Dreamer(config)._stretch(config, 1_000_000) == 400
    assert Dreamer(config)._stretch(config, 10_000) == 50
    assert Dreamer(config)._stretch(config, 10) == 1


@pytest.mark.slow
@pytest.mark.parametrize("preset_name", ["nature", "v1"])
def test_continuous_actions_and_several_vectors(tmp_path, preset_name):
    pytest.importorskip("dm_control")
    sized = {
        x.name: getattr(TINY, x.name)
        for x in dataclasses.fields(TINY)
        if getattr(TINY, x.name) != getattr(preset("nature"), x.name)
    }
    agent = Dreamer(dataclasses.replace(preset(preset_name), **sized | {"prefill": 2}))
    task = environments.make("control_proprio/cartpole_swingup")
    agent.check(task, 100)
    *_, last = agent.train(task, 0, 100, tmp_path, 600.0)
    assert last.metrics["updates"] > 5
    assert {"loss/decoder/position", "loss/decoder/velocity"} <= set(last.metrics)
    assert np.isfinite(list(last.metrics.values())).all()
    assert not (tmp_path / "strip.png").exists()


class Counting(dm_env.Environment):
    """Shows how many steps the episode has, and pays one hundredth of that plus the action."""

    def __init__(self, seed: int):
        self._count = seed % 3  # Instances end at different times.

    def reset(self):
        self._count = 0
        return dm_env.restart(self._seen())

    def step(self, action):
        self._count += 1
        reward = 0.01 * self._count + float(action)
        if self._count == 5:
            return dm_env.truncation(reward, self._seen())
        return dm_env.transition(reward, self._seen())

    def _seen(self):
        return np.full((2,), self._count, np.float32)

    def observation_spec(self):
        return specs.Array((2,), np.float32, "count")

    def action_spec(self):
        return specs.DiscreteArray(2)


@dataclasses.dataclass(frozen=True)
class CountingHost:
    """As a host environment, whose arrays change with the next step."""

    def observation_spec(self):
        return specs.Array((2,), np.float32, "count")

    def action_spec(self):
        return specs.DiscreteArray(2)

    def start(self, task, batch_size, seed, workers=None):
        return SerialSimulators(
            Counting, self.observation_spec(), self.action_spec(), batch_size, seed
        )


@pytest.mark.parametrize("name", ["nature", "v1"])
def test_what_is_learned_from_is_what_happened(tmp_path, monkeypatch, name):
    """In a host environment: each row has the action that led to it, and what that brought."""
    batches = []

    def learn(model, learner, batch, start, key):
        batches.append(jax.tree.map(np.array, batch))
        states = State(
            jnp.zeros((*batch.reward.shape, model.config.deterministic)),
            jnp.zeros((*batch.reward.shape, model.config.latents, model.config.classes)),
        )
        return learner._replace(updates=learner.updates + 1), states, {}

    monkeypatch.setattr(learner, "learn", learn)
    monkeypatch.setattr(learner, "update_bytes", lambda model: 0)
    version = preset(name)
    config = dataclasses.replace(
        TINY, online_queue=version.online_queue, stored_latents=version.stored_latents
    )
    task = environments.Environment(name="counting/5", dynamics=CountingHost())
    *_, last = Dreamer(config).train(task, 0, 100, tmp_path, 600.0)
    assert len(batches) > 5
    for batch in batches:
        count, first = batch.observation["observation"][..., 0], batch.is_first
        expected = np.where(first, 0.0, 0.01 * count + batch.action["action"])
        inside = slice(0 if version.stored_latents else 1, None)  # Where is_first is true of v1's.
        np.testing.assert_allclose(batch.reward[inside], expected[inside], rtol=1e-6)
        np.testing.assert_array_equal(batch.is_last, count == 5)
        np.testing.assert_array_equal(count[1:] == 0, first[1:])
        if not version.stored_latents:
            assert batch.is_first[0].all()
    # Of 200 steps in each of two environments a sixth are an episode's first.
    paid = last.metrics["held_out/reward"]
    assert 0.03 < paid < 1.03
    assert last.metrics["held_out/reward_stddev"] > 0.0


def test_what_can_never_learn_is_refused(tmp_path):
    task = environments.make("catch/5x5")
    with pytest.raises(ValueError, match=r"1000 sequences \(prefill\); this one can have 144"):
        next(Dreamer(dataclasses.replace(TINY, prefill=1_000)).train(task, 0, 160, tmp_path, 600.0))


def test_calibration_error():
    predicted = np.repeat([0.1, 0.9], 50)
    assert held_out.calibration_error(predicted, predicted) == 0.0
    assert held_out.calibration_error(predicted, 1.0 - predicted) == pytest.approx(0.8)
    # Right on average, in both tenths and as a whole.
    noisy = np.tile([0.0, 1.0], 50)
    assert held_out.calibration_error(np.full(100, 0.5), noisy) == pytest.approx(0.0)


@pytest.mark.slow
def test_pictures_of_what_is_done_and_expected(tmp_path):
    task = environments.make("deep_sea/12")
    *_, last = Dreamer(dataclasses.replace(TINY, replay_ratio=1.0)).train(
        task, 0, 60, tmp_path, 600.0
    )
    strip, prediction = (
        (tmp_path / f"{name}.png").read_bytes() for name in ("strip", "prediction")
    )
    assert pictures.read_caption(strip).startswith("an episode: 12 steps, reward ")
    # Five steps are seen, the other eight are predicted; in three rows.
    assert "the other 8 are predicted" in pictures.read_caption(prediction)
    wide, high = Image.open(io.BytesIO(prediction)).size
    assert wide / high > 13 / 3
    assert last.metrics["held_out/ends"] == pytest.approx(1 / 12, rel=0.1)


def rows(step: int):
    return {"x": np.array([step, 100 + step]), "z": np.zeros(2, np.uint8)}


def test_the_replay_draws_fresh_sequences_first_and_then_any():
    replay = DreamerReplay(rows(0), capacity=40, length=4)
    for step in range(9):
        replay.insert(rows(step))
    random = np.random.default_rng(0)
    batch, drawn = replay.sample(random, 5)
    assert batch["x"].shape == (5, 5)
    # Two windows of each environment do not overlap but for the step before.
    fresh = {tuple(x) for x in zip(drawn.environment[:4], drawn.first[:4], strict=True)}
    assert fresh == {(0, 0), (1, 0), (0, 4), (1, 4)}
    np.testing.assert_array_equal(np.diff(batch["x"], axis=0), 1)
    _, later = replay.sample(random, 200)
    assert set(later.first) == set(range(5))


def test_refreshed_latents_are_found_again_unless_they_were_overwritten():
    replay = DreamerReplay(rows(0), capacity=20, length=4)
    for step in range(10):
        replay.insert(rows(step))
    batch, drawn = replay.sample(np.random.default_rng(0), 3)
    for step in range(10, 13):
        replay.insert(rows(step))
    replay.refresh(drawn, {"z": np.full((4, 3), 7, np.uint8)})
    kept = replay.snapshot()["kept"]
    for environment in range(2):
        for place in range(10):
            step = kept["x"][place, environment] - 100 * environment
            was_drawn = any(
                e == environment and first < step <= first + 4
                for e, first in zip(drawn.environment, drawn.first, strict=True)
            )
            assert kept["z"][place, environment] == (7 if was_drawn and step >= 3 else 0)
    assert batch["z"].shape == (5, 3)


def test_a_replay_smaller_than_a_sequence_is_refused():
    with pytest.raises(ValueError, match="replay_capacity is 8; expected at least 10"):
        DreamerReplay(rows(0), capacity=8, length=4)
