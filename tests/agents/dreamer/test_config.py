"""Which Dreamer a name stands for."""

import pytest

import environments
from agents import registry
from agents.dreamer.presets import ABLATIONS, BENCHMARKS, PRESETS, laptop, preset, sizes
from tests.environments.streams import dynamics_of


def named_dreamer(parameters: str) -> registry.Configured:
    return registry.configured(f"dreamer/{parameters}")


def test_names():
    dreamer = registry.configured("dreamer")
    assert dreamer.config == laptop("nature", "1m")
    assert named_dreamer("v1").config == laptop("v1", "1m")
    agent = named_dreamer("horizon=10, 25m, NoFreeBits, paper, reward_norm=true")
    assert agent.config.horizon == 10
    assert agent.config.reward_norm is True
    assert agent.config.free_nats == 0.0
    assert agent.config.deterministic == 3072
    assert agent.by_task["crafter"].replay_ratio == 512
    assert agent.by_task["crafter"].deterministic == 3072
    assert agent.settings["of_family"]["crafter"]["num_environments"] == 1


def test_the_papers_agent_is_that_of_the_code_of_2024():
    """Its configuration file and its encoder, at the commit that `presets` names."""
    config = named_dreamer("paper").config
    assert config == preset("nature_2024")
    assert (config.policy_unimix, config.convolutions) == (0.01, "strided")
    assert named_dreamer("paper,nature").config == preset("nature")
    for family in ("control_proprio", "control_vision"):
        own = named_dreamer("paper").by_task[family]
        assert (own.replay_ratio, own.deterministic) == (512, preset("nature", "12m").deterministic)
    assert named_dreamer("paper").by_task["atari"].image_side == 96
    assert named_dreamer("paper").by_task["atari"].image_channels == 1


def test_large_replays_of_the_papers_settings_store_h_in_bfloat16():
    for version in ("nature", "nature_2024"):
        agent = named_dreamer(f"paper,{version}")
        stored = {family: config.stored_dtype for family, config in agent.by_task.items()}
        large = {"atari", "minecraft", "nethack"}
        large |= {"dmlab", "dmlab_test", "dmlab_r2d2", "dmlab_r2d2_test"}
        large |= {"procgen", "procgen_all", "procgen_unseen"}
        assert {family for family, dtype in stored.items() if dtype == "bfloat16"} == large
        assert agent.config.stored_dtype == "float32"
        assert laptop(version).stored_dtype == "float32"
    assert named_dreamer("stored_dtype=bfloat16").config.stored_dtype == "bfloat16"
    assert named_dreamer("paper,stored_dtype=float32").by_task["atari"].stored_dtype == "float32"


def test_agents_choose_their_papers_images():
    def shape(task):
        return dynamics_of(task).observation_spec().shape

    pong = environments.make("atari100k/Pong")
    assert shape(pong) == (84, 84, 1)
    assert shape(named_dreamer("paper").observed(pong)) == (64, 64, 3)
    pong = environments.make("atari/Pong")
    assert shape(named_dreamer("paper").observed(pong)) == (96, 96, 1)
    assert shape(named_dreamer("paper,v1").observed(pong)) == (64, 64, 3)
    catch = environments.make("catch")
    assert named_dreamer("paper").observed(catch) is catch


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("scale", ["", "paper"])
def test_ablations_are_what_they_say_at_any_scale(ablation, scale):
    config = named_dreamer(f"{ablation},{scale}").config
    for name, value in ABLATIONS[ablation].items():
        assert getattr(config, name) == value


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


@pytest.mark.parametrize("name", PRESETS)
def test_every_benchmark_and_ablation_is_a_preset(name):
    for family in BENCHMARKS[name]:
        assert preset(name, family=family) != preset(name, sizes(name)[0])
    for ablation in ABLATIONS:
        assert preset(name, ablation=ablation) != preset(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dreamer/v1,12m", "'12m' does not say which Dreamer; expected at most one of each of"),
        ("dreamer/nature,v1", "'v1' does not say which Dreamer"),
        ("dreamer/NoSuchThing", "ablation: NoFreeBits, NoKLBalance"),
        ("dreamer/horizons=3", "Dreamer has no setting 'horizons'"),
        ("dreamer/horizon=long", "Dreamer's horizon is 'long'; expected a number without point"),
        ("dreamer/reward_norm=1", "Dreamer's reward_norm is '1'; expected true or false"),
        ("dreamer/batch_size=0", "batch_size is 0; expected at least 1"),
        ("dreamer/batch_length=1", "batch_length is 1; expected at least 2"),
        ("dreamer/bins=1", "bins is 1; expected at least 2"),
        ("dreamer/classes=300", "classes is 300; expected at most 256"),
        ("dreamer/discount_horizon=1", r"discount_horizon is 1\.0; expected more than 1"),
        ("dreamer/blocks=7", "blocks is 7; expected a divisor of deterministic"),
        ("dreamer/imagine_last=1", "imagine_last is 1; expected 0, or from 2 to batch_length"),
        ("dreamer/prefill=3", "prefill is 3; expected at least a batch"),
        ("dreamer/regression=linear", "regression is 'linear'; expected one of symexp_twohot"),
        ("dreamer/replay_ratio=nan", "replay_ratio is nan; expected a positive number"),
        ("dreamer/replay_ratio=inf", "replay_ratio is inf; expected a positive number"),
        ("dreamer/learning_rate=nan", "learning_rate is nan; expected a positive number"),
        ("dreamer/discount_horizon=nan", "discount_horizon is nan; expected more than 1"),
        ("dreamer/unimix=2", "unimix is 2.0; expected 0 to 1"),
        ("dreamer/lambda_=nan", "lambda_ is nan; expected 0 to 1"),
        ("dreamer/free_nats=-1", "free_nats is -1.0; expected at least 0"),
        ("dreamer/entropy_cost=nan", "entropy_cost is nan; expected at least 0"),
        ("dreamer/head_layers=-1", "head_layers is -1; expected at least 0"),
        ("dreamer/warmup=-3", "warmup is -3; expected at least 0"),
    ],
)
def test_a_wrong_name_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        registry.configured(name)
