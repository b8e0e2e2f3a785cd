"""Minecraft through MineRL, with a toy world in place of Minecraft (see `stand_ins`)."""

import importlib
import pathlib
import sys

import dm_env
import numpy as np
import pytest

import environments
from environments import (
    EngineDiedError,
    EnvironmentNameError,
    HostEnvironment,
    MissingPackageError,
)
from environments.suites import minecraft
from tests.environments.streams import dynamics_of

STAND_INS = pathlib.Path(__file__).parent / "stand_ins"
NAMES = tuple(minecraft.ACTIONS)
KEYS = ("forward", "back", "left", "right", "jump", "sneak", "sprint", "attack")
NUMPY_NAMES = {"bool", "float", "int"} - vars(np).keys()
CHOICES = ("place", "equip", "craft", "nearbyCraft", "nearbySmelt")

WAY_TO_THE_DIAMOND = [
    *["attack"] * 3,
    *["craft_planks"] * 3,
    *["craft_stick"] * 2,
    *["craft_crafting_table", "place_crafting_table"],
    *["craft_wooden_pickaxe", "equip_wooden_pickaxe"],
    *["attack"] * 11,
    *["craft_stone_pickaxe", "craft_furnace", "place_furnace", "equip_stone_pickaxe"],
    *["attack"] * 3,
    *["smelt_iron_ingot"] * 3,
    *["craft_iron_pickaxe", "equip_iron_pickaxe", "attack"],
]


@pytest.fixture
def minerl(monkeypatch):
    """The stand-in, found by this process and by those that it starts."""
    monkeypatch.syspath_prepend(str(STAND_INS))
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    yield importlib.import_module("minerl")
    for name in [name for name in sys.modules if name.partition(".")[0] == "minerl"]:
        del sys.modules[name]
    for name in NUMPY_NAMES & vars(np).keys():
        delattr(np, name)


def make_world(time_limit=minecraft.TIME_LIMIT, seed=0) -> minecraft.MinecraftWorld:
    return minecraft.MinecraftWorld(time_limit, seed)


def do(world, *names: str) -> list[dm_env.TimeStep]:
    return [world.step(np.int32(NAMES.index(name))) for name in names]


def rewards(timesteps) -> list[float]:
    return [float(timestep.reward) for timestep in timesteps]


def validate(spec, observation):
    assert observation.keys() == spec.keys()
    for name, leaf in spec.items():
        leaf.validate(observation[name])


def test_the_environment_is_as_published(minerl):
    assert minecraft.SUITES == {"minecraft_diamond": ("minecraft/diamond",)}
    environment = environments.make("minecraft/diamond")
    assert environment.name == "minecraft/diamond"
    assert isinstance(environment.dynamics, HostEnvironment)
    assert environment.dynamics == environments.make("minecraft/diamond").dynamics
    assert dynamics_of(environment).action_spec().num_values == 25
    assert dynamics_of(environment).time_limit == 36_000
    assert len(minecraft.MILESTONES) == 12


def test_observations_are_as_specified(minerl):
    world = make_world()
    timesteps = [world.reset(), *do(world, "attack", "craft_planks", "back")]
    for timestep in timesteps:
        validate(minecraft.Minecraft().observation_spec(), timestep.observation)
    seen = timesteps[-1].observation
    assert [float(seen[name]) for name in ("health", "hunger", "breath")] == [
        pytest.approx(0.9),
        0.5,
        1.0,
    ]


def test_the_inventory_and_its_maximum_are_seen(minerl):
    world = make_world()

    def numbers(timestep):
        seen = timestep.observation
        return [sorted(seen[name][seen[name] > 0]) for name in ("inventory", "inventory_max")]

    assert numbers(world.reset()) == [[], []]
    # A log of acacia, which the game counts apart, and one of oak.
    _, logs, planks = do(world, "attack", "attack", "craft_planks")
    assert numbers(logs) == [[2], [2]]
    assert logs.observation["inventory"].max() == 2.0
    assert numbers(planks) == [[1, 4], [2, 4]]
    assert numbers(world.reset()) == [[], []]


def test_what_is_equipped_is_seen(minerl):
    world = make_world()
    empty_handed = world.reset().observation["equipped"]
    *_, unavailable = do(world, "equip_wooden_pickaxe")
    np.testing.assert_array_equal(unavailable.observation["equipped"], empty_handed)
    *_, equipped = do(world, *WAY_TO_THE_DIAMOND[:12])
    assert WAY_TO_THE_DIAMOND[11] == "equip_wooden_pickaxe"
    assert equipped.observation["equipped"].sum() == 1.0
    assert equipped.observation["equipped"].argmax() != empty_handed.argmax()


