"""What a discovered rule's predictions are about (DiscoRL, figure 4 and Methods, "Analysis").

On an agent that has learned by the rule, and on what it then does:

- `quantities`: how sure its predictions y and z are along an episode, beside policy, value, reward;
- `saliency`: which parts of an observation each of them looks at;
- `information`: how well future entropy and large rewards can be read from each;
- `influence`: how far a change of a future prediction reaches into the targets of now.

`WithoutBootstrapping` is the rule without that last reach, to be trained beside it.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import disco
import environments
from agents.history import History
from agents.rule_agent import Agent, LearnerState
from disco import values
from disco.discovered import DiscoveredRule, DiscoveredTargets
from disco.rule import OutputShapes
from disco.types import Metrics, taken
from evaluation.playing import one_environment
from evaluation.results import divide

# Layers of the probes; wider ones for y and z, of hundreds of numbers (Methods).
_PROBE, _WIDE_PROBE, _WIDE_INPUT = (128, 64, 32), (256, 256, 256), 64
_FOLDS = 5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WithoutBootstrapping(disco.Rule):
    """A discovered rule that does not see y and z when it makes the targets of y and z.

    DiscoRL, figure 4e. That it sees them nowhere is `DiscoveredRule.reads_predictions`.
    """

    rule: DiscoveredRule

    @property
    def target_params_coefficient(self) -> float | None:  # pyright: ignore
        return self.rule.target_params_coefficient

    def output_shapes(self, num_actions: int) -> OutputShapes:
        return self.rule.output_shapes(num_actions)

    def init_memory(self) -> Any:
        return self.rule.init_memory()

    def targets(
        self,
        outputs: disco.Outputs,
        target_outputs: disco.Outputs | None,
        trajectory: disco.Trajectory,
        state: disco.RuleState,
    ) -> tuple[DiscoveredTargets, disco.RuleState]:
        blind = dataclasses.replace(self.rule, reads_predictions=False)
        hidden, _ = blind.targets(outputs, target_outputs, trajectory, state)
        seeing, new_state = self.rule.targets(outputs, target_outputs, trajectory, state)
        return dataclasses.replace(seeing, y=hidden.y, z=hidden.z), new_state

    def transition_losses(
        self, outputs: disco.Outputs, targets: Any, trajectory: disco.Trajectory
    ) -> tuple[Float[Array, "T B"], Metrics]:
        return self.rule.transition_losses(outputs, targets, trajectory)


def outputs_along(
    agent: Agent, params: disco.Params, trajectory: disco.Trajectory
) -> dict[str, np.ndarray]:
    """The network's outputs `[T+1, B, ...]`; of z those at the actions taken, `[T, B, Y]`."""
    found: dict[str, list[np.ndarray]] = {}
    unroll = jax.jit(agent.network.unroll)
    for i in range(trajectory.action.shape[1]):  # One by one: z of all actions is large.
        outputs = jax.device_get(unroll(params, one_environment(trajectory, i)))
        for name, x in outputs.items():
            if name not in ("z", "aux_pi"):
                found.setdefault(name, []).append(x)
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


def quantities(
    rule: DiscoveredRule, outputs: Mapping[str, np.ndarray], trajectory: disco.Trajectory
) -> dict[str, Float[np.ndarray, "T B"]]:
    """Confidence (negative entropy) of y and z, the policy's entropy, value and reward.

    z is that of the action taken.

    Args:
      rule: which knows the bins of q.
      outputs: of `outputs_along`.
      trajectory: that they are of.
    """
    policy = np.asarray(jax.nn.softmax(outputs["logits"][:-1]))
    q = np.asarray(values.decode_value(jnp.asarray(outputs["q"][:-1]), rule.max_value))
    return {
        "confidence of y (nats)": -_entropy(outputs["y"][:-1]),
        "confidence of z (nats)": -_entropy(outputs[taken("z")]),
        "policy's entropy (nats)": _entropy(outputs["logits"][:-1]),
        "value": np.sum(policy * q, axis=-1),
        "reward": np.asarray(trajectory.reward, np.float64),
    }


