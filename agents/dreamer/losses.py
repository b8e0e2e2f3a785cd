"""Dreamer's losses. Equation numbers are those of the arXiv version.

Arrays are time-major, `[T, B, ...]`. x is an observation, h and z are the model state, r a reward,
c whether the episode continues, a an action, v a value, R a λ-return.

Both versions minimise one sum of losses. The Nature version has one optimiser for it. In the arXiv
version the losses of world model, actor and critic have gradients in separate parameters, because
the losses of actor and critic have no gradient in the world model.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import rlax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from agents.dreamer.distributions import Image, kl_divergence
from agents.dreamer.model import (
    CRITIC,
    Imagined,
    Model,
    Observed,
    Params,
    Sequences,
    imagine,
    observe,
)
from agents.dreamer.networks import State
from disco.values import entropy

sg = jax.lax.stop_gradient

# Both papers' settings: the arXiv version's Table W.1, the Nature version's Extended Data Table 5.
LAMBDA = 0.95  # λ of the λ-returns.
REPRESENTATION_COST = 0.1  # β_rep.
DYNAMICS_COST, V1_DYNAMICS_COST = 1.0, 0.5  # β_dyn.
CRITIC_REPLAY_COST = 0.3  # Of the Nature version's critic on replayed states.
LEAST_RETURN_SCALE = 1.0  # Lower bound of the returns' scale, and without it (NoDenomMax):
_LEAST_WITHOUT = 1e-8
# Ablations: targets of adapted weights.
TARGET_KL = 3.5
TARGET_RANDOMNESS = 0.4


def lambda_returns(
    reward: Float[Array, "T B"],
    discount: Float[Array, "T B"],
    mixing: Float[Array, "T B"],
    bootstrap: Float[Array, "T B"],
) -> Float[Array, "T-1 B"]:
    """Return R_t = r + d ((1 - λ) v + λ R_{t+1}); r, d, λ and v are of step t + 1, the last R is v.

    It is the arXiv version's equation 7 and the Nature version's λ-return. Row t has reward,
    discount and λ of the transition to step t, so row 0 is not used. The discount is 0 where the
    step is terminal, λ where the next step belongs to another episode.
    """
    returns = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)
    return returns(reward[1:], discount[1:], bootstrap[1:], mixing[1:])


class Range(NamedTuple):
    """Moving averages of two percentiles of returns, from 0 on, without bias correction.

    Attributes:
      low: of the 5th percentile.
      high: of the 95th percentile.
    """

    low: Float[Array, ""]
    high: Float[Array, ""]

    def update(self, returns: Float[Array, "*s"], decay: float = 0.99) -> "Range":
        """Return the averages after a batch of returns."""
        low, high = jnp.percentile(returns, jnp.array([5.0, 95.0]))
        return Range(
            decay * self.low + (1.0 - decay) * low, decay * self.high + (1.0 - decay) * high
        )

    @property
    def size(self) -> Float[Array, ""]:
        """S (the arXiv version, equation 12)."""
        return self.high - self.low


class Deviation(NamedTuple):
    """Moving averages of numbers and of their squares, from 0 on, with bias correction.

    Attributes:
      weight: the correction: the sum of all weights so far, from 0 towards 1.
      mean: uncorrected average of the numbers.
      square: uncorrected average of their squares.
    """

    weight: Float[Array, ""]
    mean: Float[Array, ""]
    square: Float[Array, ""]

    def update(self, x: Float[Array, "*s"], decay: float = 0.99) -> "Deviation":
        """Return the averages after a batch of numbers."""
        news = (jnp.ones(()), jnp.mean(x), jnp.mean(jnp.square(x)))
        return Deviation(
            *(decay * old + (1.0 - decay) * new for old, new in zip(self, news, strict=True))
        )

    @property
    def size(self) -> Float[Array, ""]:
        """The standard deviation; 0 before the first batch."""
        weight = jnp.maximum(1e-6, self.weight)
        variance = self.square / weight - jnp.square(self.mean / weight)
        return jnp.sqrt(jnp.maximum(0.0, variance))


class LossScales(NamedTuple):
    """Running statistics and adaptive weights of the losses.

    Attributes:
      returns: percentiles of the returns.
      spread: standard deviation of returns (ReturnStd) or advantages (AdvantageStd).
      kl: weight of the KL terms (TargetKL).
      entropy: η.
      reward: standard deviation of rewards (RewardNorm).
    """

    returns: Range
    spread: Deviation
    kl: Float[Array, ""]
    entropy: Float[Array, ""]
    reward: Deviation


class Outcome(NamedTuple):
    """Auxiliary outputs of `loss`.

    Attributes:
      losses: each unweighted term, by name: of each step of the batch (`[T, B]`), of imagination
        (`[H, N]`; actor, critic), or of all steps but the last (`[T-1, B]`; critic_replay). The
        loss is the weighted sum of their means.
      scales: after this batch.
      observed: model states of the batch.
      metrics: by name, `[]`.
    """

    losses: dict[str, Float[Array, "_ _"]]
    scales: LossScales
    observed: Observed
    metrics: dict[str, Float[Array, ""]]


def loss(
    params: Params,
    slow_critic: PyTree[Array],
    model: Model,
    batch: Sequences,
    start: State,
    scales: LossScales,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], Outcome]:
    """Return the total loss of one batch.

    `start` are the model states before the sequences, and `scales` those after the last update.
    """
    config = model.config
    observe_key, imagine_key = jax.random.split(key)
    if config.ablation == "RewardNorm":
        scales = scales._replace(reward=scales.reward.update(batch.reward))
        reward = jnp.clip(batch.reward / reward_divisor(scales), -10.0, 10.0)
        batch = batch._replace(reward=reward)

    observed = observe(model, params, start, batch, observe_key)
    world, scales, metrics = world_model_losses(model, params, batch, observed, scales)

    # Imagination starts from all states, or from the last `imagine_last` of each sequence.
    batch, states = jax.tree.map(lambda x: x[-config.imagine_last :], (batch, observed.states))
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)
    imagined = imagine(model, params, flat, imagine_key, config.horizon)
    alive = 1.0 - batch.is_terminal.reshape(-1).astype(batch.reward.dtype)
    behaviour, returns, scales, more = actor_critic_losses(
        model, params, slow_critic, imagined, alive, scales
    )
    losses = world | behaviour
    if not config.is_v1:
        bootstrap = returns[0].reshape(batch.reward.shape)
        losses["critic_replay"] = critic_replay_loss(
            model, params, slow_critic, batch, states, bootstrap
        )
    costs = _costs(model, scales)
    total = jnp.sum(jnp.stack([costs.get(k, 1.0) * jnp.mean(x) for k, x in losses.items()]))
    return total, Outcome(losses, scales, observed, metrics | more)


def reward_divisor(scales: LossScales) -> Float[Array, ""]:
    """Return the divisor of rewards in the losses (RewardNorm)."""
    return jnp.maximum(1e-3, scales.reward.size)


def _costs(model: Model, scales: LossScales) -> dict[str, Any]:
    """Return the weights of losses, by name; those of others are 1."""
    config = model.config
    dynamics = V1_DYNAMICS_COST if config.is_v1 else DYNAMICS_COST
    representation = REPRESENTATION_COST
    if config.ablation == "NoKLBalance":
        dynamics = representation = V1_DYNAMICS_COST
    vectors = [name for name, x in model.observation_parts if not isinstance(x, Image)]
    return {
        "dynamics": dynamics * scales.kl,
        "representation": representation * scales.kl,
        "critic_replay": CRITIC_REPLAY_COST,
        **{f"decoder/{name}": config.vector_cost for name in vectors},
    }


def world_model_losses(
    model: Model, params: Params, batch: Sequences, observed: Observed, scales: LossScales
) -> tuple[dict[str, Float[Array, "T B"]], LossScales, dict[str, Array]]:
    """Return L_pred, L_dyn and L_rep (equations 4 and 5) by name.

    The decoder's loss of each observation is `decoder/NAME`.
    """
    config, states = model.config, observed.states
    decoded = model.decode(params, states.h, states.flat_z)
    losses = {
        f"decoder/{name}": x.loss(decoded[name], batch.observation[name])
        for name, x in model.observation_parts
    }

    features = states.features
    reward = model.regression.loss(model.reward(params, features), batch.reward)
    continues = 1.0 - batch.is_terminal.astype(reward.dtype)
    target = continues if config.is_v1 else continues * config.discount
    continuation = optax.sigmoid_binary_cross_entropy(model.continuation(params, features), target)

    # Free bits and KL balancing.
    posterior, prior = observed.posterior, observed.prior
    kl = kl_divergence(posterior, prior)
    free = 0.0 if config.ablation in ("NoFreeBits", "TargetKL") else config.free_nats
    dynamics = jnp.maximum(free, kl_divergence(sg(posterior), prior))
    representation = jnp.maximum(free, kl_divergence(posterior, sg(prior)))
    losses |= {"reward": reward, "continuation": continuation}
    losses |= {"dynamics": dynamics, "representation": representation}
    if config.ablation == "TargetKL":
        scales = scales._replace(kl=_adapted(scales.kl, jnp.mean(kl), TARGET_KL, 1e-3, 1.0))
    metrics = {
        "kl": jnp.mean(kl),
        "posterior_entropy": jnp.mean(jnp.sum(entropy(posterior), axis=-1)),
        "prior_entropy": jnp.mean(jnp.sum(entropy(prior), axis=-1)),
        # Of all latents' classes, those that occur in the batch.
        "latents_used": jnp.mean(jnp.any(sg(states.z) > 0.5, axis=(0, 1))),
    }
    return losses, scales, metrics


def actor_critic_losses(
    model: Model,
    params: Params,
    slow_critic: PyTree[Array],
    imagined: Imagined,
    alive: Float[Array, "N"],
    scales: LossScales,
) -> tuple[dict[str, Float[Array, "H N"]], Float[Array, "H N"], LossScales, dict[str, Array]]:
    """Return losses, returns, scales and metrics of imagined sequences (equations 6 to 12).

    `alive` is 0 where a sequence starts from a terminal state of the replay. The arXiv version
    weights imagined steps by it, the Nature version by the predicted continuation.
    """
    config, regression = model.config, model.regression
    frozen, features = sg(params), imagined.states.features
    reward = regression.mean(model.reward(frozen, features))
    continue_probability = jax.nn.sigmoid(model.continuation(frozen, features))
    discount, weight = _discounts(model, continue_probability, alive)
    logits = model.critic(params, sg(features))
    # Values with a gradient in the features, for the gradient through the dynamics.
    through = regression.mean(model.critic(frozen, features))
    slowly = regression.mean(model.critic(sg({**params, CRITIC: slow_critic}), features))
    value, slow = slowly if config.ablation == "SlowTarget" else through, sg(slowly)
    mixing = jnp.full_like(reward, LAMBDA)
    returns = lambda_returns(reward, discount, mixing, value)

    scales, advantage, least = _normalized(model, returns, value[:-1], scales)
    policy = model.policy(params, sg(features))
    entropies = policy.entropy()[:-1]
    objective = advantage  # In v1 it depends on continuous actions through the dynamics.
    if model.actions.is_discrete or not config.is_v1:
        objective = policy.log_prob(sg(imagined.action))[:-1] * sg(advantage)
    actor = -weight * (objective + scales.entropy * entropies)
    critic = weight * _critic_losses(model, logits[:-1], sg(returns), slow[:-1])

    randomness = jnp.mean(policy.randomness())
    if config.ablation == "TargetEntropy":
        # η grows if the policy is less random than the target.
        eta = _adapted(scales.entropy, TARGET_RANDOMNESS, jnp.mean(randomness), 1e-3, 3e-2)
        scales = scales._replace(entropy=sg(eta))
    metrics = {
        "imagined_reward": jnp.mean(reward),
        "imagined_continuation": jnp.mean(continue_probability),
        "imagined_return": jnp.mean(returns),
        "value": jnp.mean(through),
        "advantage_stddev": jnp.std(advantage),
        "return_scale": least,
        "randomness": randomness,
        "policy_entropy": jnp.mean(entropies),
    }
    return {"actor": actor, "critic": critic}, returns, scales, sg(metrics)


def _discounts(
    model: Model, continue_probability: Float[Array, "H1 N"], alive: Float[Array, "N"]
) -> tuple[Float[Array, "H1 N"], Float[Array, "H N"]]:
    """Return the discount of each imagined state, and the weight of each but the last."""
    config = model.config
    if not config.is_v1:  # The continuation's target includes γ.
        return continue_probability, sg(jnp.cumprod(continue_probability, axis=0))[:-1]
    # The likelier flag times γ. The first state has weight 1 unless it is terminal.
    discount = config.discount * jnp.round(sg(continue_probability))
    weight = jnp.cumprod(jnp.concatenate([alive[None], discount[1:-1]]), axis=0)
    return discount, weight


def critic_replay_loss(
    model: Model,
    params: Params,
    slow_critic: PyTree[Array],
    batch: Sequences,
    states: State,
    bootstrap: Float[Array, "T B"],
) -> Float[Array, "T-1 B"]:
    """Return the critic's loss on replayed states; it also has a gradient in the world model.

    The λ-returns use replayed rewards, and bootstrap from the imagined return of each state.
    """
    config, features = model.config, states.features
    alive, inside = (1.0 - x.astype(batch.reward.dtype) for x in (batch.is_terminal, batch.is_last))
    returns = lambda_returns(batch.reward, alive * config.discount, inside * LAMBDA, bootstrap)
    logits = model.critic(params, features)
    slow = sg(model.regression.mean(model.critic({**params, "critic": slow_critic}, features)))
    return inside[:-1] * _critic_losses(model, logits[:-1], sg(returns), slow[:-1])


def _critic_losses(model: Model, logits, returns, slow) -> Float[Array, "..."]:
    """Return the critic's loss (equation 10) with the regulariser towards the slow critic."""
    regression = model.regression
    found = regression.loss(logits, returns)
    return found if model.config.ablation == "SlowTarget" else found + regression.loss(logits, slow)


