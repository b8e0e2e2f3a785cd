"""Influence: how a change of a future prediction changes the current targets.

`evaluation.studies.ablations` has a rule from which this influence on its predictions is removed,
to be trained for comparison.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import disco
from evaluation.results import divide


def influence(
    rule: disco.Rule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
    prediction: Float[Array, "rows B A Y"],
    key: PRNGKeyArray,
) -> dict[str, Float[np.ndarray, "rows"]]:
    """Return how much a change of z at a later state changes the current targets, by distance.

    z of one state at a time is perturbed with normal noise of z's own standard deviation.

    Args:
      rule: any; one that does not read z is not influenced by it.
      outputs: of an agent on the trajectory, `[T+1, B, ...]`.
      target_outputs: of its target network; None for a rule that has none.
      trajectory: of T transitions.
      state: of the rule.
      prediction: z to pass to the rule, and to perturb.
      key: for the noise.

    Returns:
      By kind of target (every array of `targets` with a value per transition), the root mean square
      change at distances 0 to T, over all pairs of a transition and a later state of the same
      episode; NaN if there is no such pair.
    """
    rows = trajectory.action.shape[0] + 1
    noise = jnp.std(prediction) * jax.random.normal(key, prediction.shape)

    def targets(z: Array) -> dict[str, Array]:
        made, _ = rule.targets({**outputs, "z": z}, target_outputs, trajectory, state)
        return {
            jax.tree_util.keystr(path).strip(".[]'"): x
            for path, x in jax.tree.leaves_with_path(made)
            if jnp.shape(x)[:2] == trajectory.action.shape
        }

    # The last one is unperturbed, by the same program, so that differences are not from rounding.
    perturbed = jnp.arange(rows + 1) % rows
    scales = jnp.ones(rows + 1).at[-1].set(0.0)

    @jax.jit
    def all_targets():
        return jax.lax.map(
            lambda x: targets(prediction.at[x[0]].add(x[1] * noise[x[0]])), (perturbed, scales)
        )

    found = {name: np.asarray(x) for name, x in all_targets().items()}
    squares = {
        name: np.square(x[:-1] - x[-1]).reshape(rows, *trajectory.action.shape, -1).mean(axis=-1)
        for name, x in found.items()
    }
    return _root_mean_by_distance(squares, np.asarray(trajectory.last))


def _root_mean_by_distance(
    squares: dict[str, Float[np.ndarray, "rows T B"]], last: np.ndarray
) -> dict[str, Float[np.ndarray, "rows"]]:
    """Return root means over pairs of a transition and a later state of the same episode.

    Args:
      squares: by the later state, and the transition.
      last: whether an episode ends with each transition, `[T, B]`.
    """
    num_transitions = len(last)
    ends = last.cumsum(axis=0)
    ends = np.concatenate([np.zeros_like(ends[:1]), ends])  # Before each state.
    later, now = np.meshgrid(
        np.arange(num_transitions + 1), np.arange(num_transitions), indexing="ij"
    )
    same = (later >= now)[..., None] & (ends[later] == ends[now])
    distance = np.broadcast_to((later - now)[..., None], same.shape)
    counts = np.bincount(distance[same], minlength=num_transitions + 1)
    return {
        name: np.sqrt(divide(np.bincount(distance[same], x[same], num_transitions + 1), counts))
        for name, x in squares.items()
    }
