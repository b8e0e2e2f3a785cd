"""Muesli: a policy gradient towards CMPO's policy, and a model's losses.

Hessel et al. 2021, arXiv 2104.06159. A prime denotes the target network, a moving average of the
parameters, whose policy is the prior.

    q'(s, a) = r'_1(s, a) + γ v'_1(s, a),  v'(s) = Σ_a π'(a|s) q'(s, a)         one-step look-ahead
    G(s, a) = Retrace(λ) of π', with q'
    σ² = moving mean of (G - v')²
    π_CMPO(a|s) ∝ π'(a|s) exp(clip((q'(s, a) - v'(s)) / σ, -c, c))                (equation 8)
    L = -min(1, π/μ) (G - v') / σ log π + λ KL(π_CMPO | π) + the model's losses   (equation 10)

The model predicts K steps ahead: rewards, values, and π_CMPO of the states that were reached
(section 4.4). Where the paper is silent:

- the target of a value is `v' + min(1, π'/μ) (G - q'(s, a))`, whose mean is that of q' under π';
- the KL divergences are exact sums over actions (figure 3b), and CMPO's policy is normalised
  exactly.
"""

import dataclasses
from typing import Annotated, Any

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import disco
from agents import search_space
from agents.baselines import BaselineAgent
from agents.latent_model import LatentModel, bin_loss, unroll_model, unroll_targets
from agents.networks import NetworkConfig
from agents.protocol import Batch, Experience, Update
from agents.registry import Algorithm
from agents.rule_agent import AgentConfig, NetworkState, to_trajectory
from agents.search_space import LogUniform, Settings, Shared, given
from disco import moments
from disco.checks import odd_number
from disco.moments import Moments
from disco.types import Metrics, without_masked_damage
from disco.values import (
    decode_value,
    entropy,
    importance_ratio,
    kl_divergence,
    masked_mean,
    retrace,
    select_action,
)
from disco_common.pytrees import register_dataclass
from disco_common.ranges import AtLeast0, Count, Fraction, Positive


@dataclasses.dataclass(frozen=True)
class MuesliConfig(AgentConfig):
    """Settings of Muesli (Hessel et al. 2021, arXiv 2104.06159), by default for a laptop.

    Acting, replay and optimiser are those of all agents that learn by unrolls (`AgentConfig`).

    Attributes:
      discount: gamma.
      lambda_: decay of Retrace's traces.
      num_bins: N, odd, of values and rewards.
      max_value: the last bin, on the scale of the signed hyperbolic transform.
      model_steps: K, that the model predicts ahead.
      advantage_clip: c, the bound of normalised advantages in CMPO's policy.
      target_rate: weight of the parameters in their moving average, the target network.
      regularizer_cost: λ, weight of the KL from CMPO's policy.
      reward_cost, value_cost, model_policy_cost: weights of the model's losses.
      images: side in pixels and channels of the images, in environments that offer a choice; empty
        for the environments' own.
    """

    network: NetworkConfig = NetworkConfig(torso=(64, 64), model=64, head=(64,))
    learning_rate: AtLeast0[float] = 3e-3
    num_environments: Count = 8
    unroll_length: Count = 16
    batch_size: Count = 32
    replay_ratio: Fraction = 0.75
    replay_capacity: Count = 1024
    discount: Fraction = 0.99
    lambda_: Fraction = 0.95
    num_bins: Annotated[int, odd_number(at_least=1)] = 41
    max_value: Positive = 15.0
    model_steps: Count = 5
    advantage_clip: Positive = 1.0
    target_rate: Fraction = 0.1
    regularizer_cost: AtLeast0[float] = 1.0
    reward_cost: AtLeast0[float] = 1.0
    value_cost: AtLeast0[float] = 0.25
    model_policy_cost: AtLeast0[float] = 1.0
    images: tuple[int, ...] = ()

    _PREFIX = ""