def _normalized(model: Model, returns, values, scales: LossScales):
    """Return the new scales, the normalised advantages and their divisor (equations 11, 12)."""
    ablation, advantage = model.config.ablation, returns - values
    if ablation in ("ReturnStd", "AdvantageStd"):
        moved = scales.spread.update(sg(returns if ablation == "ReturnStd" else advantage))
        scales = scales._replace(spread=moved)
    else:
        moved = scales.returns.update(sg(returns))
        scales = scales._replace(returns=moved)
    is_bounded = ablation not in ("NoDenomMax", "ReturnStd", "AdvantageStd")
    divisor = jnp.maximum(LEAST_RETURN_SCALE if is_bounded else _LEAST_WITHOUT, moved.size)
    return scales, advantage / divisor, divisor


def initial_scales(model: Model) -> LossScales:
    """Return the scales before the first update."""
    return LossScales(
        returns=Range(*jnp.zeros(2)),
        spread=Deviation(*jnp.zeros(3)),
        kl=jnp.ones(()),
        entropy=jnp.array(model.config.entropy_cost),
        reward=Deviation(*jnp.zeros(3)),
    )


def _adapted(weight, found, target, least: float, most: float):
    """Return a weight, grown by a tenth if `found` is above `target`, and reduced if below."""
    grown = jnp.where(found > 1.1 * target, 1.1, jnp.where(found < target / 1.1, 1 / 1.1, 1.0))
    return jnp.clip(sg(weight * grown), least, most)
