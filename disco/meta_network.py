"""The meta-network: what a discovered rule computes (DiscoRL, Methods, "Meta-network").

    agent outputs, rewards, ends --features--> backward LSTM (or transformer) over T transitions
        --gated by the lifetime RNN--> targets for the policy, y and z
    the same features, averaged over the batch --> lifetime RNN, stepped once per update

It works for any number of actions: all actions share the weights that their features go through,
and features are averaged over actions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from disco import values
from disco.architectures import (
    ACTION_FEATURES,
    ARCHITECTURES,
    Linear,
    MetaNetworkSizes,
    add_bias,
    apply_gates,
    linear,
)
from disco.types import Outputs, Trajectory
from disco.values import ActionValueEstimates, select_action

Parameters = Mapping[str, Linear]


@chex.dataclass(frozen=True)
class LifetimeState:
    """Hidden state and cell of the lifetime RNN."""

    hidden: Float[Array, "L"]
    cell: Float[Array, "L"]


@chex.dataclass(frozen=True)
class Inputs:
    """What the meta-network reads of an update.

    Attributes:
      outputs: of the agent; gradient flows through `y` and `z` only. Without them, zeros are read.
      target_outputs: of the target network.
      trajectory: the batch.
      estimates: its returns and advantages.
      normalized_advantage: of the actions taken.
      normalized_action_advantage: of all actions, by the target network.
      of_agent: further features, `sizes.agent_features` numbers; none in the published rule.
    """

    outputs: Outputs
    target_outputs: Outputs
    trajectory: Trajectory
    estimates: ActionValueEstimates
    normalized_advantage: Float[Array, "T B"]
    normalized_action_advantage: Float[Array, "T_plus_1 B A"]
    of_agent: tuple[Float[Array, ""], ...] = ()


@chex.dataclass(frozen=True)
class RawTargets:
    """Logits of the targets, a `summary` for the lifetime RNN, the backward LSTM's gated output."""

    pi: Float[Array, "T B A"]
    y: Float[Array, "T B Y"]
    z: Float[Array, "T B Y"]
    summary: Float[Array, "T B 1"]
    embedding: Float[Array, "T B H"]


def layer_shapes(sizes: MetaNetworkSizes) -> dict[str, tuple[int, int]]:
    """Return [inputs, outputs] of every linear map, by name."""
    s = sizes
    embedding = {
        "y_net_0": (s.prediction, s.prediction_embedding),
        "y_net_1": (s.prediction_embedding, 1),
        "z_net_0": (s.prediction, s.prediction_embedding),
        "z_net_1": (s.prediction_embedding, 1),
        "policy_net_0": (2 * s.action_features, s.action_hidden),
        "policy_net_1": (2 * s.action_hidden, s.action_embedding),
    }
    architecture = ARCHITECTURES[s.architecture]
    trajectory = {
        **architecture.layer_shapes(s.features, s.trajectory, s.transformer_layers),
        "lifetime_gate": (s.lifetime, s.trajectory),
        "summary": (s.trajectory, 1),
        "y_target": (s.trajectory, s.prediction),
        "z_target": (s.trajectory, s.prediction),
        "policy_target_0": (2 * (s.trajectory + s.action_embedding), s.action_hidden),
        "policy_target_1": (s.action_hidden, 1),
    }
    if s.prior_outputs:
        inputs = s.trajectory + s.agent_features + s.prior_features
        trajectory["policy_prior"] = (inputs, s.prior_outputs)
    lifetime = {
        "input": (s.features + 2, s.lifetime_input),
        "lstm": (s.lifetime_input + s.lifetime, 4 * s.lifetime),
    }
    return {
        **{f"trajectory/{name}": shape for name, shape in (embedding | trajectory).items()},
        **{f"lifetime/{name}": shape for name, shape in (embedding | lifetime).items()},
    }


_INIT_STDDEV = {
    "trajectory/lifetime_gate": 1.0,
    "trajectory/summary": 0.3,
    "trajectory/y_target": 0.3,
    "trajectory/z_target": 0.3,
    "trajectory/policy_target_1": 3.0,
    "trajectory/policy_prior": 0.1,
}


