import numpy as np

from evaluation.results import Episodes, LearningCurves, join_intervals


def curves_of() -> LearningCurves:
    """Task 0 has episodes in every other interval, task 1 in none."""
    count = np.zeros((2, 1, 6))
    count[0, 0, 1::2] = 2.0
    return_sum = 3.0 * count * np.arange(6)
    return LearningCurves(
        updates=np.array([10, 20, 30, 40, 50, 60]),
        curve=Episodes(count=count, return_sum=return_sum),
        window=Episodes(count=np.full((2, 1), 2.0), return_sum=np.zeros((2, 1))),
        results={},
        is_finite=np.ones((2, 1), bool),
        start_seconds=0.0,
        train_seconds=1.0,
        devices=(),
    )


def test_intervals_are_joined_until_each_has_an_episode():
    updates, (joined,) = join_intervals([curves_of()], np.array([True, False]))
    np.testing.assert_array_equal(updates, [20, 40, 60])
    np.testing.assert_array_equal(joined.mean_return, [[[3.0, 9.0, 15.0]]])
