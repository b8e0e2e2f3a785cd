"""Dreamer at work, as small as can be."""

import dataclasses
import io
import os
import signal
from typing import Any

import dm_env
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from PIL import Image

import environments
from agents import pictures
from agents.dreamer import agent as dreamer_agent
from agents.dreamer import losses
from agents.dreamer.agent import ActionRange
from agents.dreamer.config import VERSIONS, DreamerConfig, preset
from agents.dreamer.distributions import Embedded
from agents.dreamer.layers import Norm
from agents.dreamer.model import Model, Sequences
from agents.dreamer.networks import ActionSpace, State, initial_state
from agents.encoders import computing_in
from agents.protocol import ExaminedAgent, ImaginingAgent, Mode
from disco_common import stopping
from environments.processes import SerialSimulators
from evaluation import playing
from tests.agents.common import take_modes, without_speed
from tests.agents.tiny import DREAMER as TINY
from tests.agents.tiny import dreamer
from tests.annotations import unchecked
from training import device, host
from training.records import Records, Run
from training.schedule import TrainingConfig


def train(config: DreamerConfig, task, folder, num_steps: int = 160, stop: int | None = None):
    """A run, and its metrics; stopped by a signal at a step if asked for."""
    agent, run = dreamer(config).make(task), Run(task, 0, folder / "run")
    settings = TrainingConfig(num_steps=num_steps, interval=8)

    def report(steps, *_):
        if steps == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    with stopping.noting():
        if task.is_host:
            trained = host.train(agent, run, settings, report)
        else:
            (trained,) = device.train(agent, [run], settings, folder / "together", report)
    return trained, Records(folder / "run").metrics()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nature", marks=pytest.mark.slow),
        pytest.param("v1", marks=pytest.mark.thorough),
    ],
)
def test_a_run_that_was_stopped_goes_on_as_if_it_never_was(tmp_path, name):
    config = dataclasses.replace(TINY, version=name)
    task = environments.make("catch/5x5")
    whole, metrics = train(config, task, tmp_path / "whole")
    assert metrics[-1]["updates"] > 10
    assert sum(x.episodes for x in whole.episodes) >= 20
    assert whole.is_finite
    with pytest.raises(SystemExit):
        train(config, task, tmp_path / "stopped", stop=80)
    again, resumed = train(config, task, tmp_path / "stopped")
    assert again.episodes == whole.episodes
    assert without_speed(resumed) == without_speed(metrics)
    jax.tree.map(np.testing.assert_array_equal, again.learner, whole.learner)


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
    model = Model.make(preset(name, size), image, ActionSpace(17, True))
    params = jax.eval_shape(model.init, jax.random.key(0))

    def num_parameters(params):
        return sum(x.size for x in jax.tree.leaves(params))

    assert num_parameters(params) == pytest.approx(expected, rel=0.01 if name == "v1" else 0)
    if critic is not None:
        assert num_parameters(params["critic"]) == critic


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nature", marks=pytest.mark.slow),
        pytest.param("v1", marks=pytest.mark.thorough),
    ],
)
def test_bfloat16_is_near_float32(name, monkeypatch):
    """The losses and their gradients, whose parameters stay in float32."""
    small = {"deterministic": 32, "units": 16, "depth": 4, "layers": 1, "horizon": 3}
    shape, number = (4, 3), 6
    seen = {
        "image": specs.BoundedArray((16, 16, 3), np.uint8, 0, 255),
        "vector": specs.Array((5,), np.float32),
    }
    keys, never = jax.random.split(jax.random.key(0), 4), jnp.zeros(shape, bool)
    batch = Sequences(
        observation={
            "image": jax.random.randint(keys[0], (*shape, 16, 16, 3), 0, 256, np.uint8),
            "vector": jax.random.normal(keys[1], (*shape, 5)),
        },
        action=jax.random.randint(keys[2], shape, 0, number),
        reward=jax.random.normal(keys[3], shape),
        is_first=never,
        is_last=never,
        is_terminal=never,
    )
    take_modes(monkeypatch)
    found = {}
    for dtype in ("float32", "bfloat16"):
        config = dataclasses.replace(preset(name, "1m"), **small, dtype=dtype)
        model = Model.make(config, seen, ActionSpace(number, is_discrete=True))
        params = model.init(jax.random.key(1))
        assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype(np.float32)}

        def loss(params, model=model, config=config):
            total, outcome = losses.loss(
                params,
                params["critic"],
                model,
                batch,
                initial_state(config, shape[1]),
                losses.initial_scales(model),
                jax.random.key(2),
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
    with pytest.raises(ValueError, match="no Dreamer 'v2' of size '12m'; expected nature: 1m, 12m"):
        preset("v2")
    with pytest.raises(
        ValueError, match=r"no Dreamer 'v1' of size '12m'; .* v1: 1m, xs, s, m, l, xl"
    ):
        preset("v1", "12m")
    with pytest.raises(ValueError, match="ablation is 'NoLuck'; expected one of NoFreeBits"):
        preset("nature", "1m", "NoLuck")


@pytest.mark.parametrize(("shape", "number"), [((16,), 1_001), ((4, 5), 5_977)])
def test_integers_of_many_values_are_told_apart_in_bfloat16(shape, number):
    """DMLab's words and NetHack's glyphs; and the decoder's embeddings stand for the nearest."""
    spec = specs.BoundedArray(shape, np.int32, 0, number - 1)
    model = Model.make(preset("nature", "1m"), {"words": spec}, ActionSpace(2, True))
    words = model.observations["words"]
    assert isinstance(words, Embedded)
    table = words.table
    assert len(np.unique(np.asarray(table, jnp.bfloat16), axis=0)) == number
    ids = np.random.default_rng(0).integers(number, size=(3, *shape)).astype(np.int32)
    decoded = jnp.asarray(table[ids] + 0.1)
    loss = words.loss(decoded, jnp.asarray(ids))
    np.testing.assert_allclose(loss, 0.01 * decoded[0].size, rtol=1e-4)
    np.testing.assert_array_equal(words.decoded(decoded), ids)
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.eval_shape(model.encode, params, {"words": ids}).shape == (3, 64)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_the_scales_of_norms_are_not_rounded_to_bfloat16(kind):
    def norm(x):
        with computing_in(jnp.bfloat16, wide_names=("scale", "offset")):
            return Norm(kind, name="norm")(x)

    transformed = hk.without_apply_rng(hk.transform(norm))
    x = jax.random.normal(jax.random.key(0), (64, 64), jnp.bfloat16)
    params = jax.tree.map(lambda p: p + 0.003, transformed.init(jax.random.key(1), x))
    found = transformed.apply(params, x)
    wide = hk.without_apply_rng(hk.transform(lambda x: Norm(kind, name="norm")(x)))
    expected = wide.apply(params, x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("shape", [(64, 64, 3), (20, 27, 1), (9, 8, 2)])
def test_images_of_any_size_come_back_in_their_size(name, shape):
    seen = {"image": specs.BoundedArray(shape, np.uint8, 0, 255)}
    model = Model.make(preset(name, "1m"), seen, ActionSpace(2, True))
    params = jax.eval_shape(model.init, jax.random.key(0))
    config = model.config
    h = jax.ShapeDtypeStruct((5, config.deterministic), np.float32)
    z = jax.ShapeDtypeStruct((5, config.latents * config.classes), np.float32)
    assert jax.eval_shape(model.decode, params, h, z)["image"].shape == (5, *shape)


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
        ({"a": {"b": specs.Array((2,), np.float32)}}, "'a', .*; expected an array"),
        (specs.Array((0,), np.float32), r"'observation', .*; expected an array of some"),
        ({"image": specs.BoundedArray((64, 64, 0), np.uint8, 0, 255)}, "expected an array of some"),
        ({"words": specs.Array((2,), np.dtype("U3"))}, "'words', .*; expected an array of some"),
    ],
)
@unchecked()
def test_observations_that_cannot_be_encoded_are_named(seen, message):
    task = environments.make("catch/5x5")
    task = dataclasses.replace(task, dynamics=Seeing(task.dynamics, seen))
    with pytest.raises(ValueError, match=message):
        dreamer(TINY).check(task, 160)