def _entropy(logits: np.ndarray) -> np.ndarray:
    log_p = np.asarray(jax.nn.log_softmax(logits))
    return -np.sum(np.exp(log_p) * log_p, axis=-1)


def saliency(
    rule: DiscoveredRule,
    agent: Agent,
    params: disco.Params,
    trajectory: disco.Trajectory,
    row: int,
    key: PRNGKeyArray,
    num_probes: int = 16,
) -> dict[str, Float[np.ndarray, "..."]]:
    """How strongly y, z, policy and value depend on each part of an observation.

    Of each the root of the summed squares of the derivatives of all its numbers; where there are
    hundreds (y, z), estimated with random signs (Hutchinson's estimator).

    Args:
      rule: which knows the bins of q.
      agent: whose network it is.
      params: of the network.
      trajectory: of one environment.
      row: which observation of it, not the last.
      key: of the random signs.
      num_probes: of them.

    Returns:
      By quantity, an array like the observation (the newest frame, where frames are stacked).

    Raises:
      ValueError: if the observation is not one array of numbers.
    """
    if agent.network.history.memory:
        trajectory = stretch(agent, trajectory, 0, row + 1)
    else:
        trajectory, row = stretch(agent, trajectory, row, 1), 0
    before, frames = 0, trajectory.observation
    if isinstance(frames, History):
        before, frames = agent.network.history.rows_before, frames.frames
    if not isinstance(frames, np.ndarray | jax.Array):
        raise ValueError(f"Observations are {sorted(frames)}; expected one array.")

    def numbers(frames: Array) -> dict[str, Array]:
        seen: Any = trajectory.observation
        seen = dataclasses.replace(seen, frames=frames) if isinstance(seen, History) else frames
        outputs = agent.network.unroll(params, dataclasses.replace(trajectory, observation=seen))
        policy = jax.nn.softmax(outputs["logits"][row, 0])
        q = values.decode_value(outputs["q"][row, 0], rule.max_value)
        return {
            "y": outputs["y"][row, 0],
            "z": outputs[taken("z")][row, 0],
            "policy": outputs["logits"][row, 0],
            "value": jnp.sum(policy * q)[None],
        }

    @jax.jit
    def derivatives(frames: Array, signs: dict[str, Array]) -> dict[str, Array]:
        _, pull_back = jax.vjp(numbers, frames)
        zeros = jax.tree.map(jnp.zeros_like, signs)
        return {
            name: pull_back(zeros | {name: sign})[0][row + before, 0]
            for name, sign in signs.items()
        }

    floats = jnp.asarray(frames, jnp.float32)
    shapes = jax.eval_shape(numbers, floats)
    squares: dict[str, np.ndarray] = {}
    for probe in range(num_probes):
        signs = {
            name: jax.random.rademacher(
                jax.random.fold_in(jax.random.fold_in(key, probe), i), x.shape, x.dtype
            )
            for i, (name, x) in enumerate(shapes.items())
        }
        for name, x in derivatives(floats, signs).items():
            squares[name] = squares.get(name, 0.0) + np.square(np.asarray(x)) / num_probes
    return {name: np.sqrt(x) for name, x in squares.items()}


def stretch(
    agent: Agent, trajectory: disco.Trajectory, first: int, length: int
) -> disco.Trajectory:
    """Some transitions of a trajectory; those of an agent with a memory only from its start."""
    seen, observation = agent.network.history, trajectory.observation
    assert first == 0 or not seen.memory
    rows = slice(first, first + length + 1)
    if isinstance(observation, History):
        before = slice(first, first + length + 1 + seen.rows_before)
        ages = slice(first, first + length + 1 + seen.burn_in)
        observation = History(
            frames=jax.tree.map(lambda x: x[before], observation.frames),
            age=observation.age[ages],
        )
    else:
        observation = jax.tree.map(lambda x: x[rows], observation)
    steps = dataclasses.replace(trajectory, observation=None, core_state=None)
    steps = jax.tree.map(lambda x: x[first : first + length], steps)
    return dataclasses.replace(steps, observation=observation, core_state=trajectory.core_state)