def init(
    key: PRNGKeyArray, sizes: MetaNetworkSizes, *, is_published: bool = False
) -> dict[str, dict[str, Array]]:
    """Return initial parameters: truncated normal weights, and biases of 0, of the gate 1.

    With `is_published`, it is that of the authors' release (github.com/google-deepmind/disco_rl).
    By default it has two exceptions, without which the initial policy targets would be the same for
    all actions to within a hundredth of a logit: the last layer of the policy target has a standard
    deviation of 3 instead of 0.3, and the gate a bias of 1 instead of 0, so that the output of the
    backward LSTM reaches the targets while the state of the lifetime RNN is still 0.
    """
    shapes = layer_shapes(sizes)
    counts = [inputs * outputs for inputs, outputs in shapes.values()]
    # One draw for all layers compiles once, not once per shape.
    draws = jax.random.truncated_normal(key, -2.0, 2.0, (sum(counts),))
    parameters, start = {}, 0
    for (name, shape), count in zip(shapes.items(), counts, strict=True):
        stddev = _INIT_STDDEV.get(name, 1.0 / math.sqrt(shape[0]))
        weight = stddev * draws[start : start + count].reshape(shape)
        parameters[name] = {"w": weight, "b": jnp.zeros(shape[1], weight.dtype)}
        start += count
    if is_published:
        parameters["trajectory/policy_target_1"]["w"] *= 0.1
    else:
        parameters["trajectory/lifetime_gate"]["b"] += 1.0
    return parameters


def apply(
    sizes: MetaNetworkSizes, parameters: Parameters, inputs: Inputs, lifetime: LifetimeState
) -> tuple[RawTargets, LifetimeState]:
    """Return the targets of one batch, and the state of the lifetime RNN after it."""
    trajectory_nets = _group(parameters, "trajectory/")
    lifetime_nets = _group(parameters, "lifetime/")
    nets = (trajectory_nets, lifetime_nets)

    # One pass over the logits of a prediction computes both networks' embeddings.
    both = inputs.outputs, inputs.target_outputs
    y, y_bar = (_embed_outputs(x, nets, "y") for x in both)
    z, z_bar = (_embed_outputs(x, nets, "z") for x in both)
    shared = _shared_features(inputs)

    # Backward over the trajectory, gated by the lifetime RNN's state before this update.
    features, actions = _features(sizes, trajectory_nets, shared, y[0], y_bar[0], z[0], z_bar[0])
    ends = (inputs.trajectory.discount == 0) | inputs.trajectory.last
    x = ARCHITECTURES[sizes.architecture].apply(trajectory_nets, features, ends)
    x = x * linear(trajectory_nets["lifetime_gate"], lifetime.hidden)[None, None]

    per_action = jnp.broadcast_to(x[:, :, None], actions.shape[:3] + x.shape[-1:])
    per_action = jnp.concatenate([per_action, actions], axis=-1)
    per_action = _action_block(trajectory_nets["policy_target_0"], per_action)
    targets = RawTargets(
        pi=linear(trajectory_nets["policy_target_1"], per_action)[..., 0],
        y=linear(trajectory_nets["y_target"], x),
        z=linear(trajectory_nets["z_target"], x),
        summary=linear(trajectory_nets["summary"], x),
        embedding=x,
    )

    # Forward over updates: one vector for the whole batch.
    features, _ = _features(sizes, lifetime_nets, shared, y[1], y_bar[1], z[1], z_bar[1])
    (y_hat,) = _embed(targets.y, (lifetime_nets,), "y_net")
    features = jnp.concatenate([features, targets.summary, y_hat[..., None]], axis=-1)
    batch = jnp.mean(linear(lifetime_nets["input"], features), axis=(0, 1))
    gates = linear(lifetime_nets["lstm"], jnp.concatenate([batch, lifetime.hidden]))
    hidden, cell = apply_gates(gates, lifetime.cell)
    return targets, LifetimeState(hidden=hidden, cell=cell)


