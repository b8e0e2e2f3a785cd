"""DeepMind Lab, with a stand-in in place of the engine (see `stand_ins`)."""

import importlib
import pathlib
import sys

import dm_env
import numpy as np
import pytest

import environments
from environments import EnvironmentNameError, HostEnvironment, MissingPackageError, registry
from environments.suites import dmlab
from evaluation.published import published_scores
from tests.environments.streams import dynamics_of

STAND_INS = pathlib.Path(__file__).parent / "stand_ins"
NONMATCHING = dmlab.Level("rooms_select_nonmatching_object")  # 12 seconds: 180 steps.
SKYMAZE = dmlab.Level("skymaze_irreversible_path_hard")
FORWARD, BACK = 0, 1


@pytest.fixture
def engine(monkeypatch):
    """The stand-in, found by this process and by those that it starts."""
    monkeypatch.syspath_prepend(str(STAND_INS))
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    yield importlib.import_module("deepmind_lab")
    del sys.modules["deepmind_lab"]


def play(level: dmlab.LabLevel, action: int) -> list[dm_env.TimeStep]:
    """An episode of one action."""
    timesteps = [level.reset()]
    while not timesteps[-1].last():
        timesteps.append(level.step(action))
    return timesteps


def validate(spec, observation):
    assert observation.keys() == spec.keys()
    for name, leaf in spec.items():
        leaf.validate(observation[name])


def test_images_of_another_size(engine):
    level = environments.with_images(environments.make(f"dmlab/{dmlab.LEVELS[0]}"), 64, 3)
    dynamics = dynamics_of(level)
    assert dynamics.observation_spec()["image"].shape == (64, 64, 3)
    one = dmlab.LabLevel(dynamics, level.params, 0)
    validate(dynamics.observation_spec(), one.reset().observation)
    with pytest.raises(ValueError, match="channels is 1, expected 3"):
        environments.with_images(level, 64, 1)


def test_there_are_30_levels_of_which_two_have_a_test_of_their_own(engine):
    pairs = {}
    for train, test in zip(dmlab.SUITES["dmlab30"], dmlab.SUITES["dmlab30_test"], strict=True):
        trained = environments.make(train)
        tested = environments.make(test)
        assert (trained.name, tested.name) == (train, test)
        assert isinstance(trained.dynamics, HostEnvironment)
        assert trained.dynamics == tested.dynamics
        assert (trained.params.is_test, tested.params.is_test) == (False, True)
        pairs[trained.params.script] = tested.params.script
    assert len(pairs) == 30
    assert {train: test for train, test in pairs.items() if train != test} == {
        "rooms_collect_good_objects_train": "rooms_collect_good_objects_test",
        "rooms_exploit_deferred_effects_train": "rooms_exploit_deferred_effects_test",
    }


def test_only_tests_may_use_held_out_levels_and_have_seeds_of_their_own(engine):
    for family, expected in (
        ("dmlab", {}),
        ("dmlab_test", {"allowHoldOutLevels": "true", "mixerSeed": str(0x600D5EED)}),
    ):
        environment = environments.make(f"{family}/rooms_collect_good_objects")
        dmlab.LabLevel(dynamics_of(environment), environment.params, seed=0)
        always = {"width": "96", "height": "72", "fps": "60"}
        assert engine.labs[-1].config == always | expected


@pytest.mark.parametrize("action_set", ["impala", "r2d2"])
def test_observations_are_as_specified(engine, action_set):
    settings = dmlab.DMLab(action_set=action_set)
    level = dmlab.LabLevel(settings, dmlab.Level("language_select_located_object"), seed=3)
    last_action = settings.action_spec().num_values - 1
    for timestep in (level.reset(), level.step(0), level.step(last_action)):
        validate(settings.observation_spec(), timestep.observation)