def test_observations_may_have_any_names():
    seen = {name: specs.Array((2,), np.float32) for name in ("a-b", "a_b", "a/b", "2", "reward")}
    seen["RGB.x"] = specs.BoundedArray((16, 16, 3), np.uint8, 0, 255)
    model = Model.make(TINY, seen, ActionSpace(2, True))
    params = model.init(jax.random.key(0))
    outputs = [name for name in params["decoder"] if "_output" in name]
    assert len(outputs) == 7  # Two more for images.


def test_continuous_actions_never_leave_their_bounds():
    """Sums of 32-bit numbers are rounded: 0.1 + 0.5 * 2 * (0.7 - 0.1) exceeds 0.7."""
    low, high = (0.1, -1.3, -3.0), (0.7, 0.1, 1e-3)
    scaled = ActionRange(low, high).scale(jnp.array([[-1.0] * 3, [1.0] * 3, [5.0] * 3, [0.0] * 3]))
    assert np.all(np.asarray(scaled) >= np.array(low, np.float32))
    assert np.all(np.asarray(scaled) <= np.array(high, np.float32))
    np.testing.assert_array_equal(scaled[2], scaled[1])
    np.testing.assert_allclose(scaled[3], np.add(low, high) / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "preset_name",
    [
        pytest.param("nature", marks=pytest.mark.slow),
        pytest.param("v1", marks=pytest.mark.thorough),
    ],
)
def test_continuous_actions_and_several_vectors(tmp_path, preset_name):
    pytest.importorskip("dm_control")
    sized = {
        x.name: getattr(TINY, x.name)
        for x in dataclasses.fields(TINY)
        if getattr(TINY, x.name) != getattr(preset("nature"), x.name)
    }
    config = dataclasses.replace(preset(preset_name), **sized | {"prefill": 2})
    task = environments.make("control_proprio/cartpole_swingup")
    dreamer(config).check(task, 100)
    trained, metrics = train(config, task, tmp_path, 100)
    assert metrics[-1]["updates"] > 5
    assert {"loss/decoder/position", "loss/decoder/velocity"} <= set(metrics[-1])
    assert trained.is_finite


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
        return SerialSimulators(Counting, self, batch_size, seed)


