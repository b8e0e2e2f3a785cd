"""An agent's predictions along a trajectory (DiscoRL, Methods, "Analysis")."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import disco
from agents.history import History
from agents.rule_agent import LearnerState, RuleAgent
from disco import values
from disco.discovered import DiscoveredRule
from disco.types import taken


def outputs_along(
    agent: RuleAgent, params: disco.Params, trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "rows batch *sizes"]]:
    """Return the network's outputs `[T+1, B, ...]`; of z only at the actions taken, `[T, B, Y]`."""
    found: dict[str, list[np.ndarray]] = {}
    unroll = jax.jit(agent.network.unroll)
    for i in range(trajectory.action.shape[1]):  # One by one: z of all actions is large.
        outputs = jax.device_get(unroll(params, one_environment(trajectory, i)))
        for name, x in outputs.items():
            if name not in ("z", "aux_pi"):
                found.setdefault(name, []).append(x)
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


def learner_outputs(
    agent: RuleAgent, learner: LearnerState, trajectory: disco.Trajectory
) -> tuple[disco.Outputs, disco.Outputs | None]:
    """Return all outputs of an agent's network, and of its target network if there is one."""
    unroll = jax.jit(agent.network.unroll)
    target = learner.rule_state.target_params
    return unroll(learner.params, trajectory), None if target is None else unroll(
        target, trajectory
    )


def quantities(
    rule: DiscoveredRule, outputs: Mapping[str, np.ndarray], trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "T B"]]:
    """Return confidence (negative entropy) of y and z, the policy's entropy, value and reward.

    z is that of the action taken. Agents without y and z have no confidence.

    Args:
      rule: which defines the bins of q.
      outputs: of `outputs_along`.
      trajectory: of the outputs.
    """
    policy = np.asarray(jax.nn.softmax(outputs["logits"][:-1]))
    q = np.asarray(values.decode_value(jnp.asarray(outputs["q"][:-1]), rule.max_value))
    found = {}
    if rule.has_predictions:
        found["confidence of y (nats)"] = -_entropy(outputs["y"][:-1])
        found["confidence of z (nats)"] = -_entropy(outputs[taken("z")])
    return found | {
        "policy's entropy (nats)": _entropy(outputs["logits"][:-1]),
        "value": np.sum(policy * q, axis=-1),
        "reward": np.asarray(trajectory.reward, np.float64),
    }


def slice_trajectory(
    agent: RuleAgent, trajectory: disco.Trajectory, first: int, length: int
) -> disco.Trajectory:
    """Return some transitions of a trajectory, with the frames that the agent's network needs.

    If the network has a memory, `first` must be 0.
    """
    spec, observation = agent.network.history, trajectory.observation
    assert first == 0 or not spec.memory
    rows = slice(first, first + length + 1)
    if isinstance(observation, History):
        before = slice(first, first + length + 1 + spec.rows_before)
        ages = slice(first, first + length + 1 + spec.burn_in)
        observation = History(
            frames=jax.tree.map(lambda x: x[before], observation.frames),
            age=observation.age[ages],
        )
    else:
        observation = jax.tree.map(lambda x: x[rows], observation)
    steps = dataclasses.replace(trajectory, observation=None, core_state=None)
    steps = jax.tree.map(lambda x: x[first : first + length], steps)
    return dataclasses.replace(steps, observation=observation, core_state=trajectory.core_state)


def one_environment(trajectory: disco.Trajectory, number: int) -> disco.Trajectory:
    """Return the part of one environment, still with an axis B."""
    which = slice(number, number + 1)
    return dataclasses.replace(
        jax.tree.map(lambda x: x[:, which], dataclasses.replace(trajectory, core_state=None)),
        core_state=jax.tree.map(lambda x: x[which], trajectory.core_state),
    )


def _entropy(logits: Float[np.ndarray, "*batch choices"]) -> Float[np.ndarray, "*batch"]:
    log_p = np.asarray(jax.nn.log_softmax(logits))
    return -np.sum(np.exp(log_p) * log_p, axis=-1)