def initial_lifetime(parameters: Parameters) -> LifetimeState:
    """Return the state of the lifetime RNN for an initial agent."""
    bias = parameters["lifetime/lstm"]["b"]
    zeros = jnp.zeros(bias.shape[-1] // 4, bias.dtype)
    return LifetimeState(hidden=zeros, cell=jnp.copy(zeros))


def _shared_features(inputs: Inputs) -> dict[str, Any]:
    """Return the features that both networks read without an embedding; no gradient flows."""
    outputs, target_outputs = inputs.outputs, inputs.target_outputs
    estimates, trajectory = inputs.estimates, inputs.trajectory
    policy = jax.nn.softmax(outputs["logits"])
    per_action = (
        policy[:-1],
        jax.nn.softmax(trajectory.behaviour_logits),
        jax.nn.softmax(target_outputs["logits"])[:-1],
        values.signed_log(estimates.target_value[..., None] + estimates.action_advantage)[:-1],
        values.signed_log(estimates.action_advantage)[:-1],
        inputs.normalized_action_advantage[:-1],
        jax.nn.one_hot(trajectory.action, policy.shape[-1], dtype=policy.dtype),
    )
    taken = [select_action(x, trajectory.action) for x in per_action[:3]]
    dtype = policy.dtype
    return jax.lax.stop_gradient(
        {
            "policy": policy,
            "action": trajectory.action,
            "taken": taken,
            "reward": values.signed_log(trajectory.reward.astype(dtype)),
            "continues": (trajectory.discount != 0).astype(dtype),
            "value": values.signed_log(estimates.value),
            "advantage": values.signed_log(estimates.advantage),
            "normalized_advantage": inputs.normalized_advantage,
            "per_action": per_action,
            "of_agent": [jnp.full_like(inputs.normalized_advantage, x) for x in inputs.of_agent],
        }
    )


def _features(sizes, nets, shared, y, y_bar, z, z_bar):
    """Return the features of each transition `[T, B, F]` and of each action `[T, B, A, 2]`.

    y, y_bar `[T+1, B]` and z, z_bar `[T+1, B, A]` are predictions embedded as one number.
    """
    policy, action = shared["policy"], shared["action"]
    pi, mu, pi_bar, q_bar, advantage, action_advantage, taken = shared["per_action"]
    normalized_advantage = shared["normalized_advantage"]
    state = [
        shared["taken"][0],
        shared["taken"][1],
        shared["reward"],
        shared["continues"],
        *_pair(shared["value"]),
        shared["advantage"],
        normalized_advantage,
        shared["taken"][2],
        *_pair(y),
        *_pair(y_bar),
        select_action(z, action),
        *_pair(jnp.sum(policy * z, axis=-1)),
        *_pair(jnp.max(z, axis=-1)),
        select_action(z_bar, action),
        *_pair(jnp.sum(policy * z_bar, axis=-1)),
        *_pair(jnp.max(z_bar, axis=-1)),
        *shared["of_agent"],
    ]
    actions = [pi, mu, pi_bar, z[:-1], z_bar[:-1], q_bar, advantage, action_advantage, taken]
    if sizes.action_features == ACTION_FEATURES[1]:
        actions.append(normalized_advantage[..., None] * taken)
    actions = jnp.stack(actions, axis=-1)
    actions = _action_block(nets["policy_net_0"], actions)
    actions = _action_block(nets["policy_net_1"], actions)
    features = jnp.concatenate(
        [jnp.stack(state, axis=-1), jnp.mean(actions, axis=2), select_action(actions, action)],
        axis=-1,
    )
    return features, actions


def _embed_outputs(outputs: Outputs, nets: Sequence[Parameters], name: str):
    """Embed the prediction y or z of each state or action; zeros if the agent has none."""
    logits = outputs["logits"]
    shape = logits.shape[:-1] if name == "y" else logits.shape
    if name in outputs:
        return _embed(outputs[name], nets, f"{name}_net")
    size = nets[0][f"{name}_net_0"]["w"].shape[0]
    one = _embed(jnp.zeros(size, logits.dtype), nets, f"{name}_net")
    return [jnp.broadcast_to(x, shape) for x in one]


def _embed(logits: Float[Array, "*s Y"], nets: Sequence[Parameters], name: str):
    """Embed softmax(logits) as one number by each of the nets, in one pass over the logits."""
    weight = jnp.concatenate([net[f"{name}_0"]["w"] for net in nets], axis=-1)
    bias = jnp.concatenate([net[f"{name}_0"]["b"] for net in nets], axis=-1)
    hidden = jax.nn.relu(linear({"w": weight, "b": bias}, jax.nn.softmax(logits)))
    parts = jnp.split(hidden, len(nets), axis=-1)
    return [linear(net[f"{name}_1"], h)[..., 0] for net, h in zip(nets, parts, strict=True)]


def _action_block(layer: Linear, x: Float[Array, "T B A F"]) -> Float[Array, "T B A G"]:
    """Apply a linear map and a ReLU to each action's features and their mean over actions."""
    size = x.shape[-1]
    own = x @ layer["w"][:size]
    mean = jnp.mean(x, axis=2, keepdims=True) @ layer["w"][size:]
    return jax.nn.relu(add_bias(own + mean, layer["b"]))


def _pair(x: Float[Array, "T_plus_1 *s"]) -> tuple[Array, Array]:
    """Return x at the first and at the second state of each transition."""
    return x[:-1], x[1:]


def _group(parameters: Parameters, prefix: str) -> dict[str, Linear]:
    return {k.removeprefix(prefix): v for k, v in parameters.items() if k.startswith(prefix)}