def influence(
    rule: disco.Rule,
    outputs: disco.Outputs,
    target_outputs: disco.Outputs | None,
    trajectory: disco.Trajectory,
    state: disco.RuleState,
    prediction: Float[Array, "T1 B A Y"],
    key: PRNGKeyArray,
) -> dict[str, Float[np.ndarray, "distances"]]:
    """How much a change of z at a later state changes the targets of now, by distance.

    z of one state is disturbed by normal noise of its own standard deviation.

    Args:
      rule: any; one that does not read z is not influenced by it.
      outputs: of an agent on the trajectory, `[T+1, B, ...]`.
      target_outputs: of its target network; None for a rule that has none.
      trajectory: of T transitions.
      state: of the agent's lifetime.
      prediction: z, to hand to the rule and to disturb.
      key: of the noise.

    Returns:
      By kind of target (every array of `targets` with a value per transition), the root of the mean
      squared change at distances 0 to T, over all pairs of a transition and a later state of the
      same episode; NaN where there is no such pair.
    """
    num_transitions = trajectory.action.shape[0]
    noise = jnp.std(prediction) * jax.random.normal(key, prediction.shape)

    def targets(z):
        told, _ = rule.targets({**outputs, "z": z}, target_outputs, trajectory, state)
        return {
            jax.tree_util.keystr(path).strip(".[]'"): x
            for path, x in jax.tree.leaves_with_path(told)
            if jnp.shape(x)[:2] == trajectory.action.shape
        }

    # What is not disturbed is computed by the same program, so that no difference is of rounding.
    rows = jnp.arange(num_transitions + 2) % (num_transitions + 1)
    scales = jnp.ones(num_transitions + 2).at[-1].set(0.0)

    @jax.jit
    def all_targets():
        return jax.lax.map(
            lambda x: targets(prediction.at[x[0]].add(x[1] * noise[x[0]])), (rows, scales)
        )

    found = {name: np.asarray(x) for name, x in all_targets().items()}
    changes = {
        name: np.square(x[:-1] - x[-1])
        .reshape(num_transitions + 1, *trajectory.action.shape, -1)
        .mean(axis=-1)
        for name, x in found.items()
    }
    ends = np.asarray(trajectory.last).cumsum(axis=0)
    ends = np.concatenate([np.zeros_like(ends[:1]), ends])  # Before each state.
    later, now = np.meshgrid(
        np.arange(num_transitions + 1), np.arange(num_transitions), indexing="ij"
    )
    same = (later >= now)[..., None] & (ends[later] == ends[now])
    distance = np.broadcast_to((later - now)[..., None], same.shape)
    counts = np.bincount(distance[same], minlength=num_transitions + 1)
    return {
        name: np.sqrt(
            divide(np.bincount(distance[same], squares[same], num_transitions + 1), counts)
        )
        for name, squares in changes.items()
    }


