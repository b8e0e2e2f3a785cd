"""Tree search with a learned model: Gumbel MuZero, by `mctx`."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx
from jaxtyping import Array, Float, Int, PRNGKeyArray

import disco
from agents.latent_model import LatentModel
from disco.values import decode_value


class Found(NamedTuple):
    """The result of a search in each of B states.

    Attributes:
      action: to take.
      policy: the improved policy, to learn (Danihelka et al. 2022, section 4, "Learning an
        improved policy").
      value: of the state, by the search.
      predicted_value: of the state, by the model alone.
    """

    action: Int[Array, "B"]
    policy: Float[Array, "B A"]
    value: Float[Array, "B"]
    predicted_value: Float[Array, "B"]


def search(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "B E"],
    key: PRNGKeyArray,
    *,
    num_simulations: int,
    max_considered_actions: int,
    discount: float,
    max_value: float,
    value_scale: float = 0.1,
    gumbel_scale: float = 1.0,
) -> Found:
    """Search from B states, all in one compiled loop.

    Full Gumbel MuZero (Danihelka et al. 2022, "Policy improvement by planning with Gumbel").

    Args:
      model: to search with.
      params: of the model.
      embedding: of the states.
      key: random key.
      num_simulations: of each search.
      max_considered_actions: at the root.
      discount: gamma.
      max_value: the last bin of values and rewards.
      value_scale: weight of action values, rescaled to [0, 1], beside the policy's logits.
      gumbel_scale: of the noise at the root; 0 for none.
    """
    root, recurrent = model_for_search(
        model, params, embedding, discount=discount, max_value=max_value
    )
    with jax.numpy_dtype_promotion("standard"):  # mctx multiplies floats by whole numbers.
        output = mctx.gumbel_muzero_policy(
            params,
            key,
            root,
            recurrent,
            num_simulations,
            max_num_considered_actions=max_considered_actions,
            gumbel_scale=gumbel_scale,
            qtransform=functools.partial(
                mctx.qtransform_completed_by_mix_value, value_scale=value_scale
            ),
        )
    value = output.search_tree.summary().value
    return Found(output.action, output.action_weights, value, root.value)


def model_for_search(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "B E"],
    *,
    discount: float,
    max_value: float,
) -> tuple[mctx.RootFnOutput, mctx.RecurrentFn]:
    """Return the roots of searches, and the model as `mctx` calls it."""

    def recurrent(params: Any, key: Any, action: Any, state: Any) -> tuple[Any, Any]:
        del key
        state = model.step(params, state, action)
        predicted = model.predict(params, state)
        reward = decode_value(predicted.reward, max_value)
        output = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.full_like(reward, discount),
            prior_logits=predicted.logits,
            value=decode_value(predicted.value, max_value),
        )
        return output, state

    state = model.start(params, embedding)
    predicted = model.predict(params, state)
    root = mctx.RootFnOutput(
        prior_logits=predicted.logits,
        value=decode_value(predicted.value, max_value),
        embedding=state,
    )
    return root, recurrent
