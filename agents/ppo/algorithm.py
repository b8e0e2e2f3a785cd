"""PPO as an agent: it acts by its policy, and an update is some epochs over the last unroll."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

import disco
import environments
from agents import search_space
from agents.history import History
from agents.loss_agent import LossAgent
from agents.networks import Network
from agents.optimizers import gradient_clipping
from agents.policy_agent import NetworkState, some_sequences
from agents.ppo.config import PRESETS, PPOConfig
from agents.ppo.losses import Samples, generalized_advantages, loss
from agents.protocol import Batch, Requirements, Update
from agents.registry import Algorithm
from agents.rule_agent import RuleAgentConfig, to_trajectory
from agents.search_space import Choice, CommonSettings, Ranges, Settings
from disco.types import Metrics, without_masked_damage
from disco.values import select_action
from disco_common.pytrees import register_dataclass


@dataclasses.dataclass(frozen=True)
class SeparateNetworks(Network):
    """A network for each output. The first is that of the policy, and there is no memory."""

    @property
    def _parts(self) -> list[Network]:
        return [
            Network(self.config, self.dynamics, self.frame_stack, shapes=(x,)) for x in self.shapes
        ]

    def _init(self, key: PRNGKeyArray) -> tuple[disco.Params, ...]:
        keys = jax.random.split(key, len(self.shapes))
        return tuple(part.init(key) for part, key in zip(self._parts, keys, strict=True))

    def policy(
        self, params: disco.Params, observation: Any, memory: Any
    ) -> tuple[Float[Array, "B A"], Any]:
        return self._parts[0].policy(self.unravel(params)[0], observation, memory)

    def unroll(
        self, params: disco.Params, trajectory: disco.Trajectory
    ) -> dict[str, Float[Array, "..."]]:
        outputs = {}
        for part, own in zip(self._parts, self.unravel(params), strict=True):
            outputs |= part.unroll(own, trajectory)
        return outputs


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PPOAgent(LossAgent):
    """PPO. Its network has the outputs `logits` and `value`."""

    @staticmethod
    def network_for(config: PPOConfig, dynamics: Any) -> Network:
        kind = SeparateNetworks if config.separate_value_network else Network
        shapes = (("logits", (environments.num_actions(dynamics),)), ("value", (1,)))
        return kind(config.network, dynamics, config.frame_stack, shapes=shapes)

    @property
    def requirements(self) -> Requirements:
        steps = self.config.num_epochs * self.config.num_minibatches
        return self.on_policy_requirements(steps, acts_one_behind=False)

    def update(self, state: NetworkState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        """Make `num_epochs` passes over the unroll, in minibatches in a random order."""
        del name
        trajectory = without_masked_damage(to_trajectory(batch))
        samples = self.samples(state.params, trajectory)

        config = self.config
        number, size = config.num_minibatches, config.minibatch_size
        permutation = functools.partial(jax.random.permutation, x=config.num_samples)
        order = jax.vmap(permutation)(jax.random.split(key, config.num_epochs))
        indices = order[:, : number * size].reshape(-1, size)
        state, metrics = jax.lax.scan(
            lambda state, index: self._step(state, trajectory, samples, index), state, indices
        )
        return Update(state, jax.tree.map(jnp.mean, metrics))

    def samples(self, params: disco.Params, trajectory: disco.Trajectory) -> Samples:
        """Return the transitions of an unroll, with estimates by the values of these parameters."""
        value = self.network.unroll(params, trajectory)["value"][..., 0]
        advantage, value_target = generalized_advantages(
            value,
            trajectory.reward.astype(value.dtype),
            self.config.discount * trajectory.discount.astype(value.dtype),
            trajectory.last,
            self.config.gae_lambda,
        )
        log_probs = jax.nn.log_softmax(trajectory.behaviour_logits)
        return Samples(
            action=trajectory.action,
            log_prob=select_action(log_probs, trajectory.action),
            value=value[:-1],
            advantage=advantage,
            value_target=value_target,
            mask=trajectory.mask,
        )

    def _step(
        self,
        state: NetworkState,
        trajectory: disco.Trajectory,
        samples: Samples,
        index: Int[Array, "M"],
    ) -> tuple[NetworkState, Metrics]:
        """Make a gradient step on a minibatch of transitions, or of unrolls with a memory."""
        config = self.config
        minibatch, chosen = self._minibatch(trajectory, samples, index)

        def minibatch_loss(params):
            outputs = self.network.unroll(params, minibatch)
            logits, value = outputs["logits"], outputs["value"][..., 0]
            if config.network.memory:
                logits, value = logits[:-1], value[:-1]
            return loss(logits, value, chosen, config)

        state, metrics, norm = self.step(state, minibatch_loss)
        return state, metrics | norm

    def _minibatch(
        self, trajectory: disco.Trajectory, samples: Samples, index: Int[Array, "M"]
    ) -> tuple[disco.Trajectory, Samples]:
        """Return the chosen transitions as a trajectory of one row, or the chosen unrolls."""
        if self.config.network.memory:
            chosen = jax.tree.map(lambda x: x[:, index], samples)
            return some_sequences(trajectory, index), chosen
        width = samples.action.shape[1]
        time, environment = index // width, index % width
        # M states, of as many trajectories without transitions.
        states = jax.tree.map(
            lambda x: x[:0, environment], dataclasses.replace(trajectory, observation=None)
        )
        observation = _single_rows(
            trajectory.observation, self.config.frame_stack, time, environment
        )
        chosen = jax.tree.map(lambda x: _rows(x, time, environment)[None], samples)
        return dataclasses.replace(states, observation=observation), chosen

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, with a bound on the gradient's norm and a learning rate that may fall to 0."""
        config = self.config
        num_updates = max(1, (config.total_steps or 0) // config.steps_per_update)
        per_update = config.num_epochs * config.num_minibatches

        def annealed(count: Int[Array, ""]) -> Float[Array, ""]:
            return self.peak_rate * jnp.maximum(1.0 - count // per_update / num_updates, 0.0)

        rate: Any = annealed if config.total_steps else self.peak_rate
        clipping = gradient_clipping(config.max_gradient_norm)
        return optax.chain(clipping, optax.adam(rate, eps=config.adam_epsilon))


def _rows(x: Array, time: Int[Array, "*s M"], environment: Int[Array, "M"]) -> Array:
    """Return rows `[*s, M, ...]`, without a check of the indices, which costs time on a CPU."""
    return x.at[time, environment].get(mode="promise_in_bounds")


def _single_rows(
    observation: Any, frame_stack: int, time: Int[Array, "M"], environment: Int[Array, "M"]
) -> Any:
    """Return the observations of M steps, `[1, M, ...]`, with the frames before each."""
    if not isinstance(observation, History):
        return jax.tree.map(lambda x: _rows(x, time, environment)[None], observation)
    rows = time[None] + jnp.arange(frame_stack)[:, None]
    return History(
        frames=jax.tree.map(lambda x: _rows(x, rows, environment), observation.frames),
        age=_rows(observation.age, time, environment)[None],
    )


_SMALLEST_MINIBATCH = 8  # Transitions, over which a tuned PPO normalises advantages.

_RANGES: Ranges = {
    **search_space.SIZES,
    "unroll_length": Choice((16, 64, 256, 1024), may_be_lower=True, may_be_higher=True),
    "learning_rate": search_space.RATE,
    "entropy_cost": search_space.ENTROPY,
    "num_epochs": Choice((1, 2, 4, 8, 16), may_be_higher=True),
    "num_minibatches": Choice((1, 4, 16, 64), may_be_higher=True),
    "gae_lambda": search_space.TRACES,
}


def _tuned(common: CommonSettings, settings: Settings, drift: str = "clip") -> PPOConfig:
    return PPOConfig(
        **search_space.on_policy_settings(common, settings),
        separate_value_network=False,
        drift=drift,
        num_epochs=settings.get("num_epochs", 4),
        num_minibatches=_num_minibatches(common.agent, settings.get("num_minibatches", 4)),
        gae_lambda=settings.get("gae_lambda", PPOConfig.gae_lambda),
        value_cost=0.5,
        entropy_cost=settings["entropy_cost"],
    )


def _num_minibatches(agent: RuleAgentConfig, wanted: int) -> int:
    """Return the number wanted, or as many as have enough samples."""
    if agent.network.memory:
        return min(wanted, agent.num_environments)
    return max(1, min(wanted, agent.steps_per_update // _SMALLEST_MINIBATCH))


PPO = Algorithm(
    name="ppo",
    paper="Proximal Policy Optimization, Schulman et al. 2017, arXiv 1707.06347",
    presets=PRESETS,
    images="atari",
    make=PPOAgent.make,
    ranges=_RANGES,
    tuned=_tuned,
)
# The paper of DPO has settings of Brax only: these are PPO's, with another drift.
DPO = dataclasses.replace(
    PPO,
    name="dpo",
    paper="Discovered Policy Optimisation, Lu et al. 2022, arXiv 2210.05639",
    presets={
        name: dataclasses.replace(PRESETS[name], drift="dpo")
        for name in ("cleanrl", "minatar", "atari")
    },
    tuned=functools.partial(_tuned, drift="dpo"),
)
