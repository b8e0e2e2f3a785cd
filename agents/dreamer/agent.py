"""Dreamer as an agent that trains itself: it acts, remembers, and learns at a fixed ratio.

For every step that it acts, it learns from `replay_ratio` replayed ones. Environments of both kinds
are stepped from the host; acting and learning are a compiled call each.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import time
import zlib
from collections.abc import Generator, Mapping
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import PRNGKeyArray

import environments
from agents.dreamer import held_out, learner
from agents.dreamer.config import (
    ABLATIONS,
    BENCHMARKS,
    PRESETS,
    DreamerConfig,
    changed,
    laptop,
    preset,
    sizes,
)
from agents.dreamer.learner import ActorState
from agents.dreamer.losses import Batch
from agents.dreamer.model import Model, make_model
from agents.dreamer.networks import ActionPart, Specs, is_image
from agents.dreamer.replay import DreamerReplay
from agents.dreamer.rssm import State, initial_state
from agents.pictures import is_picture
from agents.self_contained import TrainingReport
from disco_common.atomic import write_atomically
from disco_common.checkpoints import Checkpoints
from disco_common.memory import free_memory
from environments.episodes import Episode, EpisodeTracker

_ACTION = "action"
_OBSERVATION = "observation"
_JUDGED_STEPS, _JUDGED_ENVIRONMENTS = 200, 8  # That a trained model is judged by.
_JUDGED = 2**31 - 1  # Stands for the step of a run in its simulators' seed; no run has so many.
_SMALLEST_IMAGE = 8
_MOST_UPDATES = 200  # In a stretch, after which a checkpoint may be written.
_INIT, _ACT, _LEARN, _JUDGE, _FORESEE = range(5)  # What random keys are for.


@dataclasses.dataclass(frozen=True)
class Dreamer:
    """DreamerV3.

    Attributes:
      config: all of its settings.
      of_family: other ones for some families of environments, by their names.
      stretches: that a run is told of in, about, or in more if they were longer than 200 updates.
    """

    config: DreamerConfig
    of_family: Mapping[str, DreamerConfig] = dataclasses.field(default_factory=dict)
    stretches: int = 200

    @property
    def settings(self) -> Mapping[str, Any]:
        families = {name: dataclasses.asdict(x) for name, x in self.of_family.items()}
        return dataclasses.asdict(self.config) | ({"of_family": families} if families else {})

    def config_for(self, task: environments.Environment) -> DreamerConfig:
        """Its settings on a task."""
        return self.of_family.get(task.name.partition("/")[0], self.config)

    def check(self, task: environments.Environment, num_steps: int) -> None:
        observations = _observations(task)
        if not observations:
            raise ValueError(f"{task.name} has no observation; Dreamer expects some.")
        for name, spec in observations.items():
            if not isinstance(spec, specs.Array):
                raise ValueError(
                    f"Dreamer cannot encode {task.name}'s observation {name!r}, which is"
                    f" {type(spec).__name__}; expected an array, or a dictionary of arrays."
                )
            if not math.prod(spec.shape):
                raise ValueError(
                    f"Dreamer cannot encode {task.name}'s observation {name!r} of {spec.shape};"
                    " expected some numbers."
                )
            if spec.dtype.kind not in "biuf":
                raise ValueError(
                    f"Dreamer cannot encode {task.name}'s observation {name!r} of {spec.dtype};"
                    " expected numbers."
                )
            if is_image(spec) and min(spec.shape[:2]) < _SMALLEST_IMAGE:
                raise ValueError(
                    f"Dreamer cannot encode {task.name}'s image {name!r} of {spec.shape}; expected"
                    f" sides of at least {_SMALLEST_IMAGE}."
                )
        images = {x.shape[:2] for x in observations.values() if is_image(x)}
        if len(images) > 1:
            raise ValueError(
                f"{task.name} has images of {sorted(images)}; Dreamer expects one size."
            )
        spec = task.dynamics.action_spec()
        is_bounded = (
            isinstance(spec, specs.BoundedArray)
            and len(spec.shape) == 1
            and np.issubdtype(spec.dtype, np.floating)
            and np.isfinite([spec.minimum, spec.maximum]).all()
        )
        if not isinstance(spec, specs.DiscreteArray) and not is_bounded:
            raise ValueError(
                f"Dreamer cannot act in {task.name}, whose actions are {spec}; expected a choice,"
                " or a vector of numbers between finite bounds."
            )
        _check_sizes(_model(self.config_for(task), *_interfaces(task)), num_steps)

    def train(
        self,
        task: environments.Environment,
        seed: int,
        num_steps: int,
        folder: pathlib.Path,
        checkpoint_seconds: float,
    ) -> Generator[TrainingReport]:
        config = self.config_for(task)
        with contextlib.ExitStack() as stack:
            checkpoints = Checkpoints(folder / "checkpoints", keep=2)
            stack.enter_context(contextlib.closing(checkpoints))
            run = _Run(config, task, seed, checkpoints, num_steps)
            stack.callback(run.close)
            yield TrainingReport(run.steps)
            saved_at, each = time.monotonic(), self._stretch(config, num_steps)
            while run.steps < num_steps:
                stretch = run.live(min(each, num_steps - run.steps))
                if run.steps >= num_steps:
                    metrics = {**stretch.metrics, **run.judge(folder)}
                    stretch = dataclasses.replace(stretch, metrics=metrics)
                try:
                    yield stretch
                except GeneratorExit:
                    if run.steps < num_steps:
                        run.save()
                    raise
                if time.monotonic() - saved_at > checkpoint_seconds:
                    run.save()
                    saved_at = time.monotonic()

    def _stretch(self, config: DreamerConfig, num_steps: int) -> int:
        """Steps of a stretch; the same whenever a run is stopped and started again."""
        per_step = config.replay_ratio / (config.batch_size * config.batch_length)
        return max(1, min(num_steps // self.stretches, int(_MOST_UPDATES / per_step)))


class _Run:
    """An agent on its way.

    Attributes:
      steps: environment steps made, in all environments together.
    """

    def __init__(
        self,
        config: DreamerConfig,
        task: environments.Environment,
        seed: int,
        checkpoints: Checkpoints,
        num_steps: int,
    ):
        self._config, self._checkpoints = config, checkpoints
        self._model = _model(config, *_interfaces(task))
        key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(task.name.encode()))
        self._keys = [jax.random.fold_in(key, purpose) for purpose in range(_FORESEE + 1)]
        self._to_environment = _action_scale(task.dynamics.action_spec())
        _check_sizes(self._model, num_steps)
        number = config.num_environments
        self._learner = learner.newborn(self._model, self._keys[_INIT])
        self._actor = learner.initial_actor(self._model, number)
        self._tracker = EpisodeTracker(number)
        self._owed, self._rows = 0.0, 0  # Updates to make; vector steps made.
        self._metrics: dict[str, Any] = {}
        self._task, self._seed = task, seed
        self._start_simulators(0)
        with contextlib.ExitStack() as otherwise:
            otherwise.callback(self.close)
            self._replay = DreamerReplay(
                self._row(self._actor, self._timestep),
                _replay_steps(config, num_steps),
                config.batch_length,
                online=config.online_queue,
            )
            self._restore()
            otherwise.pop_all()

    @property
    def steps(self) -> int:
        """Environment steps made."""
        return self._rows * self._config.num_environments

    def close(self) -> None:
        """Ends the simulators."""
        self._simulators.close()

    def live(self, num_steps: int) -> TrainingReport:
        """Makes so many steps or a few more; metrics are those of the last update among them."""
        episodes: list[Episode] = []
        self._metrics = {}
        target = self.steps + num_steps
        while self.steps < target:
            episodes += self._act()
            self._learn()
        metrics = {name: float(x) for name, x in jax.device_get(self._metrics).items()}
        metrics["updates"] = float(self._learner.updates)
        metrics["replay_ratio"] = (
            metrics["updates"] * self._config.batch_size * self._config.batch_length / self.steps
        )
        return TrainingReport(self.steps, episodes, metrics)

    def _act(self) -> list[Episode]:
        """A step in each environment; the episodes that ended with it."""
        key = jax.random.fold_in(self._keys[_ACT], self._rows)
        self._actor, row, self._timestep = self._step(
            self._simulators, self._actor, self._timestep, key
        )
        self._replay.insert(row)
        self._rows += 1
        simulators = self._simulators
        return self._tracker.follow(self._timestep, simulators.results, simulators.restarts)

    def _step(
        self,
        simulators: environments.Simulators,
        actor: ActorState,
        timestep: dm_env.TimeStep,
        key: PRNGKeyArray,
    ) -> tuple[ActorState, dict[str, np.ndarray], dm_env.TimeStep]:
        """Acts on a time step: the actor after it, what to remember of it, and the next."""
        actor = learner.act(
            self._model,
            self._learner.params,
            actor,
            _named(timestep.observation),
            timestep.step_type == dm_env.StepType.FIRST,
            key,
        )
        row = self._row(actor, timestep)  # Before the simulators write over the time step.
        following = simulators.step(self._to_environment(row[f"action/{_ACTION}"]))
        return actor, row, following

    def _row(self, actor: ActorState, timestep: dm_env.TimeStep) -> dict[str, np.ndarray]:
        """What is remembered of a step; a copy."""
        is_last = timestep.step_type == dm_env.StepType.LAST
        row = {
            **{f"observation/{k}": np.array(x) for k, x in _named(timestep.observation).items()},
            **{f"action/{k}": np.asarray(x) for k, x in actor.action.items()},
            "reward": np.array(timestep.reward, np.float32),
            "is_first": timestep.step_type == dm_env.StepType.FIRST,
            "is_last": is_last,
            "is_terminal": is_last & (timestep.discount == 0),
        }
        return row | (_latents(actor.state) if self._config.stored_latents else {})

    def _learn(self) -> None:
        """The updates that are owed by now."""
        config = self._config
        if self._replay.sequences < config.prefill:
            return
        per_step = config.num_environments * config.replay_ratio
        self._owed += per_step / (config.batch_size * config.batch_length)
        while self._owed >= 1.0:
            self._owed -= 1.0
            update = int(self._learner.updates)
            random = np.random.default_rng((self._seed, update))
            rows, drawn = self._replay.sample(random, config.batch_size)
            batch, start = _batch(rows, config)
            key = jax.random.fold_in(self._keys[_LEARN], update)
            self._learner, states, self._metrics = learner.learn(
                self._model, self._learner, batch, start, key
            )
            if config.stored_latents:
                self._replay.refresh(drawn, _latents(states))

    def judge(self, folder: pathlib.Path) -> dict[str, float]:
        """Figures of the model on experience that is not learned from; pictures go to the folder.

        Neither counts as steps of the run, nor changes what follows.
        """
        number = min(self._config.num_environments, _JUDGED_ENVIRONMENTS)
        seed = environments.seed_of(self._task.name, self._seed, _JUDGED)
        simulators = environments.start(self._task, number, seed)
        with contextlib.closing(simulators):
            timestep, rows = simulators.reset(), []
            actor = learner.initial_actor(self._model, number)
            for t in range(_JUDGED_STEPS):
                actor, row, timestep = self._step(
                    simulators, actor, timestep, jax.random.fold_in(self._keys[_JUDGE], t)
                )
                rows.append(row)
        rows = [jax.tree.map(np.zeros_like, rows[0]), *rows]
        rows = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        batch, _ = _batch(rows, self._config)
        num_steps = min(held_out.CONTEXT + held_out.PREDICTED, held_out.first_episode(batch) + 1)
        foreseen = jax.device_get(
            held_out.foresee(
                self._model,
                self._learner.params,
                self._learner.scales,
                batch,
                self._keys[_FORESEE],
                num_steps,
            )
        )
        pictured = [k for k, spec in self._model.observations.items() if is_picture(spec)]
        if pictured:
            write_atomically(folder / "strip.png", held_out.strip(batch, pictured[0]))
            if num_steps > held_out.CONTEXT:
                drawn = held_out.prediction(batch, foreseen, pictured[0])
                write_atomically(folder / "prediction.png", drawn)
        return held_out.figures(batch, foreseen)

    def save(self) -> None:
        """Writes a checkpoint."""
        self._checkpoints.save(self._rows, self._snapshot())

    def _snapshot(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = {
            "learner": self._learner,
            "actor": self._actor,
            "replay": self._replay.snapshot(),
            "owed": np.float64(self._owed),
        }
        if isinstance(self._simulators, environments.JaxSimulators):
            snapshot["simulators"] = self._simulators.snapshot()
            snapshot["tracker"] = self._tracker.snapshot()
        return snapshot

    def _start_simulators(self, row: int) -> None:
        seed = environments.seed_of(self._task.name, self._seed, row)
        number = self._config.num_environments
        self._simulators = environments.start(self._task, number, seed)
        self._timestep = self._simulators.reset()

    def _restore(self) -> None:
        """Goes on from the newest good checkpoint, if there is one."""
        restored = self._checkpoints.restore(self._snapshot())
        if restored is None:
            return
        self._rows, snapshot = restored
        self._learner, self._actor = jax.device_put((snapshot["learner"], snapshot["actor"]))
        self._replay.resume(snapshot["replay"])
        self._owed = float(snapshot["owed"])
        if isinstance(self._simulators, environments.JaxSimulators):
            self._timestep = self._simulators.resume(snapshot["simulators"])
            self._tracker.resume(snapshot["tracker"])
        else:
            # The states of host simulators are lost: all episodes are cut, and others begin.
            self._replay.mark_newest("is_last")
            self._simulators.close()
            self._start_simulators(self._rows)


def make(parameters: str = "") -> Dreamer:
    """The agent `"dreamer"`, or `"dreamer/WORD,WORD..."`.

    A word is a version (`nature`, the default, or `v1`), a size of it, an ablation (of
    `config.ABLATIONS`), `paper` for size, train ratio and environments as the version's papers had
    them on each benchmark, instead of a laptop's; or a setting, as `horizon=10`, which comes last.

    Raises:
      ValueError: if a word is none of these, or a setting is not what it should be.
    """
    words = [word.strip() for word in parameters.split(",") if word.strip()]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    words = [word for word in words if "=" not in word]
    taken: dict[str, str] = {}
    version = next((word for word in words if word in PRESETS), "nature")
    for word in words:
        kinds = {"version": PRESETS, "size": sizes(version), "ablation": ABLATIONS}
        kinds["scale"] = ("paper",)
        kind = next((kind for kind, known in kinds.items() if word in known), "")
        if not kind or kind in taken:
            known = "; ".join(f"{kind}: {', '.join(known)}" for kind, known in kinds.items())
            raise ValueError(
                f"{word!r} does not say which Dreamer; expected at most one of each of {known};"
                " or settings as horizon=10."
            )
        taken[kind] = word
    size, ablation = taken.get("size", ""), taken.get("ablation", "")
    if "scale" not in taken:
        return Dreamer(changed(laptop(version, size, ablation), settings))
    families = {
        family: changed(preset(version, size, ablation, family), settings)
        for family in BENCHMARKS[version]
    }
    return Dreamer(changed(preset(version, size, ablation), settings), families)


@functools.lru_cache(maxsize=8)
def _model(config: DreamerConfig, observations: tuple, actions: tuple) -> Model:
    """The same for equal interfaces, so that it is compiled once for all of a process's runs."""
    return make_model(config, dict(observations), dict(actions))


