"""Dreamer's update and its choice of actions, as pure functions of its state."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from agents.dreamer import losses
from agents.dreamer.losses import Scales
from agents.dreamer.model import ACTOR, CRITIC, WORLD_MODEL, Model, Params, Sequences, observe_step
from agents.dreamer.networks import State, embed_action, initial_state

Metrics = dict[str, Array]

SLOW_CRITIC_DECAY = 0.98  # Of the moving average of the critic's parameters (Table W.1).


class LearnerState(NamedTuple):
    """The learning state.

    Attributes:
      params: of all networks.
      slow_critic: moving average of the critic's parameters.
      optimizer: the optimiser's state.
      scales: running statistics and adaptive weights of the losses.
      updates: number of updates so far, `[]`.
    """

    params: Params
    slow_critic: PyTree[Array]
    optimizer: optax.OptState
    scales: Scales
    updates: Array


class ActorState(NamedTuple):
    """The memory of an agent that acts in E environments.

    Attributes:
      state: the model state, `[E]`.
      action: the last action, by name, `[E, ...]`.
    """

    state: State
    action: Mapping[str, Array]


def clip_to_parameters(clipping: float = 0.3, eps: float = 1e-3) -> optax.GradientTransformation:
    """Return adaptive gradient clipping per tensor.

    The norm of a tensor's gradient is clipped to `clipping` times the norm of the tensor, but at
    least `clipping * eps`. (`optax.adaptive_grad_clip` clips per unit.)
    """

    def update(updates, state, params=None):
        assert params is not None

        def clip(gradient, parameter):
            most = clipping * jnp.maximum(eps, jnp.linalg.norm(parameter))
            return gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient) / most)

        return jax.tree.map(clip, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def laprop(
    learning_rate: float = 4e-5,
    warmup: int = 1000,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-20,
    clipping: float = 0.3,
) -> optax.GradientTransformation:
    """Return the Nature version's optimiser: clipped gradients, normalised, then averaged.

    The learning rate rises linearly from 0, that of the first update, in `warmup` updates. For the
    decay `b2` of the average of squares the paper says 0.99, its code 0.999.
    """
    schedule = optax.linear_schedule(0.0, learning_rate, warmup) if warmup else learning_rate
    return optax.chain(
        clip_to_parameters(clipping),
        optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        optax.ema(b1, debias=True),
        optax.scale_by_learning_rate(schedule),
    )


def clipped_adam(
    learning_rate: float, eps: float, max_gradient_norm: float
) -> optax.GradientTransformation:
    """Return the arXiv version's optimiser of world model, actor or critic (Table W.1)."""
    return optax.chain(
        optax.clip_by_global_norm(max_gradient_norm), optax.adam(learning_rate, eps=eps)
    )


def make_optimizer(model: Model) -> optax.GradientTransformation:
    """Return one optimiser for all networks (the Nature version) or one for each group (v1)."""
    config = model.config
    if not config.is_v1:
        return laprop(config.learning_rate, config.warmup)
    groups: dict[Hashable, optax.GradientTransformation] = {
        "world": clipped_adam(config.learning_rate, 1e-8, 1000.0),
        ACTOR: clipped_adam(config.actor_critic_learning_rate, 1e-5, 100.0),
        CRITIC: clipped_adam(config.actor_critic_learning_rate, 1e-5, 100.0),
    }
    labels = {name: "world" for name in WORLD_MODEL} | {ACTOR: ACTOR, CRITIC: CRITIC}
    return optax.multi_transform(groups, labels)


def init(model: Model, key: PRNGKeyArray) -> LearnerState:
    """Return the state before the first update."""
    params = model.init(key)
    return LearnerState(
        params=params,
        slow_critic=jax.tree.map(jnp.copy, params[CRITIC]),
        optimizer=make_optimizer(model).init(params),
        scales=losses.initial_scales(model),
        updates=jnp.zeros((), jnp.int32),
    )


def update(
    model: Model, learner: LearnerState, batch: Sequences, start: State, key: PRNGKeyArray
) -> tuple[LearnerState, State, Metrics]:
    """Make one update.

    `start` are the model states before the sequences, `[B]`.

    Returns:
      The learning state after the update, the model states of the sequences, and metrics.
    """
    (total, outcome), gradients = jax.value_and_grad(losses.loss, has_aux=True)(
        learner.params, learner.slow_critic, model, batch, start, learner.scales, key
    )
    updates, optimizer = make_optimizer(model).update(gradients, learner.optimizer, learner.params)
    params: Any = optax.apply_updates(learner.params, updates)
    decay = SLOW_CRITIC_DECAY
    slow = jax.tree.map(
        lambda slow, new: decay * slow + (1.0 - decay) * new, learner.slow_critic, params[CRITIC]
    )
    metrics = {
        "loss": total,
        **{f"loss/{name}": jnp.mean(x) for name, x in outcome.losses.items()},
        **outcome.metrics,
        **{f"gradient_norm/{name}": optax.tree.norm(x) for name, x in gradients.items()},
    }
    learner = LearnerState(params, slow, optimizer, outcome.scales, learner.updates + 1)
    return learner, outcome.observed.states, metrics


def initial_actor(model: Model, num_environments: int) -> ActorState:
    """Return the memory before the first step of all environments."""
    return ActorState(
        state=initial_state(model.config, num_environments),
        action={
            name: jnp.zeros((num_environments,), jnp.int32)
            if part.is_discrete
            else jnp.zeros((num_environments, part.size))
            for name, part in sorted(model.actions.items())
        },
    )


def act(
    model: Model,
    params: Params,
    actor: ActorState,
    observation: Mapping[str, Array],
    is_first: Bool[Array, "E"],
    key: PRNGKeyArray,
) -> ActorState:
    """Return a memory whose state includes the observation, with the action to take."""
    state_key, action_key = jax.random.split(key)
    embedded, tokens = embed_action(model.actions, actor.action), model.encode(params, observation)
    state, _ = observe_step(model, params, actor.state, embedded, tokens, is_first, state_key)
    keys = jax.random.split(action_key, len(model.actions))
    policies: dict[str, Any] = model.policies(params, state.features)
    action = {
        name: policy.sample(key) for key, (name, policy) in zip(keys, policies.items(), strict=True)
    }
    return ActorState(state, action)
