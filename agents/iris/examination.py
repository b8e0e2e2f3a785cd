"""The world model's reconstructions and predictions on held-out experience (IRIS, section 3.3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from agents import compilation, model_predictions, pictures
from agents.iris import actor_critic, imagination
from agents.iris.learner import LearnerState, as_bytes, as_fractions
from agents.iris.model import Model, Params
from agents.iris.world_model import Cache
from agents.protocol import Batch, Examination, OpenLoop

CONTEXT = 2  # Observed frames before a prediction (figure 3).
_FRAMES = 16  # Of a picture, at most.
_SEQUENCES = 64  # Of the figures, at most.
_REWARD, _END = (240, 220, 40), (220, 40, 40)  # Colours of marks.


class Predictions(NamedTuple):
    """The world model's predictions along sequences.

    Attributes:
      reward: the expected sign of each step's reward.
      end_probability: of each step.
      token_loss: cross-entropy of the next frame's tokens.
    """

    reward: Float[Array, "B L"]
    end_probability: Float[Array, "B L"]
    token_loss: Float[Array, "B L-1"]


@compilation.jit_compiled_fast(static_argnums=0)
def predict(
    model: Model, params: Params, tokens: Int[Array, "B L K"], action: Int[Array, "B L"]
) -> Predictions:
    """Return the predictions of sequences of frames and actions."""
    logits = model.predict(params, tokens, action, None)
    reward = jax.nn.softmax(logits.reward) @ jnp.array([-1.0, 0.0, 1.0])
    # The last of a step's logits are of the next frame's first token.
    log_p = jax.nn.log_softmax(
        jnp.concatenate([logits.next_token[:, :-1, -1:], logits.next_token[:, 1:, :-1]], axis=2)
    )
    token_loss = -jnp.take_along_axis(log_p, tokens[:, 1:, :, None], axis=-1)[..., 0]
    return Predictions(reward, jax.nn.softmax(logits.end)[..., 1], jnp.mean(token_loss, axis=-1))


@compilation.jit_compiled_fast(static_argnums=0)
def predict_frames(
    model: Model,
    params: Params,
    frames: Float[Array, "T B S S C"],
    action: Int[Array, "T B"],
    key: PRNGKeyArray,
) -> Float[Array, "T B S S C"]:
    """Return predicted frames of sequences, after `CONTEXT` reconstructed ones.

    Frames have entries in [0, 1]; an action follows each. A world model whose memory is full goes
    on from the last frame that it predicted.
    """
    seen = jnp.stack([model.tokens(params, x) for x in frames[:CONTEXT]])
    cache = model.empty_cache(frames.shape[1])
    for tokens, after in zip(seen[:-1], action[: CONTEXT - 1], strict=True):
        _, cache = model.feed_tokens(params, tokens, cache)
        _, cache = model.feed_actions(params, after[:, None], cache)
    _, cache = model.feed_tokens(params, seen[-1], cache)

    def step(carry: tuple[Array, Cache], row: tuple[Array, Array]):
        (tokens, cache), (action, key) = carry, row
        if len(frames) > model.config.memory_steps:
            needed = model.tokens_per_frame + 1
            cache = imagination.with_room(model, params, tokens, cache, needed)
        hidden, cache = model.feed_actions(params, action[:, None], cache)
        found, cache = imagination.next_frame(model, params, hidden[:, 0], cache, key)
        return (found, cache), found

    actions = action[CONTEXT - 1 : len(frames) - 1]
    keys = jax.random.split(key, len(actions))
    _, predicted = jax.lax.scan(step, (seen[-1], cache), (actions, keys))
    return jax.lax.map(lambda x: model.frames(params, x), jnp.concatenate([seen, predicted]))


def imagine(
    model: Model, params: Params, batch: Batch, key: PRNGKeyArray, interval: int
) -> OpenLoop:
    """Predict frames by the actions alone (`agents.protocol.ImaginingAgent`).

    At each start, every `interval` steps, the model reads `CONTEXT` frames, and knows none before
    them. `batch` is of one environment, NumPy.
    """
    if interval <= CONTEXT:
        raise ValueError(
            f"The interval is {interval}; expected {CONTEXT + 1} or more, as IRIS reads {CONTEXT}"
            " frames before it predicts."
        )
    observed = np.asarray(batch.observation)[:, 0]
    length = len(observed)
    number = -(-length // interval)

    def cut(x: np.ndarray) -> np.ndarray:
        x = np.pad(x, ((0, number * interval - len(x)), *((0, 0),) * (x.ndim - 1)))
        return x.reshape(number, interval, *x.shape[1:]).swapaxes(0, 1)

    frames, actions = cut(observed), jnp.asarray(cut(np.asarray(batch.action)[:, 0]))
    predicted = predict_frames(model, params, as_fractions(jnp.asarray(frames)), actions, key)
    predicted = np.asarray(as_bytes(predicted)).swapaxes(0, 1)
    predicted = predicted.reshape(-1, *predicted.shape[2:])[:length]
    steps = np.maximum(0, np.arange(length) % interval - CONTEXT + 1)
    return OpenLoop(observed, predicted, steps)


def examine(model: Model, state: LearnerState, batch: Batch, key: PRNGKeyArray) -> Examination:
    """Compare the world model with transitions of new episodes, NumPy.

    Each environment's first row begins an episode.

    Returns:
      Calibration metrics, and pictures: `reconstruction.png` of frames and their reconstructions,
      `prediction.png` of what happened beside what the model predicts from the first `CONTEXT`
      frames and the actions (figure 3), `imagination.png` of a trajectory in the world model
      (figure 4).
    """
    length = model.config.memory_steps
    sequences = _sequences(batch, length)
    tokens_of = compilation.jit_compiled_fast(model.tokens)
    tokens = jnp.stack(
        [tokens_of(state.params, as_fractions(jnp.asarray(x))) for x in sequences.frames]
    )
    found = jax.device_get(predict(model, state.params, tokens, jnp.asarray(sequences.action)))
    counts = sequences.counts
    figures = model_predictions.figures(
        np.sign(sequences.reward)[counts],
        found.reward[counts],
        sequences.end[counts],
        found.end_probability[counts],
    )
    figures["held_out/token_loss"] = float(found.token_loss[counts[:, 1:]].mean())
    return Examination(figures, _pictures(model, state.params, batch, key))


class _Sequences(NamedTuple):
    """Sequences of L steps, NumPy; `counts` is False for the steps after an episode's end."""

    frames: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    end: np.ndarray
    counts: np.ndarray


