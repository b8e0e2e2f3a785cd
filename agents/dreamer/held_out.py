"""What a trained model expects, beside what happens: on experience that was never learned from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from agents import compilation, pictures
from agents.dreamer import distributions, losses
from agents.dreamer.distributions import symexp
from agents.dreamer.losses import Batch, Scales
from agents.dreamer.model import Model, Params
from agents.dreamer.networks import is_image, num_classes
from agents.dreamer.rssm import State, embed_action, initial_state
from agents.protocol import Examination

CONTEXT, PREDICTED = 5, 45  # Steps that are seen, and those that are then predicted.

_BINS = 10
_FRAMES = 20  # Of a picture.


class Foreseen(NamedTuple):
    """What the model expects of sequences.

    Attributes:
      reward: of each step, once its observation was seen, `[T, B]`.
      goes_on: probability that the episode does, likewise.
      observation: by name, `[C + P, B, ...]`: of the context what was made of it, and then what the
        model expects from the actions alone.
    """

    reward: Float[Array, "T B"]
    goes_on: Float[Array, "T B"]
    observation: dict[str, Array]


@compilation.jit_compiled_fast(static_argnums=(0, 5))
def foresee(
    model: Model, params: Params, scales: Scales, batch: Batch, key: PRNGKeyArray, num_steps: int
) -> Foreseen:
    """Follows sequences with the model.

    Args:
      model: the networks.
      params: theirs.
      scales: of the losses.
      batch: sequences that begin with an episode, `[T, B]`.
      key: of samples.
      num_steps: C + P.
    """
    seen_key, dream_key = jax.random.split(key)
    start = initial_state(model.config, batch.reward.shape[1])
    states = losses.observe(model, params, start, batch, seen_key).states
    goes_on = jax.nn.sigmoid(model.continuation(params, states.features))
    if model.config.learns_discount:
        goes_on = jnp.minimum(1.0, goes_on / model.config.discount)

    def dream(state: State, row):
        action, t = row
        h = model.advance(params, state, action)
        log_p = model.prior(params, h)
        state = State(h, distributions.sample(jax.random.fold_in(dream_key, t), log_p))
        return state, state

    actions = embed_action(model.actions, batch.action)[CONTEXT:num_steps]
    context = jax.tree.map(lambda x: x[:CONTEXT], states)
    last = jax.tree.map(lambda x: x[-1], context)
    _, dreamt = jax.lax.scan(dream, last, (actions, jnp.arange(len(actions))))
    shown = jax.tree.map(lambda *x: jnp.concatenate(x), context, dreamt)
    decoded = model.decode(params, shown.h, shown.flat_z)
    reward = model.regression.mean(model.reward(params, states.features))
    return Foreseen(
        reward=reward * losses.reward_divisor(scales) if model.config.reward_norm else reward,
        goes_on=goes_on,
        observation={name: _as_seen(model, name, x) for name, x in decoded.items()},
    )


def _as_seen(model: Model, name: str, decoded: Array) -> Array:
    """A prediction as the observation would be."""
    spec = model.observations[name]
    if is_image(spec):
        return (255.0 * jnp.clip(decoded, 0.0, 1.0)).astype(jnp.uint8)
    if num_classes(spec):
        return jnp.argmax(decoded, axis=-1).astype(spec.dtype)
    return symexp(decoded) if model.config.symlog_vectors else decoded


def calibration_error(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Expected calibration error: mean distance between means, in tenths of the predictions."""
    order = np.argsort(predicted, axis=None, kind="stable")
    groups = zip(
        np.array_split(predicted.ravel()[order], _BINS),
        np.array_split(actual.ravel()[order], _BINS),
        strict=True,
    )
    gaps = [len(x) * abs(x.mean() - y.mean()) for x, y in groups if len(x)]
    return float(sum(gaps) / predicted.size)


def figures(batch: Batch, foreseen: Foreseen) -> dict[str, float]:
    """How good predicted rewards and ends are.

    Steps that begin an episode have neither.
    """
    counts = ~np.asarray(batch.is_first)
    reward, goes_on = np.asarray(foreseen.reward)[counts], np.asarray(foreseen.goes_on)[counts]
    actual, ends = np.asarray(batch.reward)[counts], np.asarray(batch.is_terminal)[counts]
    return {
        "held_out/reward": float(actual.mean()),
        "held_out/reward_stddev": float(actual.std()),
        "held_out/predicted_reward": float(reward.mean()),
        "held_out/reward_rmse": float(np.sqrt(np.mean(np.square(reward - actual)))),
        "held_out/reward_calibration_error": calibration_error(reward, actual),
        "held_out/ends": float(ends.mean()),
        "held_out/predicted_ends": float((1.0 - goes_on).mean()),
        "held_out/ends_brier": float(np.mean(np.square((1.0 - goes_on) - ends))),
        "held_out/ends_calibration_error": calibration_error(1.0 - goes_on, ends),
    }


def examine(
    model: Model, params: Params, scales: Scales, batch: Batch, key: PRNGKeyArray
) -> Examination:
    """Compare predictions with experience that was never learned from.

    Args:
      model: the networks.
      params: theirs.
      scales: of the losses.
      batch: sequences that begin with an episode, `[T, B]`; NumPy.
      key: of samples.

    Returns:
      Calibration figures and, where observations are pictures, `prediction.png`.
    """
    num_steps = min(CONTEXT + PREDICTED, first_episode(batch) + 1)
    foreseen = jax.device_get(foresee(model, params, scales, batch, key, num_steps))
    pictured = [name for name, spec in model.observations.items() if pictures.is_picture(spec)]
    drawn = {}
    if pictured and num_steps > CONTEXT:
        drawn["prediction.png"] = prediction(batch, foreseen, pictured[0])
    return Examination(figures(batch, foreseen), drawn)


def first_episode(batch: Batch) -> int:
    """Steps after the first of the first environment's first episode, as far as it was seen."""
    ends = np.flatnonzero(np.asarray(batch.is_last)[:, 0])
    return int(ends[0]) if len(ends) else len(batch.reward) - 1


def prediction(batch: Batch, foreseen: Foreseen, name: str) -> bytes:
    """Open-loop prediction: what happened, what the model made of it, and how far they differ."""
    expected = np.asarray(foreseen.observation[name])[:, 0]
    seen = np.asarray(batch.observation[name])[: len(expected), 0]
    later = np.linspace(CONTEXT, len(expected) - 1, _FRAMES - CONTEXT).round().astype(int)
    shown = [*range(CONTEXT), *np.unique(later)]
    brightest = float(max(seen.max(), expected.max()))
    above = [pictures.as_image(seen[i], brightest) for i in shown]
    middle = [pictures.as_image(expected[i], brightest) for i in shown]
    below = [
        np.abs(x.astype(np.int16) - y).astype(np.uint8) for x, y in zip(above, middle, strict=True)
    ]
    caption = (
        f"the model's prediction: above what happened, in the middle what it expected, below the"
        f" difference; the first {CONTEXT} steps were seen, the other"
        f" {len(expected) - CONTEXT} are predicted from actions alone"
    )
    return pictures.as_png([above, middle, below], caption)
