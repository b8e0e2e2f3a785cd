"""Configs: dataclasses to `ml_collections` and back, and what is refused."""

import dataclasses
import json
import math
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from agents.dreamer.config import DreamerConfig
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco_common.configuration import from_config, from_json, to_config
from evaluation.config import EvaluationConfig
from launch.configs import ablations, grid57_laptop
from launch.support.discovery_config import DiscoveryRunConfig
from meta.config import MetaConfig, PopulationConfig


@pytest.mark.parametrize(
    "settings",
    [
        DiscoveryRunConfig(),
        grid57_laptop.get_config(),
        DiscoveryRunConfig(
            suite="catch/5x5",
            agent=RuleAgentConfig(network=NetworkConfig(torso=(), head=(3, 4))),
            population=PopulationConfig(size=1, lifetimes=(7,)),
            meta=MetaConfig(num_updates=6, segment_length=3, agents_at_once=2),
        ),
    ],
    ids=["defaults", "laptop", "other"],
)
def test_round_trip(settings):
    assert from_config(DiscoveryRunConfig, to_config(settings)) == settings
    as_json = json.loads(json.dumps(dataclasses.asdict(settings)))
    assert from_json(DiscoveryRunConfig, as_json) == settings


@pytest.mark.parametrize("ablation", ablations.ABLATIONS)
def test_each_ablation_leaves_out_one_part(ablation):
    whole, without = ablations.get_config(), ablations.get_config(ablation)
    assert dataclasses.replace(whole, probe=grid57_laptop.get_config().probe) == (
        grid57_laptop.get_config()
    )
    changed = [
        field.name
        for field in dataclasses.fields(whole)
        if getattr(whole, field.name) != getattr(without, field.name)
    ]
    expected = {"none": [], "small_agents": ["agent"]}
    assert changed == (
        ["suite"] if ablation in ablations.SUITES else expected.get(ablation, ["rule"])
    )
    assert from_config(DiscoveryRunConfig, to_config(without)) == without


def test_an_unknown_ablation_is_refused():
    with pytest.raises(ValueError, match=r"'no_luck' is unknown; expected one of .*no_value"):
        ablations.get_config("no_luck")


def test_field_without_a_value_can_be_set():
    config: Any = to_config(DiscoveryRunConfig())
    assert config.meta.segment_length is None
    config.meta.segment_length = 5
    assert from_config(DiscoveryRunConfig, config).meta.segment_length == 5
    with pytest.raises(TypeError):
        config.meta.segment_length = "five"


def test_unknown_field_is_refused():
    config: Any = to_config(DiscoveryRunConfig())
    with pytest.raises(AttributeError, match="num_update"):
        config.meta.num_update = 3
    with config.unlocked():
        config.meta.num_update = 3
    with pytest.raises(ValueError, match=r"config.meta has no fields \['num_update'\]; it has \["):
        from_config(DiscoveryRunConfig, config)


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("meta", "num_updates", 0, r"meta.num_updates is 0; expected at least 1"),
        ("meta", "segment_length", 3, r"segment_length is 3; expected a divisor .* \(20\)"),
        ("meta", "agents_at_once", 0, r"agents_at_once is 0; expected at least 1"),
        ("meta", "learning_rate", "fast", r"config.meta.learning_rate is 'fast'; expected float"),
        ("agent", "batch_size", 2.5, r"config.agent.batch_size is 2.5; expected int"),
        ("agent", "replay_ratio", 2.0, r"agent.replay_ratio is 2.0; expected 0 to 1"),
        ("population", "lifetimes", [3, "x"], r"lifetimes is \(3, 'x'\); expected tuple\[int"),
        ("population", "size", True, r"config.population.size is True; expected int"),
    ],
)
def test_bad_value_is_refused(section, field, value, message):
    values = dataclasses.asdict(DiscoveryRunConfig())
    values[section][field] = value
    with pytest.raises(ValueError, match=message):
        from_json(DiscoveryRunConfig, values)


# Every number of every config.

CONFIGS = {
    "discover": DiscoveryRunConfig(),
    "evaluate": EvaluationConfig(),
    "dreamer": DreamerConfig(),
}
MAY_BE_NEGATIVE: tuple[str, ...] = ()  # Dotted names. So far no field has a meaning for it.


def number_fields(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple, set[type]]]:
    """Each field that holds numbers, of dataclasses within too: its path, and its plain types."""
    for name, hint in typing.get_type_hints(type(settings)).items():
        if dataclasses.is_dataclass(hint):
            yield from number_fields(getattr(settings, name), (*path, name))
        elif kinds := {int, float} & {hint, *typing.get_args(hint)}:
            yield (*path, name), kinds


NUMBERS = [
    pytest.param(name, path, id=f"{name}: {'.'.join(path)}")
    for name, settings in CONFIGS.items()
    for path, _ in number_fields(settings)
]
FLOATS = [
    pytest.param(name, path, bad, id=f"{name}: {'.'.join(path)} {bad}")
    for name, settings in CONFIGS.items()
    for path, kinds in number_fields(settings)
    if float in kinds
    for bad in (math.nan, math.inf, -math.inf, 1e39)
]


