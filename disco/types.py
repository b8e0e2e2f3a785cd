"""What crosses the boundary between a rule and the code that learns by it.

Arrays are time-major. T transitions, B trajectories, A actions, Y logits of a prediction,
N bins of a value. A transition t leads from state t to state t+1, so a trajectory of T
transitions has T+1 states, and an agent's outputs exist for all of them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

Params = PyTree[Array]
Outputs = Mapping[str, Float[Array, "T+1 B ..."]]
Metrics = dict[str, Float[Array, ""]]


@chex.dataclass(frozen=True)
class Trajectory:
    """A batch of trajectories of one environment, collected by a behaviour policy.

    Attributes:
      observation: pytree of `[T+1, B, ...]`; the last row is only bootstrapped from. The rule
        does not read it; it may have earlier rows before these, if `unroll` needs them.
      action: `[T, B]`, in `0..A-1`.
      reward: `[T, B]`, what the transition paid.
      discount: `[T, B]`, the environment's: 0 where the transition terminated its episode.
      last: `[T, B]`, the transition ends its episode, terminated or cut by a time limit.
      behaviour_logits: `[T, B, A]`, of the policy that chose `action`.
      mask: `[T, B]`, transitions to learn from. False where the transition only leads from an
        episode's last state to the next episode's first; its reward, discount and logits need not
        even be finite.
      core_state: a recurrent agent's state at the first row of `observation`, or None.
    """

    observation: PyTree[Array]
    action: Int[Array, "T B"]
    reward: Float[Array, "T B"]
    discount: Float[Array, "T B"]
    last: Bool[Array, "T B"]
    behaviour_logits: Float[Array, "T B A"]
    mask: Bool[Array, "T B"]
    core_state: PyTree[Array] | None = None


def without_masked_damage(trajectory: Trajectory) -> Trajectory:
    """The trajectory with neutral numbers for what is not finite in masked transitions.

    They do not count, so nothing in them may spoil what does: 0 times infinity would.
    """
    mask, logits = trajectory.mask, trajectory.behaviour_logits

    def mended(x: Array, neutral: float) -> Array:
        return jnp.where(mask | jnp.isfinite(x), x, jnp.asarray(neutral, x.dtype))

    # Single logits may be -inf; then the policy's normaliser is finite all the same.
    is_policy = jnp.isfinite(jax.nn.logsumexp(logits, axis=-1))
    return dataclasses.replace(
        trajectory,
        reward=mended(trajectory.reward, 0),
        discount=mended(trajectory.discount, 1),
        behaviour_logits=jnp.where((mask | is_policy)[..., None], logits, jnp.zeros_like(logits)),
    )


Unroll = Callable[[Any, Trajectory], Outputs]
"""`unroll(params, trajectory)`: the agent's outputs for every state, each `[T+1, B, ...]`.

Any function of this form will do: the rule does not know what network is inside. Outputs that
have a row per action may come a second time, as `taken(name)`, for the actions taken only:
`[T, B, ...]`. Only those the loss looks at, so its derivatives need not visit all actions.
"""


def taken(name: str) -> str:
    """What an output per action is called at the actions taken."""
    return f"{name}_taken"


@chex.dataclass(frozen=True)
class RuleState:
    """What a rule remembers of one agent's lifetime.

    Attributes:
      target_params: the target network, a moving average of the agent's parameters; None for
        a rule without one.
      memory: the rule's own: moving moments, lifetime RNN.
    """

    target_params: Params | None
    memory: PyTree[Array]


@chex.dataclass(frozen=True)
class Aux:
    """What an update yields besides a loss or a gradient.

    Attributes:
      state: for the agent's next update.
      targets: what the rule asked the agent's outputs to become.
      metrics: scalars for a log; means over all transitions, masked or not.
    """

    state: RuleState
    targets: PyTree[Array]
    metrics: Metrics
