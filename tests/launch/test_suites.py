"""Commands and configs for the suites: presets, and what is refused."""

import dataclasses

import numpy as np
import pytest

import environments
from agents.random_agent import RandomAgent
from disco_common.configuration import from_config, to_config
from environments import registry
from evaluation import playing
from evaluation.published import published_tables
from launch.configs import disco57, disco103, evaluate, evaluate_paper, mixed_laptop, varied
from launch.support import evaluation_flags
from launch.support.discovery_config import DiscoveryRunConfig, make_rule
from launch.support.evaluation_flags import listed
from meta.config import ESTIMATORS
from meta.estimators import candidates
from tests.launch.tiny_runs import discovery_of


def test_continuous_actions_are_played_at_random():
    task = environments.make("control_proprio/cartpole_swingup")
    played = playing.play(RandomAgent(task.dynamics, 2), (), task, 500, 2, seed=0)
    assert played.last[-1].all()
    assert played.last.sum() == 2
    assert played.reward.sum() > 0.0


@pytest.mark.parametrize(
    ("suite", "family"),
    [
        ("catch/5x5", "catch"),
        ("gymnasium/CartPole-v1", "gymnasium"),
        ("gymnasium/CarRacing-v3?continuous=False", "images"),
    ],
)
def test_the_default_settings_follow_the_observations(suite, family):
    assert evaluation_flags._config_argument(suite) == family
    assert bool(evaluate.get_config(family).agent.network.channels) is (family == "images")


def test_the_papers_numbers_of_discovery():
    settings = disco57.get_config()
    assert from_config(DiscoveryRunConfig, to_config(settings)) == settings
    assert len(registry.members_of(settings.suite)) == 57
    assert settings.population.size == 128
    agent = settings.agent
    assert (agent.batch_size, agent.unroll_length, agent.num_replayed) == (96, 29, 86)
    assert (settings.meta.num_updates, settings.meta.validation_trajectories) == (20, 48)
    assert settings.meta.average_decay == 0.0  # The newest rule is the result.
    assert settings.meta.validation_from_training
    assert settings.population.keeps_tasks
    assert not settings.value_function.learns_from_batches
    larger = disco103.get_config()
    members = [name for suite in larger.suite.split(",") for name in registry.members_of(suite)]
    assert 2 * len(members) == larger.population.size == 206
    of_dmlab = larger.agent_of("dmlab/rooms_watermaze")
    assert (of_dmlab.network.memory, of_dmlab.frame_stack) == (256, 1)
    assert of_dmlab.unroll_length == agent.unroll_length
    assert larger.agent_of("atari/Pong") == larger.agent


def test_the_initial_rule_of_disco57_is_drawn_as_the_releases():
    """Truncated normal: of standard deviation 0.3, or of 1 over the root of a layer's inputs."""
    layers = make_rule(disco57.get_config()).parameters
    assert all(np.all(layer["b"] == 0.0) for layer in layers.values())
    for name, stddev in {"policy_target_1": 0.3, "y_target": 0.3, "lifetime_gate": 1.0}.items():
        weights = layers[f"trajectory/{name}"]["w"]
        assert np.max(np.abs(weights)) <= 2 * stddev
        # A normal distribution that is cut at two standard deviations has 0.88 of one.
        assert np.std(weights) == pytest.approx(0.88 * stddev, rel=0.5)


