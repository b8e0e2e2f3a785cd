"""Agents of finished runs, which act.

agent = load_agent("runs/cartpole/runs/ppo/gymnax_CartPole-v1/seed_0")
simulators = environments.start(agent.task, 1, seed=0)
memory, timestep = agent.initial_memory(1), simulators.reset()
while not timestep.last():
    memory, action = agent.act(memory, timestep)
    timestep = simulators.step(action)
"""

import dataclasses
import os
import pathlib
from typing import Any

import chex
import dm_env
import jax
import numpy as np
from jaxtyping import Int, PRNGKeyArray, PyTree

import disco
import environments
from agents import registry
from agents.history import History
from agents.protocol import Agent, Mode
from agents.rule_agent import RuleAgentConfig
from disco import rule_sources
from disco_common import plugins
from disco_common.configuration import from_json
from evaluation import storage
from evaluation.config import EvaluationConfig
from evaluation.contenders import Contender
from evaluation.report.stored import read_manifest
from evaluation.rules import copy_of_rule, fingerprint, load
from evaluation.runs import ContenderRun
from training import records
from training.host_collection import make_act

_EXPECTED = "<workdir of launch.evaluate>/runs/<contender>/<task>/seed_<n>"


@chex.dataclass(frozen=True)
class ActingMemory:
    """What an agent remembers between steps, in B environments.

    Attributes:
      agent: its own memory.
      frames: the last S observations, leaves `[S, B, ...]`, for an agent that stacks frames.
      age: steps since the episode's first, `[B]`.
      key: of the actions' randomness.
      step: number of actions so far.
    """

    agent: Any
    frames: PyTree[np.ndarray]
    age: Int[np.ndarray, "B"]
    key: PRNGKeyArray
    step: int


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedAgent:
    """The agent of a finished run.

    Attributes:
      name: of the contender.
      task: that it has learned, with the observations that it chose.
      agent: functions of the agent.
      learner: the final learning state.
      acting_state: of the trained agent.
    """

    name: str
    task: environments.Environment
    agent: Agent
    learner: Any
    acting_state: Any

    def initial_memory(self, batch_size: int, seed: int = 0) -> ActingMemory:
        """Return the memory before the first step in `batch_size` environments.

        Args:
          batch_size: B.
          seed: of the actions, of a policy that draws them.
        """
        spec = self.task.dynamics.observation_spec()
        size = self.agent.requirements.history.frame_stack
        return ActingMemory(
            agent=self.agent.initial_memory(batch_size),
            frames=jax.tree.map(lambda x: np.zeros((size, batch_size, *x.shape), x.dtype), spec),
            age=np.zeros(batch_size, np.int32),
            key=jax.random.key(seed),
            step=0,
        )

    def act(
        self, memory: ActingMemory, timestep: dm_env.TimeStep, mode: Mode = Mode.EVALUATION
    ) -> tuple[ActingMemory, np.ndarray]:
        """Choose an action in each of B environments.

        Args:
          memory: after the previous step.
          timestep: the current one of each environment, leaves `[B, ...]`, as simulators return
            them (`environments.start`).
          mode: the purpose of acting.

        Returns:
          The memory after the step, and the actions `[B, ...]`.
        """
        is_first = np.asarray(timestep.step_type) == dm_env.StepType.FIRST
        age = np.where(is_first, 0, memory.age + 1).astype(np.int32)
        frames = jax.tree.map(
            lambda kept, x: np.concatenate([kept[1:], np.asarray(x)[None]]),
            memory.frames,
            timestep.observation,
        )
        if self.agent.requirements.history.is_history:
            ages: Any = age[None]
            timestep = timestep._replace(observation=History(frames=frames, age=ages))
        act = make_act(self.agent, mode)
        step = np.int32(memory.step)
        found = act(self.acting_state, memory.agent, timestep, memory.key, step)
        after = ActingMemory(
            agent=found[0], frames=frames, age=age, key=memory.key, step=memory.step + 1
        )
        return after, np.asarray(found[1])