@pytest.mark.parametrize(
    ("name", "pressed"),
    [
        ("noop", {}),
        ("attack", {"attack": 1}),
        ("turn_up", {"camera": [-15, 0]}),
        ("turn_down", {"camera": [15, 0]}),
        ("turn_left", {"camera": [0, -15]}),
        ("turn_right", {"camera": [0, 15]}),
        ("forward", {"forward": 1}),
        ("back", {"back": 1}),
        ("left", {"left": 1}),
        ("right", {"right": 1}),
        ("jump", {"jump": 1, "forward": 1}),
        ("place_dirt", {"place": "dirt"}),
        ("craft_planks", {"craft": "planks"}),
        ("craft_stick", {"craft": "stick"}),
        ("craft_crafting_table", {"craft": "crafting_table"}),
        ("place_crafting_table", {"place": "crafting_table"}),
        ("craft_wooden_pickaxe", {"nearbyCraft": "wooden_pickaxe"}),
        ("craft_stone_pickaxe", {"nearbyCraft": "stone_pickaxe"}),
        ("craft_iron_pickaxe", {"nearbyCraft": "iron_pickaxe"}),
        ("equip_stone_pickaxe", {"equip": "stone_pickaxe"}),
        ("equip_wooden_pickaxe", {"equip": "wooden_pickaxe"}),
        ("equip_iron_pickaxe", {"equip": "iron_pickaxe"}),
        ("craft_furnace", {"nearbyCraft": "furnace"}),
        ("place_furnace", {"place": "furnace"}),
        ("smelt_iron_ingot", {"nearbySmelt": "iron_ingot"}),
    ],
)
def test_each_action_is_one_of_minerls(minerl, name, pressed):
    world = make_world()
    world.reset()
    do(world, name)
    (sent,) = minerl.worlds[-1].actions
    expected = dict.fromkeys(KEYS, 0) | dict.fromkeys(CHOICES, "none") | {"camera": [0, 0]}
    assert sent | {"camera": sent["camera"].tolist()} == expected | pressed


def test_an_action_leaves_nothing_behind(minerl):
    world = make_world()
    world.reset()
    do(world, *(name for name in NAMES if name != "jump"), "noop")
    nothing = minerl.worlds[-1].action_space.no_op()
    sent = minerl.worlds[-1].actions[-1]
    assert sent | {"camera": sent["camera"].tolist()} == nothing | {"camera": [0, 0]}


def test_a_jump_is_held_for_200_milliseconds(minerl):
    world = make_world()

    def held(*names):
        start = len(minerl.worlds[-1].actions)
        do(world, *names)
        sent = minerl.worlds[-1].actions[start:]
        return [(keys["jump"], keys["forward"]) for keys in sent]

    world.reset()
    once = [(1, 1)] * 4 + [(0, 0)] * 2
    assert held("jump", *["noop"] * 5) == once
    assert held("jump", "attack", "jump", *["noop"] * 5) == [(1, 1), (1, 1), *once]
    do(world, "jump")
    world.reset()
    assert held("noop") == [(0, 0)]


def test_the_camera_stays_within_60_degrees_of_the_horizon(minerl):
    world = make_world()

    def pitches(*names):
        start = len(minerl.worlds[-1].actions)
        do(world, *names)
        return [float(keys["camera"][0]) for keys in minerl.worlds[-1].actions[start:]]

    world.reset()
    assert pitches(*["turn_up"] * 6) == [-15.0] * 4 + [0.0] * 2
    assert pitches(*["turn_down"] * 9) == [15.0] * 8 + [0.0]
    assert pitches("turn_left", "turn_up") == [0.0, -15.0]
    world.reset()
    assert pitches(*["turn_down"] * 5) == [15.0] * 4 + [0.0]


def test_each_milestone_pays_once(minerl):
    world = make_world()
    world.reset()
    timesteps = do(world, *WAY_TO_THE_DIAMOND)
    assert sum(rewards(timesteps)) == 12.0
    assert max(rewards(timesteps)) == 1.0
    assert rewards(timesteps)[:4] == [1.0, 0.0, 0.0, 1.0]  # Log, planks.
    assert world.episode_results() == dict.fromkeys(minecraft.MILESTONES, 1.0)
    assert rewards(do(world, "attack", "craft_furnace")) == [0.0, 0.0]
    assert not timesteps[-1].last()  # A diamond is no end.
    world.reset()
    assert rewards(do(world, *["attack"] * 2)) == [1.0, 0.0]
    reached = world.episode_results()
    assert {name for name in reached if reached[name]} == {"log"}


