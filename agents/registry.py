"""The registry of algorithms by name; that of environments is `environments.registry`.

An `Algorithm` makes agents. To add one, write a package like `agents/ppo` (`config.py`,
`losses.py`, `algorithm.py`) and name its `Algorithm` in `pyproject.toml`, as an entry point of the
group `disco.agents`; another package does the same, or is named as `<module>:<name>`
(`docs/extending.md`). Flags call it an agent: `NAME/PRESET,SETTING=VALUE`.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import environments
from agents.encoders import has_images
from agents.networks import NetworkConfig
from agents.protocol import Agent, TrainingReport
from agents.rule_agent import RuleAgentConfig
from agents.search_space import DEFAULTS, CommonSettings, Ranges, Settings
from disco_common import plugins
from disco_common.configuration import from_json, optional_type

IMAGES = "images"  # In `ConfiguredAlgorithm.by_task`, all environments with images.
_KINDS = {bool: "true or false", int: "a number without point", float: "a number", str: "a name"}


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A reinforcement-learning algorithm. Its functions are picklable, for Ray.

    It needs a name, a paper, presets, and `make` or `train`; all else is optional.

    Attributes:
      name: by which it is registered.
      paper: authors, year and address.
      presets: settings by name, frozen dataclasses of one class. The first is the default. If they
        have `images`, these are the side in pixels and the channels of the images that it learns
        from, where an environment offers several (`ConfiguredAlgorithm.choose_images`).
      make: returns the agent for an environment, equal ones for equal dynamics. It raises
        `ValueError` if the agent cannot act or learn there, with what it found and expected.
      check: raises `ValueError` if a run of a number of environment steps is not possible.
      configs: returns the settings that words name, and `ConfiguredAlgorithm.by_task`; by default
        those of the preset of this name.
      images: name of the preset on images, where none is named; empty for the default.
      ranges: of settings, for a search (`evaluation.studies.tuning`).
      tuned: returns the config for sizes and settings from `ranges`; those that a search lacks are
        in `agents.search_space.DEFAULTS`. By default the first preset, with these fields replaced.
      has_literature: whether its presets are its literature's; otherwise it has the network and the
        environments of the evaluated rules' agents.
      display_name: returns the name in tables and of folders, of a name with parameters; by default
        the same.
      variant: returns the word for a config's variant, which settings cannot change: each has sizes
        of its own.
      upgrade: returns settings that an earlier version stored as today's, from these and today's
        config of the same name (`disco_common.configuration.upgrade_settings`).
      train: in place of `make`, for an algorithm with its own training loop (see
        `ConfiguredAlgorithm.train`).
    """

    name: str
    paper: str
    presets: Mapping[str, Any]
    make: Callable[[Any, environments.Environment], Agent] | None = None
    check: Callable[[Any, environments.Environment, int], None] | None = None
    configs: Callable[[Sequence[str]], tuple[Any, Mapping[str, Any]]] | None = None
    images: str = ""
    ranges: Ranges = dataclasses.field(default_factory=dict)
    tuned: Callable[[CommonSettings, Settings], Any] | None = None
    has_literature: bool = True
    display_name: Callable[[str], str] | None = None
    variant: Callable[[Any], str] | None = None
    upgrade: Callable[[Mapping[str, Any], Any], Mapping[str, Any]] | None = None
    train: Callable[..., Generator[TrainingReport]] | None = None

    def __post_init__(self):
        if (self.make is None) == (self.train is None):
            raise ValueError(f"{self.name}: expected one of make and train.")

    @property
    def default(self) -> Any:
        return next(iter(self.presets.values()))

    def configured(self, parameters: str = "") -> "ConfiguredAlgorithm":
        """Return the algorithm with the settings of `PRESET,SETTING=VALUE,...`.

        Raises:
          ValueError: if there is no such preset or setting, or a value cannot be parsed or is out
            of range, or of another variant.
        """
        words, texts = _split(parameters)
        named = ConfiguredAlgorithm(self, *(self.configs or self._of_preset)(words))
        return named.replaced(_parsed(self.name, named.config, texts))

    def _of_preset(self, words: Sequence[str]) -> tuple[Any, Mapping[str, Any]]:
        if len(words) > 1 or not set(words) <= set(self.presets):
            raise ValueError(
                f"{self.name} has the parameters {','.join(words)!r}; expected one preset of"
                f" {', '.join(self.presets)} and settings as NAME=VALUE."
            )
        if words:
            return self.presets[words[0]], {}
        return self.default, {IMAGES: self.presets[self.images]} if self.images else {}

    def in_evaluation(self, common: CommonSettings, parameters: str) -> "ConfiguredAlgorithm":
        """Return what `configured` does, as an evaluation has it.

        One without literature shares the network and the environments of the evaluated rules'
        agents, others their network for images, if they have one.
        """
        made = self.configured(parameters)
        if self.has_literature:
            return made.with_images_network(common.agent.network, common.agent.frame_stack)
        tuned = self.with_tuned(common, {})
        return tuned.replaced(_parsed(self.name, tuned.config, _split(parameters)[1]))

    def with_tuned(self, common: CommonSettings, settings: Settings) -> "ConfiguredAlgorithm":
        """Return the algorithm with settings that a search has found, some or all of `ranges`.

        Raises:
          ValueError: if the algorithm has no such setting, or it is out of range.
        """
        if unknown := sorted(set(settings) - set(self.ranges)):
            raise ValueError(
                f"{self.name} has no settings {unknown}; it has {sorted(self.ranges)}."
            )
        if self.tuned is not None:
            config = self.tuned(common.with_sizes(settings), {**DEFAULTS, **settings})
            return ConfiguredAlgorithm(self, config)
        return ConfiguredAlgorithm(self, dataclasses.replace(self.default, **settings))

    def restored(self, settings: Mapping[str, Any], parameters: str = "") -> "ConfiguredAlgorithm":
        """Return the algorithm with a run's stored settings, JSON values (`settings`).

        Raises:
          ValueError: if the algorithm has other settings in this version, or the parameters that
            the run was called by say something else.
        """
        today = self.configured(parameters)

        def read(stored: Mapping[str, Any], config: Any) -> Any:
            given = stored if self.upgrade is None else self.upgrade(stored, config)
            return from_json(type(self.default), dict(given))

        try:
            own = dict(settings)
            by_task = dict(own.pop("by_task", {}))
            config = read(own, today.config)
            by_task = {x: read(y, today.by_task.get(x, today.config)) for x, y in by_task.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"The agent {self.name!r} has other settings in this version: {error}"
            ) from error
        found = ConfiguredAlgorithm(self, config, by_task)
        asked = _parsed(self.name, config, _split(parameters)[1])
        if found.replaced(asked).config != config:
            raise ValueError(
                f"The agent {self.name!r} has other settings, {settings}, than it was called by:"
                f" {parameters!r}."
            )
        return found