def counting_agent(name: str):
    config = dataclasses.replace(TINY, version=name)
    task = environments.Environment(name="counting/5", dynamics=CountingHost())
    return dreamer(config).make(task), task


@pytest.mark.parametrize("name", ["nature", "v1"])
def test_what_is_learned_from_is_what_happened(tmp_path, monkeypatch, name):
    """In a host environment: each row has the action that led to it, and what that brought."""
    agent, task = counting_agent(name)
    config = agent.model.config
    learned = []

    def learn(model, state, batch, start, key):
        jax.debug.callback(lambda *x: learned.append(jax.tree.map(np.array, x)), batch, start)
        shape = batch.reward.shape
        states = State(
            jnp.full((*shape, config.deterministic), 7.0),
            jnp.zeros((*shape, config.latents, config.classes)),
        )
        return state._replace(updates=state.updates + 1), states, {}

    monkeypatch.setattr(dreamer_agent, "learn", learn)
    # Compiled functions of equal agents are cached; other tests must not get these.
    monkeypatch.setattr(host, "_compiled", host._compiled.__wrapped__)
    run = Run(task, 0, tmp_path)
    host.train(agent, run, TrainingConfig(num_steps=100, interval=50))
    jax.effects_barrier()
    assert len(learned) > 5
    for batch, start in learned:
        count, first = batch.observation["observation"][..., 0], batch.is_first
        expected = np.where(first, 0.0, 0.01 * count + batch.action)
        inside = slice(0 if config.stores_latents else 1, None)  # Where is_first is true of v1's.
        np.testing.assert_allclose(batch.reward[inside], expected[inside], rtol=1e-6)
        np.testing.assert_array_equal(batch.is_last, count == 5)
        np.testing.assert_array_equal(count[1:] == 0, first[1:])
        assert not batch.is_terminal.any()
        if config.stores_latents:
            assert set(np.unique(start.h == 7.0)) <= {True, False}
        else:
            assert batch.is_first[0].all()
            assert not start.h.any()
    if config.stores_latents:  # Those that an update computed are found again.
        assert any((start.h == 7.0).all(axis=-1).any() for _, start in learned)
        assert not any((start.h == 7.0).any() for _, start in learned[:1])


@pytest.mark.parametrize("name", ["nature", "v1"])
def test_an_agent_is_examined_on_what_it_did_anew(name):
    agent, task = counting_agent(name)
    assert isinstance(agent, ExaminedAgent)
    state = jax.jit(agent.init)(jax.random.key(0))
    batch = playing.play(agent, state, task, 60, 2, seed=0)
    found = agent.examine(state, batch, jax.random.key(1))
    # A sixth of the steps are an episode's first.
    paid = batch.reward[batch.mask]
    assert found.metrics["held_out/reward"] == pytest.approx(paid.mean(), rel=1e-6)
    assert found.metrics["held_out/reward_stddev"] == pytest.approx(paid.std(), rel=1e-5)
    assert found.metrics["held_out/ends"] == 0.0
    assert not found.pictures


@pytest.mark.slow
def test_a_run_in_a_host_environment_goes_on_with_its_replay(tmp_path):
    _, task = counting_agent("nature")
    whole, metrics = train(TINY, task, tmp_path / "whole", 100)
    with pytest.raises(SystemExit):
        train(TINY, task, tmp_path / "stopped", 100, stop=48)
    again, resumed = train(TINY, task, tmp_path / "stopped", 100)
    assert [x["environment_steps"] for x in resumed] == [x["environment_steps"] for x in metrics]
    # It learns on from the first step, as its replay was kept.
    assert [x.get("updates") for x in resumed] == [x.get("updates") for x in metrics]
    assert [x for x in resumed if x["environment_steps"] > 48 and "loss" not in x] == []
    assert int(again.learner.updates) == int(whole.learner.updates) == metrics[-1]["updates"]