def _interfaces(task: environments.Environment) -> tuple[tuple, tuple]:
    """What `_model` tells agents apart by."""
    spec = task.dynamics.action_spec()
    is_discrete = isinstance(spec, specs.DiscreteArray)
    size = environments.num_actions(task.dynamics) if is_discrete else spec.shape[0]
    observations = tuple((name, _Hashable(x)) for name, x in sorted(_observations(task).items()))
    return observations, ((_ACTION, ActionPart(size, is_discrete)),)


def _replay_steps(config: DreamerConfig, num_steps: int) -> int:
    """What the replay has room for, of all environments: no more than a run can fill."""
    number = config.num_environments
    rows = max(-(-num_steps // number), config.batch_length + 1)
    return number * min(config.replay_capacity // number, rows)


def _check_sizes(model: Model, num_steps: int) -> None:
    """Before anything is allocated or compiled.

    Raises:
      ValueError: if the replay of a run of so many steps can never have enough to learn from, or
        an update does not fit into the device's memory, or the replay into the host's. It counts
        twice, as a checkpoint is a copy.
    """
    config, capacity = model.config, _replay_steps(model.config, num_steps)
    most = capacity - config.num_environments * config.batch_length
    if most < config.prefill:
        raise ValueError(
            f"Dreamer learns once its replay has {config.prefill} sequences (prefill); this one can"
            f" have {max(most, 0)}, with replay_capacity {config.replay_capacity}, batch_length"
            f" {config.batch_length} and {config.num_environments} environments in a run of"
            f" {num_steps} steps."
        )
    device, host = jax.local_devices()[0], free_memory()
    # Only accelerators tell; a CPU's memory is the host's.
    own = (device.memory_stats() or {}).get("bytes_limit")
    free, needed = own or host, learner.update_bytes(model)
    if needed > free:
        raise ValueError(
            f"An update of this Dreamer needs about {needed / 1e9:.1f} GB, and {device} has"
            f" {free / 1e9:.1f} GB; expected a smaller size, batch_size (now {config.batch_size}),"
            f" batch_length ({config.batch_length}) or horizon ({config.horizon})."
        )
    replay, left = 2 * capacity * _step_bytes(model), host - (0 if own else needed)
    if replay > left:
        raise ValueError(
            f"Dreamer's replay needs {replay / 1e9:.1f} GB with the copy that a checkpoint takes,"
            f" and {left / 1e9:.1f} GB are free; expected a smaller replay_capacity (now"
            f" {config.replay_capacity})."
        )


def _step_bytes(model: Model) -> int:
    """Of the replay, for a step of one environment."""
    config = model.config
    seen = sum(math.prod(x.shape) * x.dtype.itemsize for x in model.observations.values())
    done = 4 * sum(1 if part.is_discrete else part.size for part in model.actions.values())
    latents = 4 * config.deterministic + config.latents if config.stored_latents else 0
    reward, flags = 4, 3
    return seen + done + latents + reward + flags


class _Hashable(specs.BoundedArray):
    """A spec by which dictionaries know it."""

    def __init__(self, spec: specs.Array):
        low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
        if np.issubdtype(spec.dtype, np.integer) and not isinstance(spec, specs.BoundedArray):
            low, high = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
        super().__init__(spec.shape, spec.dtype, np.min(low), np.max(high), spec.name)

    def _identity(self):
        return self.shape, str(self.dtype), float(self.minimum), float(self.maximum), self.name

    def __eq__(self, other):
        return isinstance(other, _Hashable) and self._identity() == other._identity()

    def __hash__(self):
        return hash(self._identity())


def _observations(task: environments.Environment) -> Specs:
    return _named(task.dynamics.observation_spec())


def _named(observation: Any) -> dict[str, Any]:
    """By name, also what has none."""
    return dict(observation) if isinstance(observation, Mapping) else {_OBSERVATION: observation}


def _action_scale(spec: Any):
    """From the agent's actions to the environment's: continuous ones are from -1 to 1."""
    if isinstance(spec, specs.DiscreteArray):
        return lambda action: action
    low, high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))

    def scale(action: np.ndarray) -> np.ndarray:
        share = 0.5 * (np.clip(action, -1.0, 1.0) + 1.0)
        return (low + share * (high - low)).astype(spec.dtype)

    return scale


def _batch(rows: Mapping[str, np.ndarray], config: DreamerConfig) -> tuple[Batch, State]:
    """What is learned from, and the model's states before it, from `[T + 1, B, ...]`."""

    def under(prefix: str, part: slice) -> dict[str, Any]:
        start = f"{prefix}/"
        return {k.removeprefix(start): x[part] for k, x in rows.items() if k.startswith(start)}

    later = slice(1, None)
    flags: dict[str, Any] = {
        name: rows[name][later] for name in ("reward", "is_first", "is_last", "is_terminal")
    }
    if config.stored_latents:
        z = jax.nn.one_hot(rows["z"][0], config.classes)
        start = State(jnp.asarray(rows["h"][0]), z)
    else:
        start = initial_state(config, rows["reward"].shape[1])
        flags["is_first"][0] = True
    batch = Batch(
        observation=under("observation", later), action=under("action", slice(None, -1)), **flags
    )
    return batch, start


def _latents(state: State) -> dict[str, np.ndarray]:
    """As the replay keeps them: h, and which class each variable of z has."""
    h, z = jax.device_get((state.h, state.z.argmax(axis=-1)))
    return {"h": h, "z": z.astype(np.uint8)}
