"""Types at the boundary between a rule and the code that learns by it.

Arrays are time-major. T transitions, B trajectories, A actions, Y logits of a prediction,
N bins of a value. A transition t leads from state t to state t+1, so a trajectory of T
transitions has T+1 states, and an agent's outputs exist for all of them.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Real

if TYPE_CHECKING:
    Leaf = Array
else:  # On the host an array of NumPy's, and in an example of what is to come shape and dtype.
    Leaf = Array | np.ndarray | jax.ShapeDtypeStruct

if TYPE_CHECKING:
    Params = PyTree[Leaf]
else:  # A class of its own, which `help` can describe.

    class Params(PyTree[Leaf]):
        """The parameters of an agent's network, any pytree of arrays.

        What Flax's `nnx.split`, Haiku's `init` or a plain dictionary of arrays is. A rule hands
        them to `Unroll` and never looks inside.
        """


Outputs = Mapping[str, Float[Array, "_rows B ..."]]
Metrics = dict[str, Float[Array, ""]]


@chex.dataclass(frozen=True)
class Trajectory:
    """A batch of trajectories of one environment, collected by a behaviour policy.

    `action[t]` is taken in `observation[t]`; `reward[t]`, `discount[t]`, `last[t]` follow it, and
    `observation[t+1]` is what it leads to. Where `last[t]` is True, `observation[t+1]` is the
    episode's last one, and row t+1 leads to the next episode: its `mask` is False, its action and
    reward mean nothing, and `observation[t+2]` is the new episode's first one (the resets of
    `dm_env`, and of Gymnasium in `AutoresetMode.NEXT_STEP`). Where an environment returns the new
    episode's first observation in place of the last one (`SAME_STEP`, gymnax, Brax), put the true
    last one in its place, and such a row after it; or, less exactly, let `discount` be 0 at time
    limits, too, with which returns read nothing beyond an end, and `mask` True everywhere.

    Attributes:
      observation: pytree of `[T+1, B, ...]`; the last row is for bootstrapping only. The rule does
        not read observations; there may be earlier rows before these, if `unroll` needs them.
      action: `[T, B]`, in `0..A-1`.
      reward: `[T, B]`, of the transition.
      discount: `[T, B]`, the environment's: 0 where the transition terminated its episode.
      last: `[T, B]`, the transition ends its episode, terminated or cut by a time limit.
      behaviour_logits: `[T, B, A]`, of the policy that chose `action`; -inf for illegal actions.
      mask: `[T, B]`, transitions to learn from. False where the transition leads from the last
        state of an episode to the first of the next one; its reward, discount and logits need not
        be finite.
      core_state: a recurrent agent's state at the first row of `observation`, or None.
    """

    observation: PyTree[Leaf]
    action: Int[Leaf, "T B"]
    reward: Real[Leaf, "T B"]
    discount: Real[Leaf, "T B"]
    last: Bool[Leaf, "T B"]
    behaviour_logits: Float[Leaf, "T B A"]
    mask: Bool[Leaf, "T B"]
    core_state: PyTree[Leaf] | None = None


def without_masked_damage(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory with neutral values for non-finite values of masked transitions.

    Masked transitions have weight 0 in the loss, and 0 times infinity is not a number.
    """
    mask, logits = trajectory.mask, trajectory.behaviour_logits

    def replace_non_finite(x: Leaf, neutral: float) -> Array:
        return jnp.where(mask | jnp.isfinite(x), x, jnp.asarray(neutral, x.dtype))

    # Some logits may be -inf; the policy's normaliser is finite then, too.
    is_taken = jax.nn.one_hot(trajectory.action, logits.shape[-1], dtype=bool)
    takes_illegal = jnp.any(is_taken & (logits == -jnp.inf), axis=-1)
    is_policy = jnp.isfinite(jax.nn.logsumexp(logits, axis=-1)) & ~takes_illegal
    return dataclasses.replace(
        trajectory,
        reward=replace_non_finite(trajectory.reward, 0.0),
        discount=replace_non_finite(trajectory.discount, 1.0),
        behaviour_logits=jnp.where((mask | is_policy)[..., None], logits, jnp.zeros_like(logits)),
    )


@runtime_checkable
class Unroll(Protocol):
    """The agent's network, as a function `unroll(params, trajectory)`.

    It may be recurrent (`Trajectory.core_state`), read earlier observations, or ignore all fields
    but the observation. The simplest is::

        def unroll(params, trajectory):
            return network.apply(params, trajectory.observation)
    """

    def __call__(self, params: Any, trajectory: Trajectory, /) -> Outputs:
        """Return the agent's outputs for every state of the trajectories.

        Returns:
          By name, those of `Rule.output_shapes`, each `[T+1, B, *shape]`; logits and other numbers
          before any softmax. `logits` are -inf for illegal actions; in a state without a legal one,
          where nothing is chosen, they may all be. An output with a row per action may be given a
          second time, as `taken(name)`, for the actions taken only: `[T, B, ...]`. The loss reads
          only these, so that its derivatives need not be computed for all actions.
        """
        ...


def taken(name: str) -> str:
    """Return the name of an output per action at the actions taken."""
    return f"{name}_taken"


@chex.dataclass(frozen=True)
class RuleState:
    """The state of a rule over one agent's lifetime.

    Attributes:
      target_params: the target network, a moving average of the agent's parameters; None for
        a rule without one.
      memory: the rule's own state: moving moments, lifetime RNN.
    """

    target_params: Params | None
    memory: PyTree[Array]


@chex.dataclass(frozen=True)
class Aux:
    """The results of an update besides its loss or gradient.

    Attributes:
      state: for the agent's next update.
      targets: of the agent's outputs.
      metrics: scalars; means over all transitions, masked or not, but for `loss`, the mean over
        those that are not masked.
      step: the factor of the optimiser's step that the rule asks for; None for 1. Adam does not see
        the scale of a gradient, so it multiplies what the optimiser makes of it.
    """

    state: RuleState
    targets: PyTree[Array]
    metrics: Metrics
    step: Float[Array, ""] | None = None