def load_agent(folder: str | pathlib.Path, *, imports: bool = False) -> LoadedAgent:
    """Load the trained agent of a finished run of an evaluation.

    Args:
      folder: of the run, `<workdir>/runs/<contender>/<task>/seed_<n>`.
      imports: whether modules that the run's files name are imported, and functions of them called,
        for tasks, rules and agents `<module>:<function>` and `gymnasium/<module>:<id>`. Only for
        files that you trust.

    Raises:
      FileNotFoundError: if there is no such folder, or the run saved no agent.
      ValueError: if it is not the folder of a run, its rule is gone, its agent trains itself, a
        file is damaged, or a module would have to be imported.
      ImportError: if a package that its environment needs is not installed.
    """
    path = pathlib.Path(os.path.expanduser(folder)).resolve()
    if not path.is_dir():
        raise FileNotFoundError(f"{str(folder)!r} is not a folder; expected {_EXPECTED}.")
    run = _run_of(path, imports)
    agent, learner = agent_of_run(run)
    acting_state = jax.device_put(agent.acting_state(learner))
    return LoadedAgent(run.contender.name, run.task, agent, learner, acting_state)


def agent_of_run(run: ContenderRun) -> tuple[Agent, Any]:
    """Return the agent of a finished run, and its final learning state.

    Raises:
      FileNotFoundError: if the run saved no agent.
      SavedAgentError: if the file is damaged.
    """
    agent = run.contender.configured.make(run.task)
    like = jax.eval_shape(agent.init, jax.random.key(0))
    return agent, jax.device_put(records.load_agent(run.folder, like))


def _run_of(path: pathlib.Path, imports: bool) -> ContenderRun:
    """Return the run of a folder."""
    if len(path.parents) < 4 or path.parents[2].name != "runs":
        raise ValueError(f"{str(path)!r} is not the folder of a run; expected {_EXPECTED}.")
    stored = read_manifest(path.parents[3])
    runs = {
        storage.run_path(stored.folder, contender.name, task, seed): (contender, task, seed)
        for contender in stored.contenders
        for task in stored.tasks
        for seed in range(stored.config.seeds)
    }
    if path not in runs:
        raise ValueError(
            f"{str(path)!r} is no run of its evaluation, which has the contenders"
            f" {', '.join(x.name for x in stored.contenders)}, the tasks"
            f" {', '.join(stored.tasks)} and {stored.config.seeds} seeds."
        )
    contender, task, seed = runs[path]
    with plugins.names_from_files(imports=imports):
        contender = restored(contender, stored.config, stored.folder)
        made = environments.make(task)
    if contender.configured.trains_itself:
        raise ValueError(f"{contender.name} trains itself, and keeps its agent in its own way.")
    return ContenderRun.of(contender, made, seed, stored.config, stored.folder)


def restored(stored: Contender, config: EvaluationConfig, workdir: pathlib.Path) -> Contender:
    """Return a contender of an evaluation on disk (`evaluation.report.stored`), complete.

    The evaluation's workdir has copies of rule files.

    Raises:
      ValueError: if its rule is gone or another one now, or its algorithm has other settings now.
    """
    if not stored.is_rule:
        parameters = stored.algorithm.partition("/")[2]
        configured = registry.find(stored.algorithm).restored(stored.settings, parameters)
        return dataclasses.replace(stored, configured=configured)
    source, agent = stored.source, from_json(RuleAgentConfig, dict(stored.settings))
    # A file may have changed since; its copy, by the name of the contender or of the file, has not.
    # A rule of the hub is only read from its copy: reading a run downloads nothing.
    origin = str(source["file"])
    names = dict.fromkeys((stored.name, rule_sources.short_names(origin)[0]))
    copies = [str(copy_of_rule(workdir, name)) for name in names]
    for file in copies if origin.startswith(rule_sources.HUB) else [origin, *copies]:
        try:
            rule = load(stored.name, file, None, config.rule_discount)[0]
        except (OSError, disco.RuleFileError):
            continue
        if fingerprint(rule) == source["parameters_sha256"]:
            return Contender.of_rule(stored.name, rule, agent, source)
    raise ValueError(
        f"The rule {stored.name!r} is gone: {origin!r} and its copy {copies[0]!r} are missing, or"
        " other rules now."
    )
