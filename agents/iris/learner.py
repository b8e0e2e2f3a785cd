"""IRIS' three updates, as pure functions of the learning state (IRIS, algorithm 1)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt8

from agents.iris import losses
from agents.iris.config import IrisConfig
from agents.iris.model import (
    ACTOR_CRITIC,
    CODEBOOK,
    TOKENIZER,
    WORLD_MODEL,
    Model,
    Params,
    imagine,
)
from agents.optimizers import cosine_schedule
from agents.protocol import Batch

Metrics = dict[str, Float[Array, ""]]

# Networks by kind of update, in the updates' order.
_NETWORKS: dict[str, tuple[str, ...]] = {
    "tokenizer": TOKENIZER,
    WORLD_MODEL: (WORLD_MODEL,),
    ACTOR_CRITIC: (ACTOR_CRITIC,),
}
KINDS = tuple(_NETWORKS)
# The authors' configuration files have these in all settings (`agents.iris.config`).
LAMBDA = 0.95  # λ of the λ-returns (appendix B).
WEIGHT_DECAY = 0.01  # Of the Transformer's linear weights.
MAX_GRADIENT_NORM = 10.0  # Of each of the three networks.
RECONSTRUCTION = "reconstruction"  # Name of an extra of the replay.
DEAD = 100  # Updates without its use after which a code counts as dead.

# In the first updates of the autoencoder of `tiles` dead codes, and all codes at first, become
# feature vectors of the batch. Its learning rate falls along half a cosine to a fraction, where it
# stays: codes that change late change what the world model has learned to predict.
REVIVAL_UPDATES = 400
DECAY_UPDATES, LEAST_LEARNING_RATE = 1_600, 1 / 30


class IrisState(NamedTuple):
    """The learning state.

    Attributes:
      params: of all networks.
      optimizers: states by kind of update.
      unused: updates of the autoencoder since each code was used last.
      perceptual: parameters of the perceptual loss; None without it.
    """

    params: Params
    optimizers: dict[str, optax.OptState]
    unused: Int[Array, "N"]
    perceptual: PyTree[Array] | None


def init(
    model: Model, key: PRNGKeyArray, perceptual_params: PyTree[Array] | None = None
) -> IrisState:
    """Return the state before the first update."""
    params, config = model.init(key), model.config
    return IrisState(
        params=params,
        optimizers={kind: _optimizer(config, kind).init(_of(params, kind)) for kind in KINDS},
        unused=jnp.full(config.vocabulary, DEAD if config.tile else 0, jnp.int32),
        perceptual=perceptual_params,
    )


def update_tokenizer(
    model: Model, state: IrisState, frames: UInt8[Array, "B S S C"], key: PRNGKeyArray
) -> tuple[IrisState, UInt8[Array, "B S S C"], Metrics]:
    """Make one update of the autoencoder (section 2.1, appendix A.1).

    The key is that of the choice of features for dead codes.

    Returns:
      The learning state, the frames' reconstructions by the autoencoder before the update, and
      metrics.
    """
    images = as_fractions(frames)
    if model.config.tile:
        updates = optax.tree.get(state.optimizers["tokenizer"], "count", filtering=_is_adams)
        codebook = jax.lax.cond(
            updates < REVIVAL_UPDATES,
            lambda: _revived(model, state, images, key),
            lambda: state.params[CODEBOOK],
        )
        state = state._replace(params=state.params | {CODEBOOK: codebook})

    loss = functools.partial(losses.tokenizer_loss, model, images, state.perceptual)
    state, total, (tokens, decoded, parts), norm = _step(model, state, "tokenizer", loss)
    used = jnp.zeros_like(state.unused).at[tokens.ravel()].add(1)
    state = state._replace(unused=jnp.where(used > 0, 0, state.unused + 1))
    frequency = used / tokens.size
    metrics = {
        "loss": total,
        **{f"loss/{name}": value for name, value in parts.items()},
        "gradient_norm": norm,
        "codes_used": jnp.sum(used > 0, dtype=jnp.float32),
        "codes_perplexity": jnp.exp(-jnp.sum(jax.scipy.special.xlogy(frequency, frequency))),
        "codes_dead": jnp.sum(state.unused >= DEAD, dtype=jnp.float32),
    }
    return state, as_bytes(jnp.clip(0.5 * (decoded + 1.0), 0.0, 1.0)), metrics


def _revived(
    model: Model, state: IrisState, images: Float[Array, "B S S C"], key: PRNGKeyArray
) -> Float[Array, "N E"]:
    """Return the codebook with feature vectors of images in the place of dead codes.

    They are drawn in proportion to their squared distances from the other codes, as k-means++
    draws: uniformly drawn ones would nearly all be of the background.
    """
    codebook, is_dead = state.params[CODEBOOK], state.unused >= DEAD
    features = model.encode(state.params, images).reshape(-1, codebook.shape[1])
    distances = jnp.sum(jnp.square(features[:, None] - codebook), axis=-1)
    nearest = jnp.min(distances, axis=1, where=~is_dead, initial=jnp.inf)
    weight = jnp.where(jnp.all(is_dead), 0.0, jnp.log(nearest))
    chosen = features[jax.random.categorical(key, weight, shape=codebook.shape[:1])]
    return jnp.where(is_dead[:, None], chosen, codebook)


def update_world_model(
    model: Model, state: IrisState, batch: Batch, key: PRNGKeyArray
) -> tuple[IrisState, Metrics]:
    """Make one update of the Transformer (section 2.2).

    It learns from L steps of each sequence, but not from those after the first episode.
    """
    frames: UInt8[Array, "L B S S C"] = batch.observation[:-1]
    end = batch.last & (batch.discount == 0)
    counts = in_first_episode(batch.mask, batch.last)
    params = state.params
    flat = as_fractions(frames).reshape(-1, *frames.shape[2:])
    tokens = model.tokens(params, flat).reshape(*frames.shape[:2], -1).swapaxes(0, 1)
    action, reward, end, counts = (x.T for x in (batch.action, batch.reward, end, counts))

    def loss(params: Params) -> tuple[Array, Metrics]:
        predicted = model.predict(params, tokens, action, key)
        parts = losses.world_model_losses(predicted, tokens, reward, end, counts)
        return sum(parts.values(), jnp.zeros(())), parts

    state, total, parts, norm = _step(model, state, WORLD_MODEL, loss)
    metrics = {f"loss/{name}": value for name, value in parts.items()}
    return state, {"loss": total, "gradient_norm": norm, **metrics}


def update_actor_critic(
    model: Model, state: IrisState, batch: Batch, key: PRNGKeyArray
) -> tuple[IrisState, Metrics]:
    """Make one update of the policy and the value in imagination (section 2.3).

    Imagination starts from the last frame but one of each sequence. The frames before it are the
    burn-in, of which only those of its episode count.
    """
    params, config = state.params, model.config
    counts = in_last_episode(batch.mask, batch.last)
    policy = model.burn_in(params, as_fractions(batch.extras[RECONSTRUCTION]), counts)
    tokens = model.tokens(params, as_fractions(batch.observation[-2]))
    imagined = imagine(model, params, tokens, policy, key, config.horizon)
    learned = jnp.broadcast_to(batch.mask[-1], imagined.end.shape)
    if config.tile:
        learned &= losses.until_end(imagined.end)

    def loss(params: Params) -> tuple[Array, tuple[Metrics, Array, Array]]:
        output = model.act_along(params, imagined.frames, policy)
        returns = losses.lambda_returns(
            imagined.reward,
            imagined.end,
            jax.lax.stop_gradient(output.value),
            config.discount,
            LAMBDA,
        )
        parts = losses.actor_critic_losses(
            output, imagined.action, returns, learned, config.entropy_cost
        )
        return sum(parts.values(), jnp.zeros(())), (parts, output.value, returns)

    state, total, (parts, value, returns), norm = _step(model, state, ACTOR_CRITIC, loss)
    return state, {
        "loss": total,
        **{f"loss/{name}": value for name, value in parts.items()},
        "gradient_norm": norm,
        "imagined_reward": jnp.mean(imagined.reward),
        "imagined_end": jnp.mean(imagined.end, dtype=jnp.float32),
        "value": jnp.mean(value),
        "return": jnp.mean(returns),
    }


def in_first_episode(mask: Bool[Array, "T B"], last: Bool[Array, "T B"]) -> Bool[Array, "T B"]:
    """Return which transitions are of the same episode as the first row."""
    return mask & jnp.concatenate([mask[:1], losses.all_before(_continues(mask, last))])


def in_last_episode(mask: Bool[Array, "T B"], last: Bool[Array, "T B"]) -> Bool[Array, "T-1 B"]:
    """Return which rows but the last, one before each transition, are of the last one's episode."""
    return losses.all_before(_continues(mask, last)[::-1])[::-1]


