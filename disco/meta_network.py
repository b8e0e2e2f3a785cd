"""The meta-network: what a discovered rule computes (DiscoRL, Methods, "Meta-network").

    agent outputs, rewards, ends --features--> backward LSTM (or transformer) over T transitions
        --gated by the lifetime RNN--> targets for the policy, y and z
    the same features, averaged over the batch --> lifetime RNN, stepped once per update

It works for any number of actions: all actions share the weights that their features go through,
and features are averaged over actions.
"""

import math
from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from disco import lstm, values
from disco.architectures import ARCHITECTURES
from disco.linear import Linear, add_bias, linear
from disco.sizes import ACTION_FEATURES, MetaNetworkSizes
from disco.types import Outputs, Trajectory
from disco.values import ActionValueEstimates, select_action

Parameters = Mapping[str, Linear]

_LARGEST_LOG = 5.0  # Of probabilities and ratios that the prior reads.
_LARGE_LOG_AGE = 10.0  # So that the feature is about 1 after 20,000 updates.


@chex.dataclass(frozen=True)
class LifetimeState:
    """Hidden state and cell of the lifetime RNN."""

    hidden: Float[Array, "L"]
    cell: Float[Array, "L"]


@chex.dataclass(frozen=True)
class RawTargets:
    """Logits of the targets, and one number per transition for the lifetime RNN.

    `prior` is what is added to the logit of the policy prior, and to the logarithms of the weights
    of advantages, if the network has these outputs.
    """

    pi: Float[Array, "T B A"]
    y: Float[Array, "T B Y"]
    z: Float[Array, "T B Y"]
    summary: Float[Array, "T B 1"]
    prior: Float[Array, "T B P"] | None = None


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
    key: PRNGKeyArray,
    sizes: MetaNetworkSizes,
    *,
    is_silent: bool = False,
    is_published: bool = False,
) -> dict[str, dict[str, Array]]:
    """Return initial parameters: truncated normal weights, and biases of 0, of the gate 1.

    The initialisation is that of the authors' release (github.com/google-deepmind/disco_rl) with
    two exceptions, without which the initial policy targets would be the same for all actions to
    within a hundredth of a logit: the last layer of the policy target has a standard deviation of 3
    instead of 0.3, and the gate a bias of 1 instead of 0, so that the output of the backward LSTM
    reaches the targets while the state of the lifetime RNN is still 0.

    Args:
      key: of the weights.
      sizes: of the network.
      is_silent: whether the last layers of the policy target and of its prior start with weights of
        0, so that the policy target is its prior.
      is_published: whether the initialisation is the release's without exceptions.
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
    if is_silent:
        for name in {"trajectory/policy_target_1", "trajectory/policy_prior"} & set(parameters):
            parameters[name] = jax.tree.map(jnp.zeros_like, parameters[name])
    return parameters


def apply(
    sizes: MetaNetworkSizes,
    parameters: Parameters,
    outputs: Outputs,
    target_outputs: Outputs,
    estimates: ActionValueEstimates,
    normalized_advantage: Float[Array, "T B"],
    normalized_action_advantage: Float[Array, "T_plus_1 B A"],
    trajectory: Trajectory,
    lifetime: LifetimeState,
    of_agent: Sequence[Float[Array, ""]] = (),
) -> tuple[RawTargets, LifetimeState]:
    """Return the targets of one batch, and the state of the lifetime RNN after it.

    Args:
      sizes: of the network.
      parameters: from `init`.
      outputs: of the agent; gradient flows through `y` and `z` only. Without them, zeros are read.
      target_outputs: of the target network.
      estimates: returns and advantages of the batch.
      normalized_advantage: of the actions taken.
      normalized_action_advantage: of all actions, by the target network.
      trajectory: the batch.
      lifetime: the lifetime RNN's state before this update.
      of_agent: the `sizes.agent_features` first numbers of `agent_features`.
    """
    trajectory_nets = _group(parameters, "trajectory/")
    lifetime_nets = _group(parameters, "lifetime/")
    nets = (trajectory_nets, lifetime_nets)

    # One pass over the logits of a prediction computes both networks' embeddings.
    y, y_bar = (_embed_outputs(x, nets, "y") for x in (outputs, target_outputs))
    z, z_bar = (_embed_outputs(x, nets, "z") for x in (outputs, target_outputs))
    shared = _shared_features(
        outputs,
        target_outputs,
        estimates,
        normalized_advantage,
        normalized_action_advantage,
        trajectory,
        of_agent,
    )

    # Backward over the trajectory, gated by the lifetime RNN's state before this update.
    features, actions = _features(sizes, trajectory_nets, shared, y[0], y_bar[0], z[0], z_bar[0])
    ends = (trajectory.discount == 0) | trajectory.last
    x = ARCHITECTURES[sizes.architecture].apply(trajectory_nets, features, ends)
    x = x * linear(trajectory_nets["lifetime_gate"], lifetime.hidden)[None, None]

    targets = RawTargets(
        pi=_policy_target(trajectory_nets, x, actions),
        y=linear(trajectory_nets["y_target"], x),
        z=linear(trajectory_nets["z_target"], x),
        summary=linear(trajectory_nets["summary"], x),
        prior=_prior(sizes, trajectory_nets, x, of_agent, outputs["logits"], trajectory),
    )

    # Forward over updates: one vector for the whole batch.
    features, _ = _features(sizes, lifetime_nets, shared, y[1], y_bar[1], z[1], z_bar[1])
    (y_hat,) = _embed(targets.y, (lifetime_nets,), "y_net")
    features = jnp.concatenate([features, targets.summary, y_hat[..., None]], axis=-1)
    batch = jnp.mean(linear(lifetime_nets["input"], features), axis=(0, 1))
    hidden, cell = lstm.step(lifetime_nets["lstm"], batch, lifetime.hidden, lifetime.cell)
    return targets, LifetimeState(hidden=hidden, cell=cell)


def agent_features(
    updates: Float[Array, "*s"], deviation: Float[Array, "*s"]
) -> tuple[Float[Array, "*s"], ...]:
    """Return what the networks may read of an agent: its age, and the scale of its advantages.

    Args:
      updates: the agent's number of updates before this one.
      deviation: moving standard deviation of its advantages.

    Returns:
      log(1 + updates), scaled, and the decimal logarithm of the deviation, which is at least 1e-3.
    """
    return jnp.log1p(updates) / _LARGE_LOG_AGE, jnp.log10(jnp.maximum(deviation, 1e-3))


def prior_features(
    log_probability: Float[Array, "*s"], behaviour: Float[Array, "*s"]
) -> tuple[Float[Array, "*s"], ...]:
    """Return what the outputs of the prior may read of an action taken; no gradient flows.

    A weight of the first one makes a weight of advantages a power of the action's probability: the
    derivative of the KL divergence from a target whose logit of the action is raised by k A is,
    for small k A, k A times the probability, where that of a policy gradient is A; a weight of -1
    makes up for it. One of the second makes it a power of the ratio, as the drifts of mirror
    learning are functions of it (Lu et al. 2022, arXiv 2210.05639).

    Args:
      log_probability: of the action under the policy.
      behaviour: under the behaviour policy.

    Returns:
      The logarithms of the probability and of the ratio, from -5 and from -5 to 5.
    """
    ratio = jnp.clip(log_probability - behaviour, -_LARGEST_LOG, _LARGEST_LOG)
    return jax.lax.stop_gradient((jnp.maximum(log_probability, -_LARGEST_LOG), ratio))


def initial_lifetime(parameters: Parameters) -> LifetimeState:
    """Return the state of the lifetime RNN for an initial agent."""
    bias = parameters["lifetime/lstm"]["b"]
    zeros = jnp.zeros(bias.shape[-1] // 4, bias.dtype)
    return LifetimeState(hidden=zeros, cell=jnp.copy(zeros))


def _shared_features(
    outputs,
    target_outputs,
    estimates,
    normalized_advantage,
    normalized_action_advantage,
    trajectory,
    of_agent,
):
    """Return the features that both networks read without an embedding; no gradient flows."""
    policy = jax.nn.softmax(outputs["logits"])
    per_action = (
        policy[:-1],
        jax.nn.softmax(trajectory.behaviour_logits),
        jax.nn.softmax(target_outputs["logits"])[:-1],
        values.signed_log(estimates.target_value[..., None] + estimates.action_advantage)[:-1],
        values.signed_log(estimates.action_advantage)[:-1],
        normalized_action_advantage[:-1],
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
            "normalized_advantage": normalized_advantage,
            "per_action": per_action,
            "of_agent": [jnp.full_like(normalized_advantage, x) for x in of_agent],
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


def _policy_target(
    nets: Parameters, x: Float[Array, "T B H"], actions: Float[Array, "T B A F"]
) -> Float[Array, "T B A"]:
    """Return the logits of the policy target from the embeddings of transitions and actions."""
    per_action = jnp.broadcast_to(x[:, :, None], actions.shape[:3] + x.shape[-1:])
    inputs = jnp.concatenate([per_action, actions], axis=-1)
    hidden = _action_block(nets["policy_target_0"], inputs)
    return linear(nets["policy_target_1"], hidden)[..., 0]


def _prior(
    sizes: MetaNetworkSizes,
    nets: Parameters,
    x: Float[Array, "T B H"],
    of_agent: Sequence[Float[Array, ""]],
    logits: Float[Array, "T_plus_1 B A"],
    trajectory: Trajectory,
) -> Float[Array, "T B P"] | None:
    """Return what changes the prior's weights, if anything does.

    It is linear in the LSTM's output, in the agent's numbers, and in those of the action taken.
    """
    if not sizes.prior_outputs:
        return None
    of_action = prior_features(
        select_action(jax.nn.log_softmax(logits), trajectory.action),
        select_action(jax.nn.log_softmax(trajectory.behaviour_logits), trajectory.action),
    )
    numbers = [*of_agent, *of_action[: sizes.prior_features]]
    columns = [jnp.broadcast_to(number, x.shape[:-1])[..., None] for number in numbers]
    return linear(nets["policy_prior"], jnp.concatenate([x, *columns], axis=-1))


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
