"""Comparisons of a world model's predictions with held-out experience."""

import numpy as np
from jaxtyping import UInt8

from agents import pictures

_BINS = 10


def calibration_error(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return the expected calibration error over ten bins with equal numbers of predictions."""
    order = np.argsort(predicted, axis=None, kind="stable")
    groups = zip(
        np.array_split(predicted.ravel()[order], _BINS),
        np.array_split(actual.ravel()[order], _BINS),
        strict=True,
    )
    gaps = [len(x) * abs(x.mean() - y.mean()) for x, y in groups if len(x)]
    return float(sum(gaps) / predicted.size)


def figures(
    reward: np.ndarray, predicted_reward: np.ndarray, end: np.ndarray, end_probability: np.ndarray
) -> dict[str, float]:
    """Return errors of predicted rewards and terminations, of the same steps each."""
    return {
        "held_out/reward": float(reward.mean()),
        "held_out/reward_stddev": float(reward.std()),
        "held_out/predicted_reward": float(predicted_reward.mean()),
        "held_out/reward_rmse": float(np.sqrt(np.mean(np.square(predicted_reward - reward)))),
        "held_out/reward_calibration_error": calibration_error(predicted_reward, reward),
        "held_out/ends": float(end.mean()),
        "held_out/predicted_ends": float(end_probability.mean()),
        "held_out/ends_brier": float(np.mean(np.square(end_probability - end))),
        "held_out/ends_calibration_error": calibration_error(end_probability, end),
    }


def prediction(
    observed: np.ndarray, predicted: np.ndarray, num_context: int, num_frames: int
) -> bytes:
    """Draw a prediction: rows of observations, predictions and their difference, as a PNG file.

    Args:
      observed: what happened, `[T, H, W, ...]`.
      predicted: what the model expected; the first `num_context` are reconstructions.
      num_context: number of observed steps before the prediction.
      num_frames: of the picture, at most.
    """
    later = np.linspace(num_context, len(predicted) - 1, num_frames - num_context)
    shown = [*range(num_context), *np.unique(later.round().astype(int))]
    brightest = float(max(observed.max(), predicted.max()))
    columns = [compared(observed[i], predicted[i], brightest) for i in shown]
    caption = (
        f"the model's prediction: above what happened, in the middle what it expected, below the"
        f" difference; the first {num_context} steps were seen, the other"
        f" {len(predicted) - num_context} are predicted from actions alone"
    )
    return pictures.as_png(list(zip(*columns, strict=True)), caption)


def compared(
    observed: np.ndarray, predicted: np.ndarray, brightest: float
) -> tuple[UInt8[np.ndarray, "H W 3"], UInt8[np.ndarray, "H W 3"], UInt8[np.ndarray, "H W 3"]]:
    """Return an observation and its prediction as images, and their absolute difference.

    Args:
      observed: what happened, `[H, W, ...]`.
      predicted: likewise, by a model.
      brightest: the number that is drawn brightest (`pictures.as_image`).
    """
    first, second = (pictures.as_image(x, brightest) for x in (observed, predicted))
    return first, second, np.abs(first.astype(np.int16) - second).astype(np.uint8)