def _continues(mask: Bool[Array, "T B"], last: Bool[Array, "T B"]) -> Bool[Array, "T-1 B"]:
    """Return whether the row after each transition but the last is of the same episode.

    An episode's last observation is one of its rows, which a transition to the next episode follows
    (False in `mask`). It is not where the loss of a life ended the episode: there the next episode
    begins with it.
    """
    return mask[:-1] & ~(last[:-1] & mask[1:])


def as_fractions(frames: UInt8[Array, "*s"]) -> Float[Array, "*s"]:
    """Return frames with entries in [0, 1]."""
    return frames.astype(jnp.float32) / 255.0


def as_bytes(frames: Float[Array, "*s"]) -> UInt8[Array, "*s"]:
    """Return frames with entries in [0, 1] as images."""
    return jnp.round(255.0 * frames).astype(jnp.uint8)


def _of(params: Params, kind: str) -> Params:
    """Return the parameters that a kind of update learns."""
    return {name: params[name] for name in _NETWORKS[kind]}


def _optimizer(config: IrisConfig, kind: str) -> optax.GradientTransformation:
    """Return a kind's optimiser: Adam, with weight decay of the Transformer's linear weights."""
    adam = optax.adam(config.learning_rate)
    if kind == "tokenizer" and config.tile:
        fraction = cosine_schedule(DECAY_UPDATES, LEAST_LEARNING_RATE)
        adam = optax.adam(lambda count: config.learning_rate * fraction(count))
    if kind == WORLD_MODEL:
        adam = optax.adamw(config.learning_rate, weight_decay=WEIGHT_DECAY, mask=_linear_weights)
    return optax.chain(optax.clip_by_global_norm(MAX_GRADIENT_NORM), adam)


def _is_adams(path: Any, _: Any) -> bool:
    """Return whether a leaf of an optimiser's state is Adam's own."""
    return getattr(path[-1], "tuple_name", "") == "ScaleByAdamState"


def _linear_weights(params: Params) -> Any:
    """Return which of the parameters are weights of linear layers."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "w", params)


def _step(
    model: Model, state: IrisState, kind: str, loss: Any
) -> tuple[IrisState, Array, Any, Array]:
    """Make one step of a kind's optimiser.

    `loss` returns the loss and further results, of the parameters of all networks.

    Returns:
      The learning state, the loss, its further results, and the gradient's norm.
    """
    trained = _of(state.params, kind)
    (total, found), gradient = jax.value_and_grad(
        lambda trained: loss(state.params | trained), has_aux=True
    )(trained)
    update, optimizer = _optimizer(model.config, kind).update(
        gradient, state.optimizers[kind], trained
    )
    trained: Any = optax.apply_updates(trained, update)
    state = state._replace(
        params=state.params | trained, optimizers=state.optimizers | {kind: optimizer}
    )
    return state, total, found, optax.tree.norm(gradient)