def test_lifetimes_are_the_papers_frames_in_every_suite():
    settings = dataclasses.replace(
        disco103.get_config(),
        suite="atari/Pong,catch/5x5",
        population=dataclasses.replace(disco103.get_config().population, size=2),
    )
    frames = np.array([200, 100, 50, 20]) * 1_000_000
    for group, per_action in zip(discovery_of(settings).groups, (4, 1), strict=True):
        np.testing.assert_array_equal(group.population.lifetimes, frames // per_action)


def test_the_population_of_disco57_goes_through_the_games_in_order():
    discovery = discovery_of(disco57.get_config())
    (group,) = discovery.groups
    assert group.names[:3] == ("atari/Alien", "atari/Amidar", "atari/Assault")
    assert list(group.names) == sorted(group.names)
    tasks = np.arange(len(group.indices)) % len(group.names)
    assert tasks[[0, 56, 57, 127]].tolist() == [0, 56, 0, 13]


def test_a_mixed_population_has_a_group_for_each_kind_of_environment():
    try:
        discovery = discovery_of(mixed_laptop.get_config())
    except environments.MissingPackageError as error:
        pytest.skip(str(error))
    assert [group.names for group in discovery.groups] == [
        ("atari/Breakout", "atari/Pong"),
        ("procgen/coinrun",),
        ("nethack/NetHackScore",),
        ("grid57/00_dense_fixed", "grid57/03_sparse_random"),
    ]


@pytest.mark.parametrize(
    "entry",
    ["dmlab", "dmlab:", "dmlab: width=3", "dmlab: memory=big", "dmlab: memory=2x2", "a: torso=8x"],
)
def test_malformed_families(entry):
    settings = dataclasses.replace(disco57.get_config(), families=(entry,))
    with pytest.raises(ValueError, match=r"families has .*expected a family, a colon"):
        assert settings.family_agents


def test_agents_of_varied_tasks_have_networks_and_updates_of_their_own():
    settings = varied.get_config()
    by_name = {x.name: settings.agent_of(x.name) for x in environments.suite("varied_16")}
    wide, cart = by_name["varied/005_rooms_view"], by_name["varied/003_cart_state"]
    assert wide.network.torso == wide.network.head == (128,)
    assert by_name["varied/002_mdp_features"].network.torso == (64, 64)
    assert (cart.num_environments, cart.batch_size, cart.replay_ratio) == (8, 16, 0.5)
    assert by_name["varied/000_grid_planes"] == settings.agent
    assert {x.steps_per_update for x in by_name.values()} == {32, 64, 128}


@pytest.mark.parametrize("name", ["gymnax/CartPole-v1", "gymnasium/minigrid:MiniGrid-Empty-8x8-v0"])
def test_families_may_be_environments(name):
    settings = dataclasses.replace(varied.get_config(), families=(f"{name}: torso=8",))
    assert settings.agent_of(name).network.torso == (8,)
    assert settings.agent_of("gymnax/Acrobot-v1") == settings.agent


@pytest.mark.parametrize("form", ["published", "anchored", "progress"])
def test_each_form_of_varied_has_each_estimator(form):
    for estimator in ESTIMATORS:
        settings = varied.get_config(f"{form},{estimator}")
        rule = make_rule(settings)
        assert settings.estimator == estimator
        assert candidates.num_candidates(settings) >= 8 or estimator == "meta_gradient"
        assert {*settings.evolution.layers} < {*rule.parameters}
        if estimator not in ("open_es", "cma_es"):
            settings.require_equal_updates()
    with pytest.raises(ValueError, match=r"varied:wide,open_es is not known; expected one of publ"):
        varied.get_config("wide,open_es")


def test_families_whose_updates_do_not_fit():
    settings = dataclasses.replace(
        varied.get_config(), families=("varied/*_cart_state: num_environments=9",)
    )
    with pytest.raises(ValueError, match="num_environments 9 beside batch_size 8"):
        assert settings.family_agents
    changed = dataclasses.replace(settings, families=("varied: num_environments=4",))
    with pytest.raises(ValueError, match=r"'varied' an update after 64 .*; expected 32, .*_es'"):
        changed.require_equal_updates()


@pytest.mark.parametrize(
    "name", ["atari", "crafter", "dmlab_test", "nethack", "procgen", "sokoban"]
)
def test_presets_of_the_paper(name):
    config = evaluate_paper.get_config(name)
    agent = config.agent
    fresh = agent.batch_size - agent.num_replayed
    assert fresh == agent.num_environments >= 1
    # The tables' schedules are as long as Table 6 says, and longer than some runs that it scores.
    table_6 = {"crafter": 50, "dmlab_test": 1_000}.get(name, 200) * 1_000_000
    frames = environments.frames_per_action(name)
    assert (agent.lifetime or config.budget) * frames == table_6


@pytest.mark.parametrize("suite", ["atari57", "crafter", "dmlab30_test", "procgen16"])
def test_budgets_are_those_of_the_scores_that_are_printed_beside(suite):
    family = registry.family_of(suite)
    budgets = {
        score.budget
        for table in published_tables()
        for score in table.scores
        if score.agent == "Disco57" and registry.family_of(score.task) == family
    }
    frames = environments.frames_per_action(family)
    assert evaluate_paper.get_config(family).budget * frames in budgets


def test_a_preset_that_the_paper_has_not():
    with pytest.raises(ValueError, match=r"environments 'gymnax' is not .*'atari'"):
        evaluate_paper.get_config("gymnax")


def test_which_environments_are_outside_jax_is_known_without_making_them():
    for name in ("bsuite/catch/0", "nethack/NetHackScore", "crafter", "atari/Pong"):
        assert registry.is_host(name)
        assert environments.suite(name)[0].is_host
    for name in ("catch/5x5", "minatar", "grid57", "sokoban/valid", "gymnax/CartPole-v1"):
        assert not registry.is_host(name)
        assert not environments.suite(name)[0].is_host


def test_settings_follow_the_suite():
    assert registry.family_of("crafter") == "crafter"
    assert registry.family_of("atari57") == "atari"
    for suite in ("grid57", "grid_heldout", "lpg", "delayed_chain"):
        assert registry.family_of(suite) == suite == registry.members_of(suite)[0].split("/")[0]
    assert registry.family_of("gymnax/CartPole-v1") == "gymnax"
    assert registry.family_of("no_such_suite") == "no_such_suite"
    assert evaluate.get_config("crafter").agent.frame_stack == 4
    assert evaluate.get_config("gymnax") == evaluate.get_config()


def test_names_are_listed_by_commas_outside_of_brackets():
    suite = "catch/5x5, gymnasium/A-v0?size=(1,2),gymnax,"
    assert listed(suite, "b") == [
        "catch/5x5",
        "gymnasium/A-v0?size=(1,2)",
        "gymnax",
        "b",
    ]