def test_hearts_lost_and_restored_are_rewarded(minerl):
    world = make_world()
    world.reset()
    timesteps = do(world, "back", "back", "left", "noop")
    assert rewards(timesteps) == pytest.approx([-0.01, -0.01, 0.01, 0.0])
    world.reset()
    assert rewards(do(world, "noop")) == [0.0]


def test_death_terminates(minerl):
    world = make_world(time_limit=10)
    world.reset()
    *before, last = do(world, *["back"] * 10)
    assert not any(timestep.last() for timestep in before)
    assert last.last()
    assert last.discount == 0.0  # Though the time was up as well.
    assert last.reward == pytest.approx(-0.01)
    assert last.observation["health"] == 0.0


def test_the_time_limit_cuts(minerl):
    world = make_world(time_limit=5)
    for _ in range(2):
        assert world.reset().first()
        *before, last = do(world, *["forward"] * 5)
        assert not any(timestep.last() for timestep in before)
        assert last.last()
        assert last.discount == 1.0


@pytest.mark.parametrize("loudly", [False, True])
def test_a_lost_connection_is_the_engines_death(minerl, loudly):
    world = make_world()
    world.reset()
    broken = minerl.worlds[-1]
    broken.breaks_at, broken.breaks_loudly = 3, loudly
    do(world, "attack", "attack")
    with pytest.raises(EngineDiedError, match=r"broke down: .*(timed out|lost)"):
        do(world, "attack")


def test_a_game_that_does_not_start_is_the_engines_death(minerl, monkeypatch):
    world = make_world()
    monkeypatch.setattr(type(minerl.worlds[-1]), "reset", lambda self: 1 / 0)
    with pytest.raises(EngineDiedError, match="reset: division by zero"):
        world.reset()


def test_each_episode_has_a_seed(minerl):
    def episode_seeds(seed):
        world = make_world(seed=seed)
        for _ in range(3):
            world.reset()
        return minerl.worlds[-1].seeds

    assert episode_seeds(7) == episode_seeds(7)
    assert len({*episode_seeds(7), *episode_seeds(8)}) == 6


def test_the_mission_is_the_papers(minerl):
    make_world()
    spec = minerl.worlds[-1].spec
    (break_speed,) = spec.create_agent_start()
    assert break_speed.xml_template() == "<BreakSpeedMultiplier>100</BreakSpeedMultiplier>"
    assert spec.resolution == (64, 64)
    (world,) = spec.create_server_world_generators()
    assert world.force_reset  # Another world in each episode.
    assert spec.create_agent_handlers() == []  # A diamond, as in MineRL's own task, is no end.


def test_another_version_is_refused(minerl, monkeypatch):
    items = importlib.import_module("minerl.herobraine.hero.mc")
    monkeypatch.setattr(items, "ALL_ITEMS", items.ALL_ITEMS[:100])
    with pytest.raises(ValueError, match=r"99 .* 101 .*expected 391 and 393.*0\.4\.4"):
        make_world()


def test_simulators_run_in_processes(minerl):
    environment = environments.make("minecraft/diamond")
    dynamics = minecraft.Minecraft(time_limit=150)
    simulators = dynamics.start(environment.params, batch_size=2, seed=1)
    try:
        timestep = simulators.reset()
        images = timestep.observation["image"][:, 0, 0, 0].copy()
        assert images[0] != images[1]  # Another world in each.
        script = [NAMES.index(name) for name in WAY_TO_THE_DIAMOND]
        script += [NAMES.index("noop")] * (150 - len(script))
        for episode in range(2):
            total = np.zeros(2)
            for action in script:
                # The second one does nothing.
                timestep = simulators.step(np.array([action, 0]))
                total += timestep.reward
            assert total.tolist() == [12.0, 0.0]
            assert (timestep.step_type == dm_env.StepType.LAST).all()
            assert timestep.discount.tolist() == [1.0, 1.0]
            assert all(
                simulators.results[name].tolist() == [1.0, 0.0] for name in ("log", "diamond")
            )
            if episode == 0:
                assert (simulators.step(np.zeros(2, int)).step_type == dm_env.StepType.FIRST).all()
        assert simulators.results.keys() == set(minecraft.MILESTONES)
        for name, leaf in dynamics.observation_spec().items():
            assert timestep.observation[name].shape == (2, *leaf.shape)
            assert timestep.observation[name].dtype == leaf.dtype
        assert simulators.restarts == 0
    finally:
        simulators.close()


def test_unknown_tasks_say_what_is_near(minerl):
    with pytest.raises(EnvironmentNameError, match=r"'minecraft/diamonds'.*'minecraft/diamond'"):
        environments.make("minecraft/diamonds")


def test_without_minerl_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"'minecraft/….*Install MineRL 0\.4\.4"):
        environments.make("minecraft/diamond")
