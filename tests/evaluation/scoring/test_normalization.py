import numpy as np

from environments.registry import members_of
from evaluation.scoring.references import Reference, normalize, published_scales, reference_scale


def test_normalised_scores():
    scores = np.array([[10.0, 30.0], [-5.0, 0.0]])
    low, high = np.array([10.0, -10.0]), np.array([20.0, 0.0])
    np.testing.assert_allclose(normalize(scores, low, high), [[0, 2], [0.5, 1]])
    capped = normalize(scores, low, high, cap=1.5)
    np.testing.assert_allclose(capped, [[0, 1.5], [0.5, 1]])


def test_a_scale_is_of_the_tasks_that_count():
    scales = {"a": Reference("", 1.0, 3.0, None, ""), "c": Reference("", -3.0, 7.0, 100, "")}
    scale = reference_scale("abc", scales, counted=np.array([True, False, True]))
    assert "the optimum on 1 tasks, the best of long runs on 1" in scale.definition
    np.testing.assert_array_equal(scale.counted, [True, False, True])
    np.testing.assert_allclose(scale.normalize(np.full((3, 1), 2.0)), [[0.5], [0.5]])


def test_papers_define_scales_only_on_tasks_that_all_have_references():
    human, saber = published_scales(["atari/Pong", "atari/Breakout"])
    assert (human.name, human.cap, saber.name, saber.cap) == (
        "Human-normalised",
        np.inf,
        "SABER",
        2.0,
    )
    assert human.low.shape == human.high.shape == (2,)
    np.testing.assert_allclose(human.normalize(human.high[:, None]), [[1.0], [1.0]])
    np.testing.assert_allclose(saber.normalize(100.0 * saber.high[:, None]), [[2.0], [2.0]])
    assert published_scales(["atari/Pong", "catch/5x5"]) == []


def test_the_references_that_others_are_normalised_by_define_the_scale():
    """DreamerV3's table, the first, has them as integers."""
    for tasks in (["atari100k/Breakout"], members_of("atari100k")):
        [human] = published_scales(tasks)
        assert "Micheli et al. 2023" in human.definition
        assert "Hafner" not in human.definition
        i = tasks.index("atari100k/Breakout")
        assert (human.low[i], human.high[i]) == (1.7, 30.5)