def changed(settings: Any, path: tuple[str, ...], number: float) -> Any:
    """With a number in place of a field, whose other contents it keeps."""
    name, *within = path
    found = getattr(settings, name)
    if within:
        found = changed(found, tuple(within), number)
    else:
        found = (number, *found[1:]) if isinstance(found, tuple) else number
    return dataclasses.replace(settings, **{name: found})


def as_read(settings: Any, path: tuple[str, ...], number: float) -> Any:
    """Likewise, as a config file or a run's `config.json` says it."""
    values = dataclasses.asdict(settings)
    holder = values
    for name in path[:-1]:
        holder = holder[name]
    found = holder[path[-1]]
    holder[path[-1]] = [number, *found[1:]] if isinstance(found, tuple) else number
    return from_json(type(settings), values)


def test_fields_are_found():
    assert {len(path) for path, _ in number_fields(CONFIGS["discover"])} == {1, 2, 3}
    assert len(NUMBERS) > 100
    assert len(FLOATS) > 100


@pytest.mark.parametrize(("name", "path", "bad"), FLOATS)
def test_a_number_that_is_not_finite_is_refused(name, path, bad):
    shown = re.escape(str(bad))
    with pytest.raises(ValueError, match=rf"\b{path[-1]}\b.* is .*{shown}.*; expected "):
        as_read(CONFIGS[name], path, bad)
    with pytest.raises(ValueError, match=rf"\b{path[-1]}\b.* is {shown}; expected "):
        changed(CONFIGS[name], path, bad)


@pytest.mark.parametrize(("name", "path"), NUMBERS)
def test_a_negative_number_is_refused_where_it_has_no_meaning(name, path):
    if ".".join(path) in MAY_BE_NEGATIVE:
        as_read(CONFIGS[name], path, -1)
        return
    for make in (as_read, changed):
        with pytest.raises(ValueError, match=rf"\b{path[-1]}\b.* is \(?-1\b"):
            make(CONFIGS[name], path, -1)


@dataclasses.dataclass(frozen=True)
class Unchecked:
    """A config without checks of its own."""

    number: float = 0.0
    optional: float | None = None
    numbers: tuple[float, ...] = ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"number": math.nan}, r"config\.number is nan; expected a finite number, of at most 3"),
        ({"number": 1e39}, r"config\.number is 1e\+39; expected a finite number, of at most 3"),
        ({"number": 2**63}, r"config\.number is 9223372036854775808; expected an integer of at"),
        ({"optional": -math.inf}, r"config\.optional is -inf; expected a finite number, of at"),
        ({"numbers": [1.0, math.inf]}, r"config\.numbers is \(1\.0, inf\); expected a finite num"),
    ],
)
def test_no_field_has_to_refuse_what_is_not_finite_itself(values, message):
    with pytest.raises(ValueError, match=message):
        from_json(Unchecked, values)
    assert from_json(Unchecked, {"number": 1, "numbers": [2.0]}) == Unchecked(1, None, (2.0,))


@pytest.mark.parametrize(
    ("path", "number", "message"),
    [
        ("agent.learning_rate", 0.0, "agent.learning_rate is 0.0; expected a positive number"),
        ("agent.max_abs_update", 0.0, "agent.max_abs_update is 0.0; expected a positive number"),
        ("meta.learning_rate", 0.0, "meta.learning_rate is 0.0; expected a positive number"),
        ("meta.max_gradient_norm", 0.0, "meta.max_gradient_norm is 0.0; expected a positive"),
        ("meta.average_decay", 1.0, "meta.average_decay is 1.0; expected at least 0, below 1"),
        ("value_function.discount", 1.1, "value_function.discount is 1.1; expected 0 to 1"),
        ("value_function.lambda_", 1.1, "value_function.lambda_ is 1.1; expected 0 to 1"),
        ("value_function.hidden", 0, r"value_function.hidden\[0\] is 0; expected at least 1"),
        ("population.lifetimes", 2**31, "expected lifetimes of at most 2147483647 environment"),
        (
            "population.first_reset_after",
            2**31,
            "expected lifetimes of at most 2147483647",
        ),
        ("rule.discount", 1.1, "config.rule: discount is 1.1; expected 0 to 1"),
        ("devices_per_agent", 0, "devices_per_agent is 0; expected at least 1"),
        ("seed", 2**32, r"seed is 4294967296; expected 0 to 2\*\*32 - 1"),
        ("seed", 2**64, r"config.seed is 18446744073709551616; expected an integer of at most 64"),
    ],
)
def test_a_number_out_of_range_is_refused(path, number, message):
    with pytest.raises(ValueError, match=message):
        as_read(DiscoveryRunConfig(), tuple(path.split(".")), number)