@pytest.mark.parametrize(
    ("action_set", "expected"),
    [
        (
            "impala",
            {
                "forward": {3: 1},
                "back": {3: -1},
                "strafe left": {2: -1},
                "strafe right": {2: 1},
                "look left": {0: -20},
                "look right": {0: 20},
                "look left, forward": {0: -20, 3: 1},
                "look right, forward": {0: 20, 3: 1},
                "fire": {4: 1},
            },
        ),
        (
            "r2d2",
            {
                "forward": {3: 1},
                "back": {3: -1},
                "strafe left": {2: -1},
                "strafe right": {2: 1},
                "look left": {0: -10},
                "look right": {0: 10},
                "look far left": {0: -60},
                "look far right": {0: 60},
                "look down": {1: 10},
                "look up": {1: -10},
                "look left, forward": {0: -10, 3: 1},
                "look right, forward": {0: 10, 3: 1},
                "look far left, forward": {0: -60, 3: 1},
                "look far right, forward": {0: 60, 3: 1},
                "fire": {4: 1},
            },
        ),
    ],
)
def test_actions_are_the_published_ones_for_four_frames_each(engine, action_set, expected):
    settings = dmlab.DMLab(action_set=action_set)
    assert settings.action_spec().num_values == len(expected)
    level = dmlab.LabLevel(settings, NONMATCHING, seed=0)
    level.reset()
    for action in range(len(expected)):
        level.step(np.int32(action))
    sent = engine.labs[-1].steps
    assert [frames for _, frames in sent] == [4] * len(expected)
    moved = [{i: value for i, value in enumerate(raw) if value} for raw, _ in sent]
    assert moved == list(expected.values())


def test_instructions_are_the_same_numbers_everywhere():
    tokens = dmlab.INSTRUCTION.tokens
    numbers = tokens("Pick the red object in the blue room")
    assert numbers.tolist() == [118, 79, 456, 29, 447, 79, 965, 740, *[0] * 8]
    assert tokens("").tolist() == [0] * 16
    assert tokens("  red \n hat ").tolist()[:3] == [*tokens("red hat")[:2], 0]
    many = tokens(" ".join(f"word{i}" for i in range(2000)))
    assert many.shape == (16,)
    every = [tokens(f"word{i}")[0] for i in range(20_000)]
    assert (min(every), max(every)) == (1, 1000)


def test_the_instruction_of_a_level_is_seen(engine):
    level = dmlab.LabLevel(dmlab.DMLab(), dmlab.Level("language_select_located_object"), seed=0)
    expected = dmlab.INSTRUCTION.tokens("Pick the red object in the blue room")
    np.testing.assert_array_equal(level.reset().observation["instruction"], expected)
    np.testing.assert_array_equal(level.step(0).observation["instruction"], expected)


def test_the_time_limit_cuts(engine):
    level = dmlab.LabLevel(dmlab.DMLab(), NONMATCHING, seed=0)
    for _ in range(2):
        timesteps = play(level, BACK)
        assert len(timesteps) == 1 + 12 * 60 // 4
        assert timesteps[-1].discount == 1.0
        assert all(timestep.discount == 1.0 for timestep in timesteps[1:])


def test_a_goal_reached_terminates(engine):
    timesteps = play(dmlab.LabLevel(dmlab.DMLab(), SKYMAZE, seed=0), FORWARD)
    assert len(timesteps) == 1 + 100 // 4
    assert (timesteps[-1].reward, timesteps[-1].discount) == (100.0, 0.0)


@pytest.mark.parametrize(("spare_frames", "discount"), [(5, 0.0), (0, 1.0)])
def test_ends_near_the_limit_are_told_apart(engine, monkeypatch, spare_frames, discount):
    length = (100 + spare_frames) / engine.FRAMES_PER_SECOND
    monkeypatch.setitem(engine.SECONDS, SKYMAZE.script, length)
    timesteps = play(dmlab.LabLevel(dmlab.DMLab(), SKYMAZE, seed=0), FORWARD)
    assert len(timesteps) == 1 + 100 // 4
    assert timesteps[-1].discount == discount


