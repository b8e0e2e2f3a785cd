"""IRIS as an agent: sizes, what it learns from, runs that stop and go on, bad settings."""

import dataclasses
import functools
import io
import math
import multiprocessing
import os
import signal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from PIL import Image

import environments
from agents import registry
from agents.iris import actor_critic, config, learner, tokenizer
from agents.iris.learner import as_bytes, as_fractions, in_first_episode, in_last_episode
from agents.iris.losses import actor_critic_losses, until_end
from agents.iris.model import TOKENIZER, Model, imagine
from agents.iris.tokenizer import from_tiles, to_tiles
from agents.protocol import Batch, Mode
from disco_common import stopping
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from tests.agents.common import take_modes, without_speed
from tests.agents.tiny import IRIS as TINY
from tests.agents.tiny import iris
from tests.environments.streams import dynamics_of
from training import device
from training.records import Records, Run
from training.schedule import TrainingConfig

NAME = "pixels/catch/5x5"


def train(folder, stop=None, number=signal.SIGTERM, num_steps=96):
    """A run, and its metrics; at the step `stop` this process gets the signal `number`."""
    task = environments.make(NAME)
    agent, run = iris(TINY).make(task), Run(task, 0, folder / "run")
    settings = TrainingConfig(num_steps=num_steps, interval=16, checkpoint_seconds=0.0)

    def report(steps, *_):
        if steps == stop:
            os.kill(os.getpid(), number)

    with stopping.noting():
        (trained,) = device.train(agent, [run], settings, folder / "together", report)
    return trained, Records(folder / "run").metrics()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stops."""
    return train(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(  # While one, two and all three networks learn.
    ("stop", "number"),
    [
        pytest.param(32, signal.SIGKILL, id="one", marks=pytest.mark.thorough),
        pytest.param(48, signal.SIGKILL, id="two", marks=pytest.mark.thorough),
        pytest.param(80, signal.SIGKILL, id="three", marks=pytest.mark.thorough),
        pytest.param(80, signal.SIGTERM, id="three, asked", marks=pytest.mark.thorough),
    ],
)
def test_a_run_that_was_stopped_in_each_phase_continues_exactly(tmp_path, whole, stop, number):
    trained, metrics = whole
    assert trained.is_finite
    assert [[line[f"{kind}/updates"] for kind in learner.KINDS] for line in metrics] == [
        [3, 0, 0],
        [6, 3, 0],
        [9, 6, 3],
        [12, 9, 6],
        [15, 12, 9],
        [18, 15, 12],
    ]
    process = multiprocessing.get_context("spawn").Process(
        target=train, args=(tmp_path, stop, number)
    )
    process.start()
    process.join()
    assert process.exitcode == (-number if number == signal.SIGKILL else 128 + number)
    again, resumed = train(tmp_path)
    assert again.episodes == trained.episodes
    assert without_speed(resumed) == without_speed(metrics)
    jax.tree.map(np.testing.assert_array_equal, again.learner, trained.learner)


def test_numbers_of_parameters_are_the_authors():
    model = Model(config.paper(), 64, 3, 6)
    params = jax.eval_shape(model.init, jax.random.key(0))
    sizes = {
        name: sum(math.prod(x.shape) for x in jax.tree.leaves(network))
        for name, network in params.items()
    }
    assert sum(sizes[name] for name in TOKENIZER) == 4_027_523
    assert sizes["world_model"] == 8_448_005
    assert sizes["actor_critic"] == 3_218_983
    assert model.tokens_per_frame == 16
    assert Model(config.paper(64), 64, 3, 6).tokens_per_frame == 64


def test_phases_start_after_the_papers_epochs():
    agent = registry.configured("iris/paper").make(environments.make(NAME))
    requirements = agent.requirements
    assert requirements.steps_per_unroll == 200
    assert [x.first_step for x in requirements.updates] == [1_200, 5_200, 10_200]
    assert [x.updates_per_step for x in requirements.updates] == [1.0, 1.0, 1.0]


def test_the_papers_variants():
    freeway = environments.make("catch")
    freeway = dataclasses.replace(freeway, name="atari100k/Freeway")
    assert registry.configured("iris/paper").config_for(freeway).temperature == 0.01
    assert registry.configured("iris/paper").config.temperature == 1.0
    assert registry.configured("iris/paper,10m").config.epoch_updates == 4
    assert registry.configured("iris/paper,64_tokens,horizon=7").config.horizon == 7
    assert registry.configured("iris/tiles") == registry.configured("iris")


def test_the_variant_for_simple_images_has_a_name_of_its_own():
    names = {
        "iris": "iris_tiles",
        "iris/horizon=3": "iris_tiles_horizon=3",
        "iris/paper, 64_tokens": "iris_paper_64_tokens",
    }
    contenders = make_contenders([], EvaluationConfig(baselines=()), list(names))[1:]
    assert [x.name for x in contenders] == list(names.values())
    assert [x.manifest_entry()["algorithm"] for x in contenders] == list(names)


# What it learns from.


# Each column: whether the transition counts, and whether it ends an episode. The third episode ends
# with a life, and so without a transition to the next one.
MASK = jnp.array([[True, True, False, True], [False, True, True, True], [True, True, True, True]]).T
LAST = jnp.array(
    [[False, True, False, False], [False, False, False, True], [False, True, False, False]]
).T


def test_sequences_end_with_the_episode():
    expected = [[True, True, False, False], [False] * 4, [True, True, False, False]]
    np.testing.assert_array_equal(in_first_episode(MASK, LAST), np.array(expected).T)


def test_burn_in_begins_with_the_episode():
    expected = [[False, False, False], [False, True, True], [False, False, True]]
    np.testing.assert_array_equal(in_last_episode(MASK, LAST), np.array(expected).T)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def agent_and_state():
    agent = iris(TINY).make(environments.make(NAME))
    return agent, jax.jit(agent.init)(jax.random.key(0))


def test_an_update_learns_its_own_network_only(agent_and_state, rng):
    agent, state = agent_and_state
    frames = jnp.asarray(rng.integers(256, size=(4, 64, 64, 3)), jnp.uint8)
    found, seen, metrics = jax.jit(learner.update_tokenizer, static_argnums=0)(
        agent.model, state, frames, jax.random.key(0)
    )
    assert seen.shape == frames.shape
    assert 1 <= metrics["codes_used"] <= TINY.vocabulary
    for name, network in state.params.items():
        before, after = (jax.tree.leaves(jax.device_get(x)) for x in (network, found.params[name]))
        changed = [np.any(x != y) for x, y in zip(before, after, strict=True)]
        assert any(changed) == (name in TOKENIZER), name


def test_unused_codes_are_counted(agent_and_state, rng):
    agent, state = agent_and_state
    state = state._replace(unused=jnp.full(TINY.vocabulary, 99, jnp.int32))
    frames = jnp.zeros((4, 64, 64, 3), jnp.uint8)
    update = jax.jit(learner.update_tokenizer, static_argnums=0)
    _, _, metrics = update(agent.model, state, frames, jax.random.key(0))
    assert metrics["codes_dead"] == TINY.vocabulary - metrics["codes_used"]


def test_dead_codes_become_features_in_the_first_updates(rng):
    config = dataclasses.replace(TINY, learning_rate=1e-12)
    agent = iris(config).make(environments.make(NAME))
    state = jax.jit(agent.init)(jax.random.key(0))
    frames = jnp.asarray(rng.integers(256, size=(4, 64, 64, 3)), jnp.uint8)
    state = state._replace(unused=state.unused.at[3].set(0))
    update = jax.jit(learner.update_tokenizer, static_argnums=0)
    found, _, _ = update(agent.model, state, frames, jax.random.key(0))
    images = learner.as_fractions(frames)
    features = np.asarray(jax.jit(agent.model.encode)(state.params, images))
    before, after = (np.asarray(x.params["codebook"]) for x in (state, found))
    distance = np.abs(after[:, None] - features.reshape(-1, TINY.code_size)).max(axis=-1)
    np.testing.assert_allclose(after[3], before[3], atol=1e-6)
    assert distance[3].min() > 1e-3
    assert np.delete(distance, 3, axis=0).min(axis=-1).max() < 1e-5
    found = found._replace(unused=jnp.full_like(found.unused, 1_000))
    found = _at_update(found, learner.REVIVAL_UPDATES)
    later, _, _ = update(agent.model, found, frames, jax.random.key(1))
    np.testing.assert_allclose(later.params["codebook"], after, atol=1e-6)


def _at_update(state, number, kind="ScaleByAdamState"):
    """The learning state as if the autoencoder had made so many updates, by one of its counts."""
    counted = optax.tree.set(
        state.optimizers["tokenizer"],
        lambda path, _: path[-1].tuple_name == kind,
        count=jnp.int32(number),
    )
    return state._replace(optimizers=state.optimizers | {"tokenizer": counted})


def test_the_autoencoders_learning_rate_falls_and_no_other(agent_and_state, rng):
    agent, state = agent_and_state
    frames = jnp.asarray(rng.integers(256, size=(4, 64, 64, 3)), jnp.uint8)
    update = jax.jit(learner.update_tokenizer, static_argnums=0)

    def largest_change(state):
        found, _, _ = update(agent.model, state, frames, jax.random.key(0))
        before, after = (ravel_pytree(x.params["encoder"])[0] for x in (state, found))
        return found, np.abs(after - before).max()

    end = learner.DECAY_UPDATES
    for number, fraction in {0: 1.0, end // 2: 31 / 60, end: 1 / 30, 2 * end: 1 / 30}.items():
        state, change = largest_change(_at_update(state, number, "ScaleByScheduleState"))
        if number == 0:
            np.testing.assert_allclose(change, TINY.learning_rate, rtol=0.01)
        assert 0.2 * fraction < change / TINY.learning_rate < 3 * fraction
    counts = {
        kind: len(optax.tree.get_all_with_path(x, "count")) for kind, x in state.optimizers.items()
    }
    assert counts == {"tokenizer": 2, "world_model": 1, "actor_critic": 1}


def test_tiles_are_put_together_again(rng):
    x = rng.normal(size=(2, 6, 6, 3)).astype(np.float32)
    tiles = to_tiles(jnp.asarray(x), 2)
    np.testing.assert_array_equal(tiles[4], x[0, 2:4, 2:4])
    np.testing.assert_array_equal(from_tiles(tiles, 3), x)


def test_features_of_a_tile_do_not_depend_on_others(rng):
    model = Model(TINY, 64, 3, 3)
    frames = rng.uniform(size=(2, 64, 64, 3)).astype(np.float32)
    frames[1, :32, 32:] = frames[0, :32, 32:]  # The second of four.
    features = jax.jit(lambda key: model.encode(model.init(key), jnp.asarray(frames)))(
        jax.random.key(0)
    )
    is_same = np.all(np.isclose(features[0], features[1], atol=1e-6), axis=-1)
    np.testing.assert_array_equal(is_same, [False, True, False, False])


def test_acting_is_random_only_in_training(agent_and_state):
    """Of a policy that is certain, one action in a hundred."""
    agent, state = agent_and_state
    task, number = environments.make(NAME), 2_048
    _, timestep = dynamics_of(task).reset(task.params, jax.random.key(0))
    timestep = jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x))), timestep)
    memory, acting = agent.initial_memory(number), agent.acting_state(state)
    assert "world_model" not in acting
    actor = dict(acting["actor_critic"])
    actor["policy"] = jax.tree.map(lambda x: 1e6 * x, actor["policy"])
    acting = acting | {"actor_critic": actor}
    act = jax.jit(agent.act, static_argnames="mode")
    _, action, extras = act(acting, memory, timestep, jax.random.key(1), mode=Mode.TRAINING)
    assert len(np.unique(action)) == 3
    assert np.mean(action != np.bincount(action).argmax()) < 0.02
    _, action, _ = act(acting, memory, timestep, jax.random.key(1), mode=Mode.EVALUATION)
    assert len(np.unique(action)) == 1
    assert extras["reconstruction"].dtype == jnp.uint8


def test_imagination_beyond_the_context_starts_it_anew(agent_and_state, monkeypatch):
    """With more steps than the context contains the first steps are those of a shorter one."""
    take_modes(monkeypatch)
    agent, state = agent_and_state
    tokens, policy = jnp.zeros((2, 4), jnp.int32), actor_critic.initial_state(TINY, 2)

    @functools.partial(jax.jit, static_argnums=0)
    def imagined(horizon):
        return imagine(agent.model, state.params, tokens, policy, jax.random.key(0), horizon)

    short, long = imagined(TINY.memory_steps), imagined(TINY.memory_steps + 3)
    np.testing.assert_array_equal(short.tokens, long.tokens[: TINY.memory_steps])
    np.testing.assert_array_equal(short.action, long.action[: TINY.memory_steps])
    assert np.isfinite(long.frames).all()


def test_an_agent_is_examined_on_new_experience(agent_and_state, rng):
    agent, state = agent_and_state
    length = 12
    mask = np.ones((length, 2), bool)
    mask[5] = False
    fields: dict[str, Any] = dict(
        observation=rng.integers(256, size=(length + 1, 2, 64, 64, 3)).astype(np.uint8),
        action=rng.integers(3, size=(length, 2)).astype(np.int32),
        reward=rng.choice([-1.0, 0.0, 1.0], size=(length, 2)).astype(np.float32),
        discount=np.where(np.roll(mask, -1, 0), 1.0, 0.0).astype(np.float32),
        last=~np.roll(mask, -1, 0),
        mask=mask,
        extras={},
    )
    given = Batch(**fields)
    found = agent.examine(state, given, jax.random.key(0))
    assert found.metrics["held_out/token_loss"] == pytest.approx(math.log(8), rel=0.5)
    assert set(found.pictures) == {"prediction.png"}
    for picture in found.pictures.values():
        assert Image.open(io.BytesIO(picture)).size[1] >= 64


@pytest.mark.parametrize("interval", [4, 6])  # As long as the model's memory, and longer.
def test_imagination_reads_two_frames_of_each_interval(agent_and_state, rng, interval):
    agent, state = agent_and_state
    length = 2 * interval

    action = rng.integers(3, size=(length, 1)).astype(np.int32)

    def imagined(seen, interval=interval):
        fields: dict[str, Any] = dict(
            observation=seen,
            action=action,
            reward=np.zeros((length, 1), np.float32),
            discount=np.ones((length, 1), np.float32),
            last=np.zeros((length, 1), bool),
            mask=np.ones((length, 1), bool),
            extras={},
        )
        return agent.imagine(state, Batch(**fields), jax.random.key(0), interval)

    seen = rng.integers(256, size=(length + 1, 1, 64, 64, 3)).astype(np.uint8)
    found = imagined(seen)
    np.testing.assert_array_equal(found.observed, seen[:, 0])
    assert (found.predicted.shape, found.predicted.dtype) == (found.observed.shape, np.uint8)
    pattern = [0, 0, *range(1, interval - 1)]
    assert found.steps.tolist() == [*pattern, *pattern, 0]
    rebuilt = agent.model.reconstruct(state.params, as_fractions(jnp.asarray(seen[:, 0])))
    is_seen = found.steps == 0
    np.testing.assert_allclose(
        found.predicted[is_seen], np.asarray(as_bytes(rebuilt))[is_seen], atol=1
    )
    other = seen.copy()
    other[~is_seen] = 255 - other[~is_seen]
    np.testing.assert_array_equal(imagined(other).predicted, found.predicted)
    with pytest.raises(ValueError, match="interval is 2; expected 3 or more"):
        imagined(seen, interval=2)


# Bad input.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("catch/5x5", "expected one image"),
        ("control_proprio/cartpole_swingup", "expected a choice"),
        ("sokoban/valid", r"expected"),
    ],
)
def test_tasks_that_it_cannot_learn_are_named(name, message):
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        iris(TINY).make(environments.make(name))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 3}, "groups is 3.*divisor of channels"),
        ({"heads": 3}, "heads is 3.*divisor of width"),
        ({"vocabulary": 1}, "vocabulary is 1"),
        ({"num_environments": 3}, "num_environments is 3"),
        ({"multipliers": ()}, "multipliers"),
        ({"multipliers": (1, 1)}, r"multipliers is \(1, 1\); expected one, as a tile \(now 32\)"),
        ({"dropout": 2.0}, "dropout is 2.0"),
    ],
)
def test_settings_out_of_range_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **changes)


def test_images_that_do_not_fit_the_sizes_are_named():
    config = dataclasses.replace(TINY, tile=24)
    with pytest.raises(ValueError, match=r"\(64, 64, 3\).*48 divides"):
        iris(config).make(environments.make(NAME))


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="'large' does not say which IRIS"):
        registry.configured("iris/large")
    with pytest.raises(ValueError, match="paper,64_tokens"):
        registry.configured("iris/64_tokens")
    with pytest.raises(ValueError, match="'tiles,paper' does not say which IRIS"):
        registry.configured("iris/tiles,paper")
    with pytest.raises(ValueError, match="'paper' with the sizes of 'tiles'; expected iris/paper"):
        registry.configured("iris/tile=0")
    with pytest.raises(ValueError, match="'paper' with the sizes of 'tiles'; expected iris/paper"):
        registry.configured("iris").replaced({"tile": 0})
    with pytest.raises(ValueError, match="no setting 'horizons'"):
        registry.configured("iris/horizons=3")


def test_runs_without_an_update_are_refused():
    with pytest.raises(ValueError, match=r"step 1200 on.*1000 steps"):
        registry.configured("iris/paper").check(environments.make(NAME), 1_000)


# The perceptual loss.


@pytest.fixture(scope="module")
def perceptual_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("perceptual") / "vgg.npz"
    arrays: dict[str, Any] = {
        name: rng.normal(size=shape).astype(np.float32) / math.sqrt(math.prod(shape[:-1]) or 1)
        for name, shape in tokenizer.shapes().items()
    }
    np.savez(file, **arrays)
    return file


def test_perceptual_distance(perceptual_file, rng):
    params = tokenizer.load(str(perceptual_file))
    assert sum(x.size for x in params.values()) == 14_714_688 + 1_472  # VGG-16's features.
    image = jnp.asarray(rng.uniform(-1.0, 1.0, size=(1, 32, 32, 3)), jnp.float32)
    assert tokenizer.distance(params, image, image) == 0.0
    near, far = (float(tokenizer.distance(params, image, image + scale)) for scale in (0.01, 0.3))
    assert abs(near) < abs(far)


def test_perceptual_files_that_are_none_are_named(tmp_path, perceptual_file):
    with pytest.raises(ValueError, match=r"missing.npz' cannot be read"):
        tokenizer.load(str(tmp_path / "missing.npz"))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"text.npz' cannot be read"):
        tokenizer.load(str(tmp_path / "text.npz"))
    with np.load(perceptual_file) as archive:
        arrays: dict[str, Any] = dict(archive)
    lacking = {name: x for name, x in arrays.items() if name != "linear3"}
    np.savez(tmp_path / "lacking.npz", **lacking)
    with pytest.raises(ValueError, match="linear3"):
        tokenizer.load(str(tmp_path / "lacking.npz"))
    arrays["linear3"] = np.zeros(7, np.float32)
    np.savez(tmp_path / "shape.npz", **arrays)
    with pytest.raises(ValueError, match=r"'linear3' of float32\[7\].*float32\[256\]"):
        tokenizer.load(str(tmp_path / "shape.npz"))


def test_steps_after_an_imagined_end_can_be_left_out():
    end = jnp.zeros((4, 2), bool).at[1, 0].set(True)
    counts = until_end(end)
    np.testing.assert_array_equal(counts, [[1, 1], [1, 1], [0, 1], [0, 1]])
    action, returns = jnp.zeros((4, 2), jnp.int32), jnp.ones((4, 2))
    before = actor_critic.Output(jnp.zeros((4, 2, 3)), jnp.zeros((4, 2)))
    after = actor_critic.Output(before.logits.at[2, 0, 0].set(2.0), before.value.at[2, 0].set(5.0))

    def losses(output, counts):
        return actor_critic_losses(output, action, returns, counts, 0.1)

    assert losses(before, counts) == losses(after, counts)
    everywhere = jnp.ones_like(end)
    changed = losses(after, everywhere)
    for name, value in losses(before, everywhere).items():
        assert value != changed[name], name