# Tables 5 and 6: 75% of a batch of 96 sequences is replayed, from a replay of 6 million frames
# (1.5 million steps of 4 frames), and the learning rate falls to 0 over 200 million frames (here by
# half a cosine, there linearly). The residual net has four sections, the memory 512 units, and
# images are 96x96 RGB (`images`), by one reading of the appendix.
PAPER = MuesliConfig(
    network=NetworkConfig(
        torso=(256,), channels=(64, 128, 128, 64), memory=512, model=1024, head=(1024,)
    ),
    learning_rate=3e-4,
    end_learning_rate=0.0,
    lifetime=50_000_000,
    num_environments=24,
    unroll_length=30,
    batch_size=96,
    replay_ratio=0.75,
    replay_capacity=50_000,
    discount=0.995,
    num_bins=601,
    max_value=300.0,
    frame_stack=4,
    images=(96, 3),
)


@chex.dataclass(frozen=True)
class Targets:
    """What the target network says of some sequences; no gradient flows through it.

    Attributes:
      policy: π_CMPO, logarithms of probabilities.
      advantage: (G - v') / σ, of the actions taken.
      value: to predict in each state.
      moments: of G - v', after these sequences.
    """

    policy: Float[Array, "T_plus_1 B A"]
    advantage: Float[Array, "T B"]
    value: Float[Array, "T_plus_1 B"]
    moments: Moments


def look_ahead(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "*s E"],
    discount: float,
    max_value: float,
) -> Float[Array, "*s A"]:
    """Return the value of each action, by one step of the model."""
    state = model.start(params, embedding)
    shape = (*embedding.shape[:-1], model.num_actions)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x[..., None, :], (*shape, x.shape[-1])), state)
    action = jnp.broadcast_to(jnp.arange(model.num_actions), shape)
    prediction = model.predict(params, model.step(params, states, action))
    reward = decode_value(prediction.reward, max_value)
    return reward + discount * decode_value(prediction.value, max_value)


def targets(
    prior_logits: Float[Array, "T_plus_1 B A"],
    action_value: Float[Array, "T_plus_1 B A"],
    trajectory: disco.Trajectory,
    before: Moments,
    config: MuesliConfig,
) -> Targets:
    """Return the targets.

    `prior_logits` are those of π', `action_value` is q', `before` the moments of G - v' before
    these sequences.
    """
    estimates = retrace(
        prior_logits,
        action_value,
        action_value,
        trajectory,
        discount=config.discount,
        lambda_=config.lambda_,
    )
    after = moments.update(before, estimates.advantage, trajectory.mask)
    after = moments.kept_if_finite(after, before)
    scale = moments.root_mean_square(after)
    clip = config.advantage_clip
    improvement = jnp.clip(estimates.action_advantage / scale, -clip, clip)
    correction = jnp.minimum(1.0, importance_ratio(prior_logits, trajectory)) * estimates.td
    # A row that only leads to the next episode has no return.
    correction = jnp.where(trajectory.mask, correction, 0.0)
    value = estimates.target_value.at[:-1].add(correction)
    return jax.lax.stop_gradient(
        Targets(
            policy=jax.nn.log_softmax(prior_logits + improvement),
            advantage=estimates.advantage / scale,
            value=value,
            moments=after,
        )
    )