def test_the_last_image_stays_after_the_end(engine):
    timesteps = play(dmlab.LabLevel(dmlab.DMLab(), SKYMAZE, seed=0), FORWARD)
    last, before = timesteps[-1].observation, timesteps[-2].observation
    np.testing.assert_array_equal(last["image"], before["image"])
    assert last["previous_reward"] == 100.0
    assert not np.array_equal(before["image"], timesteps[-3].observation["image"])


def test_the_previous_action_and_reward_are_seen(engine):
    level = dmlab.LabLevel(dmlab.DMLab(), NONMATCHING, seed=0)

    def previous(timestep):
        seen = timestep.observation
        return int(seen["previous_action"]), float(seen["previous_reward"])

    assert previous(level.reset()) == (0, 0.0)
    assert previous(level.step(5)) == (5, 0.5)
    assert previous(level.step(8)) == (8, 0.5)
    assert previous(level.reset()) == (0, 0.0)


def test_seeds_are_passed_on(engine):
    def episode_seeds(seed):
        level = dmlab.LabLevel(dmlab.DMLab(), NONMATCHING, seed)
        for _ in range(3):
            level.reset()
        return engine.labs[-1].seeds

    assert episode_seeds(7) == episode_seeds(7)
    assert len({*episode_seeds(7), *episode_seeds(8)}) == 6


def test_simulators_run_in_processes(engine):
    environment = environments.make(f"dmlab/{NONMATCHING.script}")
    dynamics = dynamics_of(environment)
    simulators = dynamics.start(environment.params, batch_size=2, seed=1)
    try:
        rng = np.random.default_rng(0)
        timestep = simulators.reset()
        assert timestep.step_type.tolist() == [dm_env.StepType.FIRST] * 2
        seen = {"last": 0, "reward": 0.0, "images": set()}
        for _ in range(400):
            action = rng.integers(dynamics.action_spec().num_values, size=2)
            timestep = simulators.step(action)
            seen["last"] += (timestep.step_type == dm_env.StepType.LAST).sum()
            seen["reward"] += timestep.reward.sum()
            seen["images"].add(tuple(timestep.observation["image"][:, 0, 0, 0].tolist()))
            assert (timestep.discount == 1.0).all()
        for name, leaf in dynamics.observation_spec().items():
            assert timestep.observation[name].shape == (2, *leaf.shape)
            assert timestep.observation[name].dtype == leaf.dtype
        assert seen["last"] == 4  # Two episodes of 180 steps and a reset in each simulator.
        assert seen["reward"] == 0.5 * 2 * (400 - 2 - 2)
        assert any(first != second for first, second in seen["images"])
        assert simulators.restarts == 0
    finally:
        simulators.close()


@pytest.mark.parametrize(
    ("suite", "family"), [("dmlab30", "dmlab"), ("dmlab30_test", "dmlab_test")]
)
def test_r2d2s_actions_have_suites_of_the_same_levels(engine, suite, family):
    ours = suite.replace("dmlab30", "dmlab30_r2d2")
    members = environments.suite(ours)
    for one, other in zip(members, environments.suite(suite), strict=True):
        assert one.name == other.name.replace("dmlab", "dmlab_r2d2", 1)
        assert other.name.startswith(f"{family}/")
        assert one.params == other.params
        assert environments.num_actions(dynamics_of(one)) == 15
        assert environments.num_actions(dynamics_of(other)) == 9
        assert published_scores(one.name) == published_scores(other.name)
    assert environments.make(members[0].name).params == members[0].params
    assert registry.is_host(ours)


@pytest.mark.parametrize("family", ["dmlab", "dmlab_test", "dmlab_r2d2", "dmlab_r2d2_test"])
def test_unknown_levels_say_what_is_near(family):
    near = rf"{family}/rooms_watermase'.*'{family}/rooms_watermaze'"
    with pytest.raises(EnvironmentNameError, match=near):
        environments.make(f"{family}/rooms_watermase")


def test_without_the_engine_it_says_how_to_build_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(MissingPackageError, match=r"'dmlab/….*Bazel.*google-deepmind/lab"):
        environments.make("dmlab/rooms_watermaze")
