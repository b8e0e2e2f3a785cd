"""Configs: dataclasses to `ml_collections` and back, and what is refused."""

import dataclasses
import json

import pytest

from agents.agent import AgentConfig
from agents.networks import NetworkConfig
from launch.configs import ablations, grid57_laptop
from launch.configuration import from_config, from_json, to_config
from launch.settings import DiscoverSettings
from meta.discovery import MetaConfig
from meta.population import PopulationConfig


@pytest.mark.parametrize(
    "settings",
    [
        DiscoverSettings(),
        grid57_laptop.get_settings(),
        DiscoverSettings(
            suite="catch/5x5",
            agent=AgentConfig(network=NetworkConfig(torso=(), head=(3, 4))),
            population=PopulationConfig(size=1, lifetimes=(7,)),
            meta=MetaConfig(num_updates=6, segment_length=3, agents_at_once=2),
        ),
    ],
    ids=["defaults", "laptop", "other"],
)
def test_round_trip(settings):
    assert from_config(DiscoverSettings, to_config(settings)) == settings
    as_json = json.loads(json.dumps(dataclasses.asdict(settings)))
    assert from_json(DiscoverSettings, as_json) == settings


@pytest.mark.parametrize("ablation", ablations.ABLATIONS)
def test_each_ablation_leaves_out_one_part(ablation):
    whole, without = grid57_laptop.get_settings(), ablations.get_settings(ablation)
    changed = [
        field.name
        for field in dataclasses.fields(whole)
        if getattr(whole, field.name) != getattr(without, field.name)
    ]
    expected = {"none": [], "small_agents": ["agent"], "toy_environments": ["suite"]}
    assert changed == expected.get(ablation, ["rule"])
    assert from_config(DiscoverSettings, ablations.get_config(ablation)) == without


def test_an_unknown_ablation_is_refused():
    with pytest.raises(ValueError, match=r"'no_luck' is unknown; expected one of .*no_value"):
        ablations.get_config("no_luck")


def test_field_without_a_value_can_be_set():
    config = to_config(DiscoverSettings())
    assert config.meta.segment_length is None
    config.meta.segment_length = 5
    assert from_config(DiscoverSettings, config).meta.segment_length == 5
    with pytest.raises(TypeError):
        config.meta.segment_length = "five"


def test_unknown_field_is_refused():
    config = to_config(DiscoverSettings())
    with pytest.raises(AttributeError, match="num_update"):
        config.meta.num_update = 3
    with config.unlocked():
        config.meta.num_update = 3
    with pytest.raises(ValueError, match=r"config.meta has no fields \['num_update'\]; it has \["):
        from_config(DiscoverSettings, config)


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("meta", "num_updates", 0, r"meta.num_updates is 0; expected at least 1"),
        ("meta", "segment_length", 3, r"segment_length is 3; expected a divisor .* \(20\)"),
        ("meta", "agents_at_once", 0, r"agents_at_once is 0; expected at least 1, or None"),
        ("meta", "learning_rate", "fast", r"config.meta.learning_rate is 'fast'; expected float"),
        ("agent", "batch_size", 2.5, r"config.agent.batch_size is 2.5; expected int"),
        ("agent", "replay_ratio", 2.0, r"agent.replay_ratio is 2.0; expected 0 to 1"),
        ("population", "lifetimes", [3, "x"], r"lifetimes is \(3, 'x'\); expected tuple\[int"),
        ("population", "size", True, r"config.population.size is True; expected int"),
    ],
)
def test_bad_value_is_refused(section, field, value, message):
    values = dataclasses.asdict(DiscoverSettings())
    values[section][field] = value
    with pytest.raises(ValueError, match=message):
        from_json(DiscoverSettings, values)