def policy_loss(
    logits: Float[Array, "T_plus_1 B A"],
    trajectory: disco.Trajectory,
    target: Targets,
    regularizer_cost: float,
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Return the loss of the policy in the first T states, and its regulariser, the KL."""
    ratio = jax.lax.stop_gradient(jnp.minimum(1.0, importance_ratio(logits, trajectory)))
    log_policy = jax.nn.log_softmax(logits[:-1])
    gradient_loss = -ratio * target.advantage * select_action(log_policy, trajectory.action)
    regularizer = kl_divergence(target.policy[:-1], log_policy)
    return gradient_loss + regularizer_cost * regularizer, regularizer


def model_losses(
    model: LatentModel,
    params: disco.Params,
    embedding: Float[Array, "T_plus_1 B E"],
    trajectory: disco.Trajectory,
    target: Targets,
    config: MuesliConfig,
) -> dict[str, Float[Array, ""]]:
    """Return the means of the model's losses over all that is known of the next K steps."""
    wanted = unroll_targets(trajectory, target.value, config.model_steps)
    found = unroll_model(model, params, embedding[:-1], wanted.action)
    reward_loss = bin_loss(found.reward, wanted.reward, config.max_value)
    value_loss = bin_loss(found.value, wanted.value, config.max_value)
    policy = kl_divergence(target.policy[wanted.index], jax.nn.log_softmax(found.logits))
    return {
        "reward_loss": masked_mean(reward_loss, wanted.is_known),
        "value_loss": masked_mean(value_loss, wanted.is_known),
        "model_policy_loss": masked_mean(policy, wanted.has_policy),
    }


def loss(
    model: LatentModel,
    params: disco.Params,
    state: "MuesliState",
    trajectory: disco.Trajectory,
    config: MuesliConfig,
) -> tuple[Float[Array, ""], tuple[Moments, Metrics]]:
    """Return the loss of some sequences, the moments after them, and metrics."""
    inputs = trajectory.observation, trajectory.core_state
    prior = model.embed_unroll(state.target_params, *inputs)
    action_value = look_ahead(model, state.target_params, prior, config.discount, config.max_value)
    target = targets(
        model.logits(state.target_params, prior), action_value, trajectory, state.moments, config
    )
    embedding = model.embed_unroll(params, *inputs)
    logits = model.logits(params, embedding)
    of_policy, regularizer = policy_loss(logits, trajectory, target, config.regularizer_cost)
    parts = model_losses(model, params, embedding, trajectory, target, config)
    parts["policy_loss"] = masked_mean(of_policy, trajectory.mask)
    total = (
        parts["policy_loss"]
        + config.reward_cost * parts["reward_loss"]
        + config.value_cost * parts["value_loss"]
        + config.model_policy_cost * parts["model_policy_loss"]
    )
    log_policy = jax.nn.log_softmax(logits[:-1])
    metrics = parts | {
        "loss": total,
        "regularizer": masked_mean(regularizer, trajectory.mask),
        "entropy": masked_mean(entropy(log_policy), trajectory.mask),
        "advantage_scale": moments.root_mean_square(target.moments),
    }
    return total, (target.moments, metrics)


@chex.dataclass(frozen=True)
class MuesliState(NetworkState):
    """The learning state, with the parameters' moving average and the advantages' moments."""

    target_params: disco.Params
    moments: Moments


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MuesliAgent(BaselineAgent):
    """Muesli. Its network is a `LatentModel`."""

    @staticmethod
    def network_for(config: MuesliConfig, dynamics: Any) -> LatentModel:
        return LatentModel(
            config.network,
            dynamics,
            frame_stack=config.frame_stack,
            burn_in=config.burn_in,
            num_bins=config.num_bins,
        )

    @property
    def experience(self) -> Experience:
        return self.config.experience(self.network.history)

    def init(self, key: PRNGKeyArray) -> MuesliState:
        state = super().init(key)
        target, initial = jnp.copy(state.params), moments.init(state.params.dtype)
        return MuesliState(**vars(state), target_params=target, moments=initial)

    def update(self, state: MuesliState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        del key, name
        config = self.config
        trajectory = config.scaled(without_masked_damage(to_trajectory(batch)))

        def batch_loss(params):
            return loss(self.network, params, state, trajectory, config)

        learned, (after, metrics), norm = self.step(state, batch_loss)
        target: Any = optax.incremental_update(
            learned.params, state.target_params, config.target_rate
        )
        learned = dataclasses.replace(learned, target_params=target, moments=after)
        return Update(learned, metrics | norm)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return self.config.optimizer(self.learning_rate)


def _tuned(shared: Shared, settings: Settings) -> MuesliConfig:
    agent = search_space.with_settings(shared.agent, settings)
    return MuesliConfig(
        **{field.name: getattr(agent, field.name) for field in dataclasses.fields(agent)}
        | {"lifetime": agent.lifetime or shared.budget},
        discount=shared.discount,
        **given(("regularizer_cost", "lambda_"), settings),
    )


MUESLI = Algorithm(
    name="muesli",
    paper="Muesli, Hessel et al. 2021, arXiv 2104.06159",
    presets={"laptop": MuesliConfig(), "paper": PAPER},
    make=MuesliAgent.make,
    ranges={
        **search_space.SIZES,
        **search_space.RULE_RANGES,
        "regularizer_cost": LogUniform(0.1, 10.0),
        "lambda_": search_space.TRACES,
    },
    tuned=_tuned,
)
