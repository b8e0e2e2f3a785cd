"""The meta-value function: the baseline in the meta-loss, one per agent.

It estimates the value of the agent's policy, for V-trace advantages on the validation trajectories
(DiscoRL, Methods, "Implementation details"). The agent's own updates do not use it.
"""

import dataclasses
from collections.abc import Callable

import chex
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

import disco
from agents import history
from agents.encoders import Encoder
from agents.history import HistorySpec
from agents.networks import NetworkConfig, flat_init
from agents.optimizers import agent_optimizer
from disco import moments, values
from disco.moments import Moments
from disco_common.ranges import AT_LEAST_1, FRACTION, POSITIVE
from environments import ObservationSpec


@dataclasses.dataclass(frozen=True)
class ValueFunctionConfig:
    """Learning of the meta-value function; the paper's, but for `learns_from_batches`.

    Attributes:
      hidden: units of the MLP's layers, which follow convolutions like those of the agent's
        network.
      learning_rate: of Adam.
      discount: gamma.
      lambda_: trace decay of V-trace.
      learns_from_batches: whether it learns from each batch that the agent learns from, as in the
        authors' notebook, besides the validation trajectories. The paper names only the latter.
    """

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    discount: float = 0.997
    lambda_: float = 0.95
    learns_from_batches: bool = True

    def __post_init__(self):
        AT_LEAST_1.require(self, "value_function.", "hidden")
        POSITIVE.require(self, "value_function.", "learning_rate")
        FRACTION.require(self, "value_function.", "discount", "lambda_")


@chex.dataclass(frozen=True)
class ValueFunctionState:
    """Parameters, optimiser and moments of one agent's meta-value function."""

    params: disco.Params
    optimizer: optax.OptState
    advantage: Moments
    td: Moments


@dataclasses.dataclass(frozen=True)
class ValueFunction:
    """A value function on the scale of h (see `disco.values`), trained with V-trace.

    Attributes:
      config: how it learns.
      init_params: from a key to parameters.
      apply: from parameters and a trajectory's observation to values `[T+1, B]`, on the scale of h.
    """

    config: ValueFunctionConfig
    init_params: Callable[[PRNGKeyArray], disco.Params]
    apply: Callable[[disco.Params, PyTree[Array]], Float[Array, "T_plus_1 B"]]

    @classmethod
    def create(
        cls,
        config: ValueFunctionConfig,
        observation_spec: ObservationSpec,
        network: NetworkConfig = NetworkConfig(),
        history_spec: HistorySpec = HistorySpec(),
    ) -> "ValueFunction":
        """Return a meta-value function with the encoder of the agent's network and no memory."""

        def forward(observation):
            stacked = history.stack(history_spec, observation_spec, observation)
            stacked = jax.tree.map(lambda x: x[history_spec.burn_in :], stacked)
            hidden = Encoder(dataclasses.replace(network, torso=config.hidden), observation_spec)(
                stacked
            )
            return hk.Linear(1, w_init=hk.initializers.TruncatedNormal(1e-2))(hidden)[..., 0]

        transformed = hk.without_apply_rng(hk.transform(forward))
        init, unravel = flat_init(
            lambda key: transformed.init(key, history.example(history_spec, observation_spec))
        )
        return cls(
            config=config,
            init_params=init,
            apply=lambda params, observation: transformed.apply(unravel(params), observation),
        )

    def init(self, key: PRNGKeyArray) -> ValueFunctionState:
        """Return the state for an initial agent."""
        params = self.init_params(key)
        dtype = jnp.result_type(float)
        return ValueFunctionState(
            params=params,
            optimizer=self._optimizer.init(params),
            advantage=moments.init(dtype),
            td=moments.init(dtype),
        )

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return agent_optimizer(self.config.learning_rate)

    def evaluate(
        self,
        state: ValueFunctionState,
        logits: Float[Array, "T_plus_1 B A"],
        trajectory: disco.Trajectory,
    ) -> tuple[values.ValueEstimates, Float[Array, "T B"], ValueFunctionState]:
        """Return V-trace estimates for a policy.

        Returns:
          The estimates; the advantages, normalised by their moments over the lifetime; and the
          state with its moments updated.
        """
        value = values.signed_parabolic(self.apply(state.params, trajectory.observation))
        estimates = values.vtrace(
            logits,
            value,
            value,
            trajectory,
            discount=self.config.discount,
            lambda_=self.config.lambda_,
        )
        state = dataclasses.replace(
            state,
            advantage=moments.update(state.advantage, estimates.advantage),
            td=moments.update(state.td, estimates.td),
        )
        normalized = moments.normalize(state.advantage, estimates.advantage)
        return estimates, normalized, state

    def update(
        self,
        state: ValueFunctionState,
        logits: Float[Array, "T_plus_1 B A"],
        trajectory: disco.Trajectory,
    ) -> ValueFunctionState:
        """Make one gradient step towards the V-trace returns of a policy.

        The loss is half the squared error, on the scale of h, to the output plus the normalised
        temporal-difference error.
        """
        estimates, _, state = self.evaluate(state, logits, trajectory)
        td = moments.normalize(state.td, estimates.td, subtract_mean=False)

        def loss(params):
            output = self.apply(params, trajectory.observation)[:-1]
            target = jax.lax.stop_gradient(output + td)
            weight = trajectory.mask.astype(output.dtype)
            error = 0.5 * jnp.square(output - target)
            return jnp.sum(weight * error) / jnp.maximum(jnp.sum(weight), 1.0)

        gradients = jax.grad(loss)(state.params)
        updates, optimizer = self._optimizer.update(gradients, state.optimizer, state.params)
        return dataclasses.replace(
            state, params=optax.apply_updates(state.params, updates), optimizer=optimizer
        )
