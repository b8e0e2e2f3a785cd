"""Which Dreamer a name stands for."""

import dataclasses

import pytest

import environments
from agents import registry
from agents.dreamer.config import ABLATIONS, FAMILIES, VERSIONS, laptop, preset
from tests.environments.streams import dynamics_of


def named_dreamer(parameters: str) -> registry.ConfiguredAlgorithm:
    return registry.configured(f"dreamer/{parameters}")


def test_names():
    dreamer = registry.configured("dreamer")
    assert dreamer.config == laptop("nature", "1m")
    assert named_dreamer("v1").config == laptop("v1", "1m")
    agent = named_dreamer("horizon=10, 25m, NoFreeBits, paper")
    assert agent.config.horizon == 10
    assert agent.config.ablation == "NoFreeBits"
    assert agent.config.deterministic == 3072
    assert agent.by_task["crafter"].replay_ratio == 512
    assert agent.by_task["crafter"].deterministic == 3072
    assert agent.settings["by_task"]["crafter"]["num_environments"] == 1


def test_a_size_is_one_network():
    networks = (
        "version",
        "deterministic",
        "latents",
        "classes",
        "blocks",
        "units",
        "depth",
        "layers",
    )
    for size in ("1m", "12m", "200m"):
        small, large = named_dreamer(size).config, named_dreamer(f"{size},paper").config
        assert [getattr(small, x) for x in networks] == [getattr(large, x) for x in networks]


def test_the_papers_agent():
    assert named_dreamer("paper").config == named_dreamer("paper,nature").config == preset("nature")
    assert named_dreamer("paper").config.policy_unimix == 0.01
    for family in ("control_proprio", "control_vision"):
        own = named_dreamer("paper").by_task[family]
        assert (own.replay_ratio, own.deterministic) == (512, preset("nature", "12m").deterministic)
    assert named_dreamer("paper").by_task["atari"].image_side == 96
    assert named_dreamer("paper").by_task["atari"].image_channels == 1


def test_agents_choose_their_papers_images():
    def shape(task):
        return dynamics_of(task).observation_spec().shape

    pong = environments.make("atari100k/Pong")
    assert shape(pong) == (84, 84, 1)
    assert shape(named_dreamer("paper").choose_images(pong)) == (64, 64, 3)
    pong = environments.make("atari/Pong")
    assert shape(named_dreamer("paper").choose_images(pong)) == (96, 96, 1)
    assert shape(named_dreamer("paper,v1").choose_images(pong)) == (64, 64, 3)
    catch = environments.make("catch")
    assert named_dreamer("paper").choose_images(catch) is catch


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("scale", ["", "paper"])
def test_ablations_are_what_they_say_at_any_scale(ablation, scale):
    config = named_dreamer(f"{ablation},{scale}").config
    assert config == dataclasses.replace(named_dreamer(scale).config, ablation=ablation)
    assert named_dreamer(f"ablation={ablation},{scale}").config == config


# Table A.1 of the arXiv version.
TABLE = {
    "control_proprio": ("s", 4, 512),
    "control_vision": ("s", 4, 512),
    "crafter": ("xl", 1, 512),
    "bsuite": ("xl", 1, 1024),
    "atari100k": ("s", 1, 1024),
    "atari": ("xl", 8, 64),
    "dmlab": ("xl", 8, 64),
    "minecraft": ("xl", 16, 16),
}


@pytest.mark.parametrize("family", TABLE)
def test_paper_settings_of_a_benchmark(family):
    size, number, ratio = TABLE[family]
    config = preset("v1", family=family)
    assert config.deterministic == preset("v1", size).deterministic
    assert (config.num_environments, config.replay_ratio) == (number, ratio)


def test_a_run_has_the_settings_of_its_family():
    agent = named_dreamer("paper,v1")
    assert agent.config_for(environments.make("catch")) == preset("v1")
    dynamics = environments.make("catch").dynamics
    crafter = environments.Environment(name="crafter/reward", dynamics=dynamics)
    assert agent.config_for(crafter) == preset("v1", family="crafter")


@pytest.mark.parametrize("name", VERSIONS)
def test_every_benchmark_and_ablation_is_a_preset(name):
    for family in FAMILIES:
        assert preset(name, family=family) != preset(name, "1m")
    for ablation in ABLATIONS:
        assert preset(name, ablation=ablation) != preset(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dreamer/v1,12m", "'12m' does not say which Dreamer; expected at most one of each of"),
        ("dreamer/nature,v1", "'v1' does not say which Dreamer"),
        (
            "dreamer/nature_2024",
            "'nature_2024' does not say .* each of version: nature, v1",
        ),
        ("dreamer/version=v1", "make it 'v1' with the sizes of 'nature'; expected dreamer/v1"),
        ("dreamer/NoSuchThing", "ablation: NoFreeBits, NoKLBalance"),
        ("dreamer/horizons=3", "dreamer has no setting 'horizons'"),
        ("dreamer/horizon=long", "dreamer's horizon is 'long'; expected a number without point"),
        ("dreamer/batch_size=0", "batch_size is 0; expected at least 1"),
        ("dreamer/batch_length=1", "batch_length is 1; expected at least 2"),
        ("dreamer/classes=300", "classes is 300; expected 1 to 256"),
        ("dreamer/discount_horizon=1", r"discount_horizon is 1\.0; expected more than 1"),
        ("dreamer/blocks=7", "blocks is 7; expected a divisor of deterministic"),
        ("dreamer/imagine_last=1", "imagine_last is 1; expected 0, or from 2 to batch_length"),
        ("dreamer/prefill=3", "prefill is 3; expected at least a batch"),
        ("dreamer/dtype=float16", "dtype is 'float16'; expected one of auto, float32, bfloat16"),
        ("dreamer/unimix=2", "unimix is 2.0; expected 0 to 1"),
        ("dreamer/replay_ratio=nan", "replay_ratio is nan; expected a positive number"),
        ("dreamer/replay_ratio=inf", "replay_ratio is inf; expected a positive number"),
        ("dreamer/learning_rate=nan", "learning_rate is nan; expected a positive number"),
        ("dreamer/discount_horizon=nan", "discount_horizon is nan; expected more than 1"),
        ("dreamer/free_nats=-1", "free_nats is -1.0; expected at least 0"),
        ("dreamer/entropy_cost=nan", "entropy_cost is nan; expected at least 0"),
        ("dreamer/warmup=-3", "warmup is -3; expected at least 0"),
    ],
)
def test_a_wrong_name_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        registry.configured(name)