def _sequences(batch: Batch, length: int) -> _Sequences:
    """Return sequences of a batch, one after the other."""
    number = max(1, len(batch.reward) // length)
    length = min(length, len(batch.reward))

    def cut(x: np.ndarray) -> np.ndarray:
        x = x[: number * length].reshape(number, length, *x.shape[1:])
        x = np.moveaxis(x, 2, 0)  # [B, number, length, ...].
        return x.reshape(-1, *x.shape[2:])[:_SEQUENCES]

    return _Sequences(
        frames=cut(np.asarray(batch.observation)[:-1]),
        action=cut(np.asarray(batch.action)),
        reward=cut(np.asarray(batch.reward)),
        end=cut(np.asarray(batch.last) & (np.asarray(batch.discount) == 0)),
        counts=np.cumprod(cut(np.asarray(batch.mask)), axis=1) > 0,
    )


def _pictures(model: Model, params: Params, batch: Batch, key: PRNGKeyArray) -> dict[str, bytes]:
    """Draw the first environment's first episode, and a trajectory imagined from its beginning."""
    ends = np.flatnonzero(np.asarray(batch.last)[:, 0])
    length = int(ends[0]) + 1 if len(ends) else len(batch.reward)
    length = min(length + 1, model.config.memory_steps)
    observed = np.asarray(batch.observation)[:length, 0]
    frames = as_fractions(jnp.asarray(observed))
    predict_key, imagine_key = jax.random.split(key)
    rebuilt = np.asarray(as_bytes(compilation.jit_compiled_fast(model.reconstruct)(params, frames)))
    spaced = np.unique(np.linspace(0, length - 1, _FRAMES).round().astype(int))
    caption = "frames above, and below their reconstructions from tokens"
    rows = [[pictures.as_image(x[i]) for i in spaced] for x in (observed, rebuilt)]
    drawn = {"reconstruction.png": pictures.as_png(rows, caption)}
    if length > CONTEXT:
        action = jnp.asarray(np.asarray(batch.action)[:length, 0])
        action = jnp.pad(action, (0, length - len(action)))
        predicted = predict_frames(model, params, frames[:, None], action[:, None], predict_key)
        drawn["prediction.png"] = model_predictions.prediction(
            observed, np.asarray(as_bytes(predicted[:, 0])), CONTEXT, _FRAMES
        )
    drawn["imagination.png"] = _imagination(model, params, frames[:1], imagine_key)
    return drawn


def _imagination(
    model: Model, params: Params, frame: Float[Array, "1 S S C"], key: PRNGKeyArray
) -> bytes:
    """Draw an imagined trajectory, with a bar below frames of a reward or an end (figure 4)."""
    config = model.config
    state = actor_critic.initial_state(config, 1)

    @compilation.jit_compiled_fast
    def imagine(params: Params, frame: Array, key: PRNGKeyArray) -> imagination.Imagined:
        tokens = model.tokens(params, frame)
        return imagination.imagine(model, params, tokens, state, key, config.horizon)

    found = jax.device_get(imagine(params, frame, key))
    images = []
    frames = np.asarray(as_bytes(jnp.asarray(found.frames[:, 0])))
    for pixels, reward, end in zip(frames, found.reward, found.end, strict=True):
        image = pictures.as_image(pixels).copy()
        for is_marked, rows, colour in (
            (reward[0] != 0, slice(-3, None), _REWARD),
            (end[0], slice(None, 3), _END),
        ):
            if is_marked:
                image[rows] = colour
        images.append(image)
    caption = (
        "a trajectory in the world model; a yellow bar below a frame marks a predicted reward of"
        " its action, a red bar above it a predicted end"
    )
    return pictures.as_png([images[:_FRAMES]], caption)