@dataclasses.dataclass(frozen=True)
class ConfiguredAlgorithm:
    """An algorithm with its settings, from which it makes the agent of any task.

    Attributes:
      algorithm: that is configured.
      config: its settings, a frozen dataclass of the class of its presets.
      by_task: settings that replace `config` on some tasks, by an environment's name, its family,
        or `IMAGES`.
    """

    algorithm: Algorithm
    config: Any
    by_task: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    _agents: dict[Any, Agent] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_agents": {}}  # Only what makes agents has to be picklable.

    @property
    def trains_itself(self) -> bool:
        """Whether it has its own training loop, and makes no agents."""
        return self.algorithm.train is not None

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that results depend on besides task, seed and budget; JSON values."""
        own = dataclasses.asdict(self.config)
        by_task = {name: dataclasses.asdict(config) for name, config in self.by_task.items()}
        return json.loads(json.dumps(own | ({"by_task": by_task} if by_task else {})))

    def config_for(self, task: environments.Environment) -> Any:
        names = [task.name, task.name.partition("/")[0]]
        if IMAGES in self.by_task and has_images(task.dynamics.observation_spec()):
            names.append(IMAGES)
        return next((self.by_task[x] for x in names if x in self.by_task), self.config)

    def choose_images(self, task: environments.Environment) -> environments.Environment:
        """Return a task with the images that the algorithm chooses, where it offers several.

        Their side in pixels and channels are `images` of the config, which may be empty.
        """
        images = getattr(self.config_for(task), "images", ())
        return environments.with_images(task, *images) if images else task

    def make(self, task: environments.Environment) -> Agent:
        """Return a task's agent, made once for equal dynamics; ValueError if it cannot act."""
        if self.algorithm.make is None:
            raise ValueError(f"{self.algorithm.name} trains itself.")
        config = self.config_for(task)
        known = id(config), task.dynamics
        if known not in self._agents:
            self._agents[known] = self.algorithm.make(config, task)
        return self._agents[known]

    def check(self, task: environments.Environment, num_steps: int) -> None:
        """Raise ValueError if a run of a number of environment steps is not possible on a task.

        Whether an agent can act there shows as it is made.
        """
        if self.algorithm.check is not None:
            self.algorithm.check(self.config_for(task), task, num_steps)

    def train(
        self,
        task: environments.Environment,
        seed: int,
        num_steps: int,
        folder: pathlib.Path,
        checkpoint_seconds: float,
    ) -> Generator[TrainingReport]:
        """Train an algorithm that has its own training loop, or continue, and report progress.

        Args:
          task: to learn; `environments.start` makes its simulators, of JAX and host environments.
          seed: of all randomness.
          num_steps: environment steps of the whole run. The generator is closed after the report
            that reaches them. Episodes of a report of more steps do not count.
          folder: of the run; it exists. Checkpoints go there, and, before the last report, pictures
            (`agents.pictures`), as `prediction.png` of what a world model predicts. A report shows
            all PNG files of the folder.
          checkpoint_seconds: seconds between two checkpoints, for algorithms that save any.

        Yields:
          First a report without episodes of the step that it begins with: 0, or the step of a
          checkpoint in the folder. Then reports of increasing steps, often enough for a learning
          curve: an episode counts as ended at the steps of its report. Each is recorded before the
          generator resumes, so that a checkpoint saved after a `yield` agrees with the records. A
          run that is stopped closes the generator, which may save a checkpoint then, too.
        """
        assert self.algorithm.train is not None
        own = self.config_for(task)
        return self.algorithm.train(own, task, seed, num_steps, folder, checkpoint_seconds)

    def replaced(self, changes: Mapping[str, Any]) -> "ConfiguredAlgorithm":
        """Return the algorithm with settings replaced by name, as `network.torso`, on all tasks.

        Raises ValueError if there is no such setting, or a value is out of range or of another
        variant.
        """
        name, variant = self.algorithm.name, self.algorithm.variant
        found = self.with_each_config(lambda config: _replaced(name, config, changes))
        if variant and (word := variant(found.config)) != (own := variant(self.config)):
            raise ValueError(
                f"{name}'s settings make it {word!r} with the sizes of {own!r}; expected"
                f" {name}/{word}."
            )
        return found

    def for_run(self, num_steps: int) -> "ConfiguredAlgorithm":
        """Return the algorithm for runs of environment steps, over which rates may fall."""
        return self.with_each_config(lambda config: _for_run(config, num_steps))

    def with_images_network(
        self, network: NetworkConfig, frame_stack: int
    ) -> "ConfiguredAlgorithm":
        """Return the algorithm with a network for images, if this is one and it has none itself.

        The network reads some images at once. One that learns by a rule has it on all tasks.
        """
        changes = {"network": network, "frame_stack": frame_stack}
        agent = getattr(self.config, "agent", self.config)
        own = getattr(agent, "network", None)
        is_open = isinstance(own, NetworkConfig) and not (own.channels or self.by_task)
        if not (network.channels and is_open):
            return self
        if agent is not self.config:
            return self.replaced({f"agent.{name}": x for name, x in changes.items()})
        by_task = {IMAGES: dataclasses.replace(self.config, **changes)}
        return dataclasses.replace(self, by_task=by_task)

    def with_each_config(self, change: Callable[[Any], Any]) -> "ConfiguredAlgorithm":
        """Return the algorithm with `change` applied to `config` and to each of `by_task`."""
        by_task = {name: change(config) for name, config in self.by_task.items()}
        return dataclasses.replace(self, config=change(self.config), by_task=by_task)


