"""The world model's predictions on held-out experience, compared with what happens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from agents import compilation, model_predictions, pictures
from agents.dreamer import distributions, losses, sequences
from agents.dreamer.losses import Scales
from agents.dreamer.model import Model, Params
from agents.dreamer.rssm import State, embed_action, initial_state
from agents.dreamer.sequences import Batch
from agents.protocol import Examination, OpenLoop

CONTEXT, PREDICTED = 5, 45  # Observed steps, and steps of the open-loop prediction after them.

_FRAMES = 20  # Of a picture.


class Predictions(NamedTuple):
    """The model's predictions of sequences.

    Attributes:
      reward: of each step, from the model state that includes the step's observation, `[T, B]`.
      continue_probability: that the episode continues after the step, likewise.
      observation: by name, `[C + P, B, ...]`: the context's reconstructions, followed by open-loop
        predictions from the actions alone.
    """

    reward: Float[Array, "T B"]
    continue_probability: Float[Array, "T B"]
    observation: dict[str, Array]


@compilation.jit_compiled_fast(static_argnums=(0, 5))
def predict(
    model: Model, params: Params, scales: Scales, batch: Batch, key: PRNGKeyArray, num_steps: int
) -> Predictions:
    """Return predictions of sequences `[T, B]`, which begin with an episode's first step.

    `num_steps` is C + P.
    """
    posterior_key, prior_key = jax.random.split(key)
    start = initial_state(model.config, batch.reward.shape[1])
    states = sequences.observe(model, params, start, batch, posterior_key).states
    continue_probability = jax.nn.sigmoid(model.continuation(params, states.features))
    if not model.config.is_v1:
        continue_probability = jnp.minimum(1.0, continue_probability / model.config.discount)

    actions = embed_action(model.actions, batch.action)[CONTEXT:num_steps]
    context = jax.tree.map(lambda x: x[:CONTEXT], states)
    last = jax.tree.map(lambda x: x[-1], context)
    predicted = _open_loop(model, params, last, actions, prior_key)
    shown = jax.tree.map(lambda *x: jnp.concatenate(x), context, predicted)
    decoded = model.decode(params, shown.h, shown.flat_z)
    reward = model.regression.mean(model.reward(params, states.features))
    is_scaled = model.config.ablation == "RewardNorm"
    return Predictions(
        reward=reward * losses.reward_divisor(scales) if is_scaled else reward,
        continue_probability=continue_probability,
        observation={name: model.observations[name].decoded(x) for name, x in decoded.items()},
    )


def _open_loop(
    model: Model, params: Params, start: State, actions: Float[Array, "T B A"], key: PRNGKeyArray
) -> State:
    """Return the model states `[T, B]` that follow others, by actions and the prior alone."""

    def step(state: State, row: tuple[Array, Array]) -> tuple[State, State]:
        action, t = row
        h = model.advance(params, state, action)
        log_p = model.prior(params, h)
        state = State(h, distributions.sample(jax.random.fold_in(key, t), log_p))
        return state, state

    return jax.lax.scan(step, start, (actions, jnp.arange(len(actions))))[1]


@compilation.jit_compiled_fast(static_argnums=(0, 4))
def _at_intervals(
    model: Model, params: Params, batch: Batch, key: PRNGKeyArray, interval: int
) -> dict[str, Array]:
    """Return predictions of observations, by name, `[T, ...]`, as `imagine` describes them."""
    posterior_key, prior_key = jax.random.split(key)
    start = initial_state(model.config, 1)
    observed = sequences.observe(model, params, start, batch, posterior_key).states
    starts: State = jax.tree.map(lambda x: x[::interval, 0], observed)
    actions = embed_action(model.actions, batch.action)[:, 0]
    length, number = len(actions), len(starts.h)
    actions = jnp.pad(actions, ((0, number * interval - length), (0, 0)))
    actions = jnp.swapaxes(actions.reshape(number, interval, -1), 0, 1)[1:]
    predicted = _open_loop(model, params, starts, actions, prior_key)

    def in_order(first: Array, later: Array) -> Array:
        rows = jnp.swapaxes(jnp.concatenate([first[None], later]), 0, 1)
        return rows.reshape(number * interval, 1, *rows.shape[2:])[:length]

    states: State = jax.tree.map(in_order, starts, predicted)
    # Step by step, as a thousand decoded frames take much memory.
    decoded = jax.lax.map(lambda x: model.decode(params, x.h, x.flat_z), states)
    return {name: model.observations[name].decoded(x)[:, 0] for name, x in decoded.items()}


def imagine(
    model: Model, params: Params, batch: Batch, key: PRNGKeyArray, interval: int
) -> OpenLoop:
    """Predict the first observation that is a picture (`agents.protocol.ImaginingAgent`).

    At each start, every `interval` steps, the model state is that of all earlier steps of the
    episode. `batch` is one sequence that begins with an episode's first step, `[T, 1]`; NumPy.
    """
    if interval < 2:
        raise ValueError(f"The interval is {interval}; expected 2 or more, to predict 1 step.")
    if not (pictured := _pictured(model)):
        raise ValueError(f"None of the observations {sorted(model.observations)} is a picture.")
    name = pictured[0]
    predicted = jax.device_get(_at_intervals(model, params, batch, key, interval)[name])
    observed = np.asarray(batch.observation[name])[:, 0]
    return OpenLoop(observed, predicted, np.arange(len(observed)) % interval)


def _pictured(model: Model) -> list[str]:
    """Return the names of the observations that are pictures, in order."""
    return sorted(name for name, x in model.observation_parts if pictures.is_picture(x.spec))


def figures(batch: Batch, predictions: Predictions) -> dict[str, float]:
    """Return errors of the predicted rewards and terminations.

    Steps that begin an episode are left out.
    """
    counts = ~np.asarray(batch.is_first)
    reward = np.asarray(predictions.reward)[counts]
    end_probability = 1.0 - np.asarray(predictions.continue_probability)[counts]
    actual, ends = np.asarray(batch.reward)[counts], np.asarray(batch.is_terminal)[counts]
    return model_predictions.figures(actual, reward, ends, end_probability)


def examine(
    model: Model, params: Params, scales: Scales, batch: Batch, key: PRNGKeyArray
) -> Examination:
    """Compare the model's predictions with held-out experience, `[T, B]`, NumPy.

    Each environment's first step is an episode's first.

    Returns:
      Calibration metrics and, if observations are pictures, `prediction.png`.
    """
    num_steps = min(CONTEXT + PREDICTED, first_episode(batch) + 1)
    predictions = jax.device_get(predict(model, params, scales, batch, key, num_steps))
    pictured = _pictured(model)
    drawn = {}
    if pictured and num_steps > CONTEXT:
        expected = np.asarray(predictions.observation[pictured[0]])[:, 0]
        observed = np.asarray(batch.observation[pictured[0]])[: len(expected), 0]
        drawn["prediction.png"] = model_predictions.prediction(observed, expected, CONTEXT, _FRAMES)
    return Examination(figures(batch, predictions), drawn)


def first_episode(batch: Batch) -> int:
    """Return the length of the first environment's first episode, or of its part in the batch."""
    ends = np.flatnonzero(np.asarray(batch.is_last)[:, 0])
    return int(ends[0]) if len(ends) else len(batch.reward) - 1