def test_what_can_never_learn_is_refused():
    task, config = environments.make("catch/5x5"), dataclasses.replace(TINY, prefill=1_000)
    with pytest.raises(ValueError, match=r"1000 sequences \(prefill\); this one can have 144"):
        dreamer(config).check(task, 160)


@unchecked()
def test_continuous_actions_are_scaled_to_the_environments_bounds():
    task = environments.make("catch/5x5")
    spec = specs.BoundedArray((2,), np.float32, [-2.0, 0.0], [2.0, 10.0])
    dynamics = Acting(task.dynamics, spec)
    agent = dreamer(TINY).make(dataclasses.replace(task, dynamics=dynamics))
    assert agent.action_range is not None
    given = jnp.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 3.0]])
    scaled = agent.action_range.scale(given)
    np.testing.assert_allclose(scaled, [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0]], rtol=1e-6)
    state = jax.jit(agent.init)(jax.random.key(0))
    observed: Any = task.dynamics.observation_spec()
    timestep = dm_env.TimeStep(
        np.zeros(3, np.int32),
        np.zeros(3, np.float32),
        np.ones(3, np.float32),
        jnp.zeros((3, *observed.shape), jnp.float32),
    )
    memory, action, extras = agent.act(
        agent.acting_state(state),
        agent.initial_memory(3),
        timestep,
        jax.random.key(1),
        Mode.TRAINING,
    )
    np.testing.assert_array_equal(memory.action["action"], extras["action"]["action"])
    np.testing.assert_array_equal(action, agent.action_range.scale(extras["action"]["action"]))


@dataclasses.dataclass(frozen=True, eq=False)  # Specs of arrays cannot be hashed.
class Acting:
    """Dynamics that have other actions, by their specs."""

    dynamics: Any
    actions: Any

    def observation_spec(self):
        return self.dynamics.observation_spec()

    def action_spec(self):
        return self.actions


def test_calibration_error():
    predicted = np.repeat([0.1, 0.9], 50)
    assert pictures.calibration_error(predicted, predicted) == 0.0
    assert pictures.calibration_error(predicted, 1.0 - predicted) == pytest.approx(0.8)
    # Right on average, in both tenths and as a whole.
    noisy = np.tile([0.0, 1.0], 50)
    assert pictures.calibration_error(np.full(100, 0.5), noisy) == pytest.approx(0.0)


def test_pictures_of_what_is_done_and_expected():
    task = environments.make("deep_sea/12")
    agent = dreamer(TINY).make(task)
    state = jax.jit(agent.init)(jax.random.key(0))
    batch = playing.play(agent, state, task, 60, 2, seed=0)
    found = agent.examine(state, batch, jax.random.key(1))
    picture = found.pictures["prediction.png"]
    # One step is seen, the other twelve are predicted; in three rows.
    assert "the other 12 are predicted" in pictures.read_caption(picture)
    wide, high = Image.open(io.BytesIO(picture)).size
    assert wide / high > 13 / 3
    assert found.metrics["held_out/ends"] == pytest.approx(4 / 56)


def test_imagination_starts_anew_at_intervals_and_follows_the_actions():
    task = environments.make("deep_sea/12")
    agent = dreamer(TINY).make(task)
    assert isinstance(agent, ImaginingAgent)
    state = jax.jit(agent.init)(jax.random.key(0))
    played = playing.play(agent, state, task, 12, 1, seed=0)

    def imagined(batch):
        return agent.imagine(state, batch, jax.random.key(1), 5)

    def rows_that_change(batch):
        changed = imagined(batch).predicted != found.predicted
        return np.flatnonzero(changed.any(axis=(1, 2))).tolist()

    found = imagined(played)
    np.testing.assert_array_equal(found.observed, played.observation[:, 0])
    assert found.predicted.shape == found.observed.shape == (13, 12, 12)
    assert found.steps.tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1, 2]
    # What happens between two starts is not read before the second; all of it is then.
    seen = played.observation.copy()
    seen[7] = 1.0 - seen[7]
    assert rows_that_change(dataclasses.replace(played, observation=seen)) == [10, 11, 12]
    # An action leads to the next row.
    done = jax.tree.map(np.copy, played.extras)
    done["action"]["action"][6] = 1 - done["action"]["action"][6]
    changed = rows_that_change(dataclasses.replace(played, extras=done))
    assert changed[0] == 7
    assert not {0, 1, 2, 3, 4, 5, 6} & set(changed)
    with pytest.raises(ValueError, match="interval is 1; expected 2 or more"):
        agent.imagine(state, played, jax.random.key(1), 1)