PLUGINS = plugins.define("disco.agents", Algorithm, is_of_values=True)


def find(name: str) -> Algorithm:
    """Return the algorithm of a name, without what stands behind a slash.

    Raises:
      ValueError: if there is none.
      disco_common.plugins.PluginError: if it cannot be imported, or is something else.
    """
    found = plugins.find(PLUGINS, name.partition("/")[0])
    if found is None:
        raise ValueError(
            f"There is no agent {name!r}; known are {plugins.names(PLUGINS) or 'none'}. Packages"
            f" add some by an entry point of the group {PLUGINS!r}."
        )
    return found()


def configured(name: str) -> ConfiguredAlgorithm:
    """Return the algorithm that `NAME/PRESET,SETTING=VALUE,...` names; raise as `find`."""
    return find(name).configured(name.partition("/")[2])


def _split(parameters: str) -> tuple[list[str], dict[str, str]]:
    """Return words and settings of `WORD,SETTING=VALUE,...`; raise ValueError if one repeats."""
    words = [word.strip() for word in parameters.split(",") if word.strip()]
    pairs = [word.split("=", 1) for word in words if "=" in word]
    if len(settings := dict(pairs)) < len(pairs):
        raise ValueError(f"{parameters!r} has a setting twice; expected each once.")
    return [word for word in words if "=" not in word], settings


