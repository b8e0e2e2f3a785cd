"""Contenders: what a rule's file recommends for its agents."""

import dataclasses
import json
import re

import numpy as np
import pytest

import disco
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders
from tests.meta.common import small_rule

CONFIG = EvaluationConfig(baselines=())


def write(path, provenance) -> str:
    """A rule file of any provenance, also such as `disco.save` would refuse."""
    disco.save(small_rule(), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["header"][()]))
    if provenance is ...:
        del header["provenance"]
    else:
        header["provenance"] = provenance
    arrays["header"] = np.array(json.dumps(header))
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("provenance", "learning_rate"),
    [
        ({"agent": {"learning_rate": 0.5}}, 0.5),
        ({"agent": {"learning_rate": 1}}, 1.0),
        ({"agent": {}}, None),
        ({}, None),
        (..., None),
    ],
)
def test_recommended_learning_rate(tmp_path, provenance, learning_rate):
    _, contender = make_contenders([write(tmp_path / "a.npz", provenance)], CONFIG)
    found, origin = contender.agent.learning_rate, contender.source["learning_rate_from"]
    if learning_rate is None:
        assert (found, origin) == (CONFIG.agent.learning_rate, "config.agent.learning_rate")
    else:
        assert (found, origin) == (learning_rate, "the rule file")


@pytest.mark.parametrize(
    "found",
    [
        *(float("nan"), -0.1, 0, 0.0, float("inf"), -float("inf")),
        *("0.1", True, False, None, [], [0.1], {}, pytest.param(10**400, id="huge")),
    ],
)
def test_recommendation_that_is_no_learning_rate(tmp_path, found):
    file = write(tmp_path / "a.npz", {"agent": {"learning_rate": found}})
    message = (
        f"{file}: the header's provenance.agent.learning_rate is {found!r:.100}; expected a posit"
    )
    with pytest.raises(disco.RuleFileError, match=re.escape(message)):
        make_contenders([file], CONFIG)
    # Who chooses another does not need it.
    config = dataclasses.replace(CONFIG, rule_learning_rate=0.5)
    assert make_contenders([file], config)[-1].agent.learning_rate == 0.5


@pytest.mark.parametrize("found", [None, [], ["learning_rate"], "learning_rate", 7, True])
@pytest.mark.parametrize("name", ["provenance", "agent"])
def test_provenance_of_another_form(tmp_path, name, found):
    provenance = found if name == "provenance" else {"agent": found}
    file = write(tmp_path / "a.npz", provenance)
    path = {"provenance": "provenance", "agent": "provenance.agent"}[name]
    message = f"{file}: the header's {path} is {found!r}; expected names."
    with pytest.raises(disco.RuleFileError, match=re.escape(message)):
        make_contenders([file], CONFIG)
