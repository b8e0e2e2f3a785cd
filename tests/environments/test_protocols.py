"""Published protocols of the suites."""

import pytest

import environments
from environments import EnvironmentNameError, registry
from evaluation import published as published_scores


@pytest.mark.parametrize("suite", registry.suites())
def test_every_suite_has_a_protocol(suite):
    protocol = environments.protocol(suite)
    assert protocol.frames_per_action >= 1
    assert set(protocol.scores) <= set(published_scores.METRICS)
    assert all(", https://" in paper for paper in protocol.papers)
    assert protocol.papers or suite in (
        "diagnostic",
        "grid_heldout",
        "mdp_generated",
    )  # Which no paper has.


def test_ataris_protocols():
    protocol = environments.protocol("atari57")
    assert (protocol.budget_frames, protocol.frames_per_action) == (200_000_000, 4)
    assert protocol.max_episode_frames == 108_000
    assert environments.protocol("atari100k").budget_frames == 400_000


def test_protocols_name_the_scores_that_papers_report():
    scores = {
        member: environments.protocol(suite).scores
        for suite in registry.suites()
        for member in registry.members_of(suite)
    }
    # bsuite's own scores are of experiments, whose settings are environments.
    scores |= {name.rpartition("/")[0]: kinds for name, kinds in scores.items() if "bsuite" in name}
    for table in published_scores.published_tables():
        for score in table.scores:
            if "mnist" not in score.task:  # The suite has no experiments on MNIST.
                assert score.metric in scores[score.task]


def test_unknown_suites_are_refused():
    with pytest.raises(EnvironmentNameError, match=r"no suite 'atari75'.*'atari57'"):
        environments.protocol("atari75")
