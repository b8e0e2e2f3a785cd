"""Settings of a discovery that an earlier version stored."""

import dataclasses

from disco_common.configuration import from_json
from meta.config import MetaConfig


def test_fields_that_are_gone_are_passed_over():
    config = MetaConfig(learning_rate=2e-3)
    stored = dataclasses.asdict(config) | {
        "learning_rate_decay_steps": 0,
        "end_learning_rate": 0.1,
    }
    assert from_json(MetaConfig, stored) == config
