"""The meta-value function: the baseline of the meta-objective, one per agent.

It never touches the agent: it only estimates how well the agent does, for V-trace advantages
on the validation trajectories (DiscoRL, Methods, "Implementation details").
"""

import dataclasses
from collections.abc import Callable

import chex
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

import disco
from agents import history
from agents.encoders import Encoder
from agents.flat_parameters import flat_init
from agents.history import HistorySpec
from agents.networks import NetworkConfig
from agents.optimizers import agent_optimizer
from common.ranges import AT_LEAST_1, FRACTION, POSITIVE
from disco import moments, values
from disco.moments import Moments
from environments import ObservationSpec


@dataclasses.dataclass(frozen=True)
class ValueFunctionConfig:
    """How the meta-value function learns; the defaults are the paper's where it gives them.

    Attributes:
      hidden: units of its MLP's layers, after convolutions like those of the agent's network.
      learning_rate: of its Adam.
      discount: gamma.
      lambda_: decay of V-trace's traces.
    """

    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    discount: float = 0.997
    lambda_: float = 0.95

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
    """V on h's scale (see `disco.values`), trained with V-trace.

    Attributes:
      config: how it learns.
      init_params: from a key to parameters.
      apply: from parameters and a trajectory's observation to `[T+1, B]`, on h's scale.
    """

    config: ValueFunctionConfig
    init_params: Callable[[PRNGKeyArray], disco.Params]
    apply: Callable[[disco.Params, Array], Float[Array, "T+1 B"]]

    @classmethod
    def create(
        cls,
        config: ValueFunctionConfig,
        observation_spec: ObservationSpec,
        network: NetworkConfig = NetworkConfig(),
        history_spec: HistorySpec = HistorySpec(),
    ) -> "ValueFunction":
        """Sees what the agent's network sees, by convolutions like its own. It has no memory.

        Args:
          config: its own sizes.
          observation_spec: of one observation.
          network: of the agent.
          history_spec: of the agent's observations.
        """

        def forward(observation):
            stacked = history.stack(history_spec, observation_spec, observation)
            stacked = jax.tree.map(lambda x: x[history_spec.burn_in :], stacked)
            hidden = Encoder(network.encoder(config.hidden), observation_spec)(stacked)
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
        """A newborn agent's."""
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
        logits: Float[Array, "T+1 B A"],
        trajectory: disco.Trajectory,
    ) -> tuple[values.ValueEstimates, Float[Array, "T B"], ValueFunctionState]:
        """V-trace estimates of the policy, and its advantages normalised over the lifetime.

        Returns:
          The estimates, the normalised advantages, and the state with its moments updated.
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
        logits: Float[Array, "T+1 B A"],
        trajectory: disco.Trajectory,
    ) -> ValueFunctionState:
        """One step towards the V-trace returns of the policy.

        Half the squared error on h's scale, to a goal that lies a normalised TD away.
        """
        estimates, _, state = self.evaluate(state, logits, trajectory)
        td = moments.normalize(state.td, estimates.td, subtract_mean=False)

        def loss(params):
            output = self.apply(params, trajectory.observation)[:-1]
            goal = jax.lax.stop_gradient(output + td)
            weight = trajectory.mask.astype(output.dtype)
            error = 0.5 * jnp.square(output - goal)
            return jnp.sum(weight * error) / jnp.maximum(jnp.sum(weight), 1.0)

        gradients = jax.grad(loss)(state.params)
        updates, optimizer = self._optimizer.update(gradients, state.optimizer, state.params)
        return dataclasses.replace(
            state, params=optax.apply_updates(state.params, updates), optimizer=optimizer
        )