def _parsed(algorithm: str, config: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a config, numbers, flags and names, that texts by name stand for."""
    kinds, found = dict(_kinds(config)), {}
    for name, text in texts.items():
        if name not in kinds:
            raise ValueError(f"{algorithm} has no setting {name!r}; expected one of {list(kinds)}.")
        kind, value = kinds[name]
        try:
            found[name] = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise ValueError(
                f"{algorithm}'s {name} is {text!r}; expected {_KINDS[kind]}, as {value!r}."
            ) from None
    return found


def _kinds(config: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the settings that text can replace: their names, types and values."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _kinds(value, f"{prefix}{field.name}.")
            continue
        kind = optional_type(config, field.name) if value is None else type(value)
        if kind in _KINDS:
            yield prefix + field.name, (kind, value)


def _replaced(algorithm: str, config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a config with settings replaced by their names, with dots for parts of a setting."""
    known = sorted(field.name for field in dataclasses.fields(config))
    own: dict[str, Any] = {}
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        part = getattr(config, first, None)
        if first not in known or (rest and not dataclasses.is_dataclass(part)):
            raise ValueError(f"{algorithm} has no setting {name!r}; expected one of {known}.")
        if rest:
            own.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    for name in {x.partition(".")[0] for x in changes if "." in x}:
        own[name] = _replaced(algorithm, getattr(config, name), own[name])
    return dataclasses.replace(config, **own)


def _for_run(config: Any, num_steps: int) -> Any:
    """Return settings with the length of the run where they leave it open."""
    if getattr(config, "total_steps", 0) is None:
        return dataclasses.replace(config, total_steps=num_steps)
    agent = getattr(config, "agent", None)
    if isinstance(agent, RuleAgentConfig):
        return dataclasses.replace(config, agent=_for_run(agent, num_steps))
    if (
        isinstance(config, RuleAgentConfig)
        and config.end_learning_rate < 1.0
        and not config.lifetime
    ):
        return dataclasses.replace(config, lifetime=num_steps)
    return config
