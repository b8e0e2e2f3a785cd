import numpy as np

from evaluation.scoring.suite_scores import crafter_score


def test_crafter_score_by_hand():
    """exp(mean(log(1 + percent))) - 1: of 0% and 99% it is sqrt(100) - 1."""
    np.testing.assert_allclose(crafter_score(np.array([[0.0, 0.99]])), [9.0])
    np.testing.assert_allclose(crafter_score(np.ones((3, 22))), [100.0] * 3)