def information(
    rule: DiscoveredRule,
    outputs: Mapping[str, np.ndarray],
    trajectory: disco.Trajectory,
    horizon: int,
    seed: int,
    max_iter: int = 60,
) -> dict[str, dict[str, tuple[float, float]]]:
    """How well the near future can be read from y, z, policy and value.

    Probes are MLPs, trained on four fifths of the data and tested on the other, in turn. Folds
    divide time, so that no test lies between training data.

    Args:
      rule: which knows the bins of q.
      outputs: of `outputs_along`.
      trajectory: that they are of.
      horizon: transitions that the future has.
      seed: of the probes.
      max_iter: passes over the data at most.

    Returns:
      By what is asked, then by what it is read from, mean and standard deviation over the folds:
      R² of the policy's mean entropy over the horizon, and the accuracy of whether a large reward
      comes within it (one of the largest tenth of those that are not 0). `"chance"` answers the
      mean, or the more frequent class. What never changes is not asked.
    """
    known = quantities(rule, outputs, trajectory)
    usable = trajectory.action.shape[0] - horizon
    rewards = np.asarray(trajectory.reward, np.float64)
    paid = np.abs(rewards[rewards != 0])
    large = rewards >= (np.quantile(paid, 0.9) if paid.size else np.inf)

    def ahead(x: np.ndarray) -> np.ndarray:
        return np.stack([x[1 + i : 1 + i + usable] for i in range(horizon)])

    asked = {
        "future entropy (R²)": ahead(known["policy's entropy (nats)"])[:, :usable].mean(axis=0),
        "large reward (accuracy)": ahead(large).any(axis=0),
    }
    inputs = {
        "y": outputs["y"][:usable],
        "z": outputs[taken("z")][:usable],
        "policy": outputs["logits"][:usable],
        "value": known["value"][:usable, :, None],
    }
    # Stretches of time, some of each environment, in turn in each fold.
    groups = np.broadcast_to(
        (np.arange(usable) * _FOLDS // usable)[:, None], (usable, rewards.shape[1])
    )
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for question, answer in asked.items():
        flat, is_class = answer.ravel(), answer.dtype == bool
        if len(np.unique(flat)) < 2:
            continue
        models: dict[str, tuple[Any, np.ndarray]] = {
            name: (_probe(x.shape[-1], is_class, seed, max_iter), x.reshape(flat.size, -1))
            for name, x in inputs.items()
        }
        dummy = DummyClassifier(strategy="prior") if is_class else DummyRegressor()
        models["chance"] = dummy, inputs["value"].reshape(flat.size, -1)
        found[question] = {}
        for name, (model, x) in models.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # As `max_iter` says.
                scores = cross_val_score(
                    model,
                    x,
                    flat,
                    groups=groups.ravel(),
                    cv=GroupKFold(_FOLDS),
                    error_score="raise",  # pyright: ignore
                )
            found[question][name] = float(np.mean(scores)), float(np.std(scores))
    return found


def _probe(size: int, is_class: bool, seed: int, max_iter: int) -> Any:
    kind = MLPClassifier if is_class else MLPRegressor
    layers = _WIDE_PROBE if size >= _WIDE_INPUT else _PROBE
    network = kind(
        hidden_layer_sizes=layers, early_stopping=True, max_iter=max_iter, random_state=seed
    )
    return make_pipeline(StandardScaler(), network)


def learn(
    rule: disco.Rule,
    agent: Agent,
    task: environments.Environment,
    num_updates: int,
    seed: int,
    report: Callable[[int], None] = lambda updates: None,
    interval: int = 50,
) -> LearnerState:
    """Trains an agent in a JAX environment.

    Args:
      rule: to learn by.
      agent: who learns.
      task: to learn on.
      num_updates: how many.
      seed: of all randomness.
      report: called with the updates made, every `interval` of them.
      interval: see `report`.
    """

    @partial(jax.jit, donate_argnums=1)
    def some(rule, state, first, number):
        def update(i, state):
            update_key = jax.random.fold_in(key, first + i)
            return agent.update(rule, state, task.task, update_key)[0]

        return jax.lax.fori_loop(0, number, update, state)

    birth_key, key = jax.random.split(jax.random.key(seed))
    state = jax.jit(agent.init)(rule, task.task, birth_key)
    for first in range(0, num_updates, interval):
        number = min(interval, num_updates - first)
        state = jax.block_until_ready(some(rule, state, jnp.int32(first), jnp.int32(number)))
        report(first + number)
    return state.learner


def learner_outputs(
    agent: Agent, learner: LearnerState, trajectory: disco.Trajectory
) -> tuple[disco.Outputs, disco.Outputs | None]:
    """All outputs of an agent's network and of its target network, if there is one."""
    unroll = jax.jit(agent.network.unroll)
    target = learner.rule.target_params
    return unroll(learner.params, trajectory), None if target is None else unroll(
        target, trajectory
    )
