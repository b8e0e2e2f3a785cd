"""IRIS as an agent (`agents.protocol.Agent`).

An epoch is an unroll of `epoch_steps` environment steps, followed by the updates of the
autoencoder, those of the Transformer, and those of the actor-critic.

The replay stores each frame's reconstruction beside it, because the policy acts on reconstructions:
the burn-in of imagination reads them. An update of the autoencoder replaces the reconstructions of
the frames that it learns from by its own.
"""

import dataclasses
import functools

import dm_env
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from agents.iris import actor_critic, examination, learner
from agents.iris.layers import LSTMState
from agents.iris.learner import KINDS, RECONSTRUCTION, LearnerState, as_bytes, as_fractions
from agents.iris.model import ACTOR_CRITIC, WORLD_MODEL, Model, Params
from agents.protocol import (
    Batch,
    Examination,
    Experience,
    Mode,
    OpenLoop,
    ReplaySpec,
    Update,
    UpdateSpec,
)

# The authors' configuration files have these in all settings (`agents.iris.config`).
EPSILON = 0.01  # Probability of a uniformly random action in training.
EVALUATION_TEMPERATURE = 0.5  # Of the policy in `Mode.EVALUATION`.


@dataclasses.dataclass(frozen=True, eq=False)
class IrisAgent:
    """IRIS for environments of given specs.

    Attributes:
      model: its networks and settings.
      perceptual: parameters of the perceptual loss; None without it.
    """

    model: Model
    perceptual: PyTree[Array] | None = None

    @property
    def experience(self) -> Experience:
        config = self.model.config
        # Batch size, transitions, earlier steps; epochs before the first update.
        kinds = (
            (config.tokenizer_batch, 1, 0, config.tokenizer_start),
            (config.world_model_batch, config.memory_steps, 0, config.world_model_start),
            (config.actor_critic_batch, 1, config.burn_in, config.actor_critic_start),
        )
        updates = tuple(
            UpdateSpec(
                name=kind,
                batch_size=size,
                num_replayed=size,
                length=length,
                context=context,
                updates_per_step=config.epoch_updates / config.epoch_steps,
                first_step=(start + 1) * config.epoch_steps,
                # The burn-in's.
                extras_rows=((RECONSTRUCTION, context),),
            )
            for kind, (size, length, context, start) in zip(KINDS, kinds, strict=True)
        )
        return Experience(
            num_environments=config.num_environments,
            unroll_length=config.epoch_steps // config.num_environments,
            replay=ReplaySpec(config.replay_capacity, anywhere=True, in_checkpoints=True),
            updates=updates,
            acts_one_behind=False,
            ends_at_life_loss=True,
        )

    def init(self, key: PRNGKeyArray) -> LearnerState:
        return learner.init(self.model, key, self.perceptual)

    def acting_state(self, state: LearnerState) -> Params:
        return {name: x for name, x in state.params.items() if name != WORLD_MODEL}

    def initial_memory(self, batch_size: int) -> LSTMState:
        return actor_critic.initial_state(self.model.config, batch_size)

    def act(
        self,
        acting_state: Params,
        memory: LSTMState,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
        mode: Mode,
    ) -> tuple[LSTMState, Array, dict[str, Array]]:
        config = self.model.config
        is_first = timestep.step_type == dm_env.StepType.FIRST
        memory = jax.tree.map(lambda x: jnp.where(is_first[:, None], 0.0, x), memory)
        frames = self.model.reconstruct(acting_state, as_fractions(timestep.observation))
        features = self.model.vision(acting_state, frames)
        output, memory = self.model.react(acting_state, features, memory)
        policy_key, random_key, choice_key = jax.random.split(key, 3)
        evaluates = mode is Mode.EVALUATION
        temperature = EVALUATION_TEMPERATURE if evaluates else config.temperature
        action = jax.random.categorical(policy_key, output.logits / temperature)
        if not evaluates:
            is_random = jax.random.bernoulli(choice_key, EPSILON, action.shape)
            uniform = jax.random.randint(random_key, action.shape, 0, self.model.num_actions)
            action = jnp.where(is_random, uniform, action)
        return memory, action.astype(jnp.int32), {RECONSTRUCTION: as_bytes(frames)}

    def update(self, state: LearnerState, batch: Batch, key: PRNGKeyArray, name: str) -> Update:
        if name == WORLD_MODEL:
            return Update(*learner.update_world_model(self.model, state, batch, key))
        if name == ACTOR_CRITIC:
            return Update(*learner.update_actor_critic(self.model, state, batch, key))
        frames = batch.observation[0]
        state, seen, metrics = learner.update_tokenizer(self.model, state, frames, key)
        return Update(state, metrics, {RECONSTRUCTION: seen[None]})

    def update_bytes(self) -> int:
        return _update_bytes(self)

    def examine(self, state: LearnerState, batch: Batch, key: PRNGKeyArray) -> Examination:
        """Compare the model's predictions with experience (`agents.protocol.ExaminedAgent`)."""
        return examination.examine(self.model, state, batch, key)

    def imagine(
        self, state: LearnerState, batch: Batch, key: PRNGKeyArray, interval: int
    ) -> OpenLoop:
        """Predict frames by the actions alone (`agents.protocol.ImaginingAgent`)."""
        return examination.imagine(self.model, state.params, batch, key, interval)


@functools.lru_cache(maxsize=8)
def _update_bytes(agent: IrisAgent) -> int:
    """Return the estimate, which takes seconds, once for all tasks of an agent."""
    return learner.update_bytes(agent.model, agent.perceptual)
