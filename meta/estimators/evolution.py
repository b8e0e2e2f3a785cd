"""Evolution strategies: a rule improves by what agents learn from it in whole lifetimes.

A meta-gradient goes through a few updates of an agent, and does not see what a rule makes of the
agent after hundreds. Here a meta-step is a generation:

1. perturb: a search proposes P candidates, the rule with perturbed parameters (OpenES: Salimans et
   al. 2017, arXiv 1703.03864, by antithetic pairs; CMA-ES: Hansen 2016, arXiv 1604.00772);
2. learn: for each of M tasks with a budget, P fresh agents learn it, each by a candidate, for the
   whole budget. Task, budget, initial agent and random numbers are the same for all P;
3. rank: a candidate's fitness is the mean over the tasks of its rank among the P by the mean
   return of the episodes that ended in the last fifth. So no scale of rewards counts, and no
   reference score is needed;
4. update: the search moves its mean, the rule (OpenES by Adam), and the moving average follows.

Tasks and budgets are drawn anew for each generation (`Evolution.draw`). The searches are the
library evosax's.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import evosax.algorithms as searches
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents.rule_agent import AgentConfig, make_agent
from disco_common import keys
from disco_common.keys import Purpose
from environments import registry
from meta.config import DiscoveryConfig
from meta.estimators.protocol import Metrics, finite_mean
from training.device_program import Lifetimes, mesh
from training.memory_budget import require_memory_for_runs
from training.schedule import TrainingConfig

_SCORED = 0.2  # Of a lifetime, at its end.


class Drawn(NamedTuple):
    """A task of a generation, and the environment steps for which each agent learns it."""

    task: int
    budget: int


class Generation(NamedTuple):
    """What was tried in a generation: its tasks, and each candidate's mean return on each."""

    drawn: Sequence[Drawn]
    returns: Float[np.ndarray, "M P"]
    norm: float


@chex.dataclass(frozen=True)
class EvolutionState:
    """The state of a run.

    Attributes:
      rule: at the mean of the search's distribution.
      average: the moving average of these rules, to be exported.
      search: the state of the search, evosax's.
      meta_step: number of generations so far.
    """

    rule: disco.DiscoveredRule
    average: disco.DiscoveredRule
    search: PyTree[Array]
    meta_step: Int[Array, ""]


class Evolution:
    """A discovery by evolution (`meta.estimators.protocol.Discovery`), in JAX environments."""

    has_hosts = False
    can_stop_within = True
    host_replay_bytes = 0

    def __init__(
        self,
        config: DiscoveryConfig,
        tasks: tuple[environments.Environment, ...],
        rule: disco.DiscoveredRule,
    ):
        """Prepare a run from a rule, on all devices of this process.

        Raises:
          ValueError: if there are no P candidates, or no such layers.
        """
        self.config, self._tasks, self._initial_rule = config, tasks, rule
        self._num_candidates = _num_candidates(config)
        self._draw_once = functools.cache(self.draw)
        self._names = config.evolution.layers or tuple(rule.parameters)
        if unknown := sorted({*self._names} - {*rule.parameters}):
            raise ValueError(
                f"evolution.layers has {unknown}; expected some of {sorted(rule.parameters)}."
            )
        self._search = Search(config, self._num_candidates, self._perturbed(rule))

    def _perturbed(self, rule: disco.DiscoveredRule) -> dict[str, Any]:
        """Return the parameters that are perturbed, by layer."""
        return {name: rule.parameters[name] for name in self._names}

    def _with(self, parameters: Mapping[str, Any]) -> disco.DiscoveredRule:
        """Return the rule with other values of the parameters that are perturbed."""
        rule = self._initial_rule
        return dataclasses.replace(rule, parameters={**rule.parameters, **parameters})

    @functools.cached_property
    def abstract_state(self) -> EvolutionState:
        replicated = jax.sharding.NamedSharding(mesh(), jax.sharding.PartitionSpec())
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated),
            jax.eval_shape(self.init),
        )

    @functools.cached_property
    def agents_stacked(self) -> EvolutionState:
        return jax.tree.map(lambda _: 0, self.abstract_state)

    def check(self) -> None:
        """Check that tasks are in JAX, agents fit in memory, and what environments return.

        Raises:
          OutputError: if an environment returns something else than it declares.
          ValueError: if a task is simulated on the host, there are fewer tasks than a generation
            has or several processes, a budget has no update, or the agents do not fit in memory.
        """
        config = self.config
        if on_host := [task.name for task in self._tasks if task.is_host]:
            raise ValueError(
                f"{on_host!r:.300} are simulated on the host; expected JAX environments with"
                f" estimator {config.estimator!r}."
            )
        if len(self._tasks) < config.evolution.num_tasks:
            raise ValueError(
                f"evolution.num_tasks is {config.evolution.num_tasks}; expected at most"
                f" {len(self._tasks)}, the tasks of the suite."
            )
        if jax.process_count() > 1:
            raise ValueError(
                f"estimator is {config.estimator!r} in {jax.process_count()} processes; expected"
                " one process, with all devices of a machine."
            )
        for task in self._tasks:
            environments.require_declared_outputs(task)
        longest = max(config.population.lifetimes)
        for group in environments.group_by_dynamics(self._tasks):
            task = next(task for task in self._tasks if task.name == group.names[0])
            agent = make_agent(self._initial_rule, self._agent_config(task, longest), task)
            steps, least = agent.requirements.steps_per_unroll, min(config.population.lifetimes)
            if int((1.0 - _SCORED) * least) < steps:
                raise ValueError(
                    f"population.lifetimes has {least}; expected environment steps for two unrolls"
                    f" of {steps} at least."
                )
            require_memory_for_runs(
                f"{self._num_candidates} agents",
                agent,
                task.dynamics,
                self._num_candidates,
                longest,
                config.meta.agents_at_once,
            )

    def init(self) -> EvolutionState:
        rule = jax.tree.map(jnp.asarray, self._initial_rule)
        key = keys.key(self.config.seed, Purpose.INITIALIZE)
        search = self._search.init(key, self._perturbed(rule))
        return EvolutionState(rule=rule, average=rule, search=search, meta_step=jnp.int32(0))

    def restored(self, state: EvolutionState) -> EvolutionState:
        return state

    def compile(self) -> None:
        """Compile nothing: a generation compiles what its tasks need, and keeps it."""

    def step(
        self, state: EvolutionState, report: Callable[[float], None] = lambda part: None
    ) -> tuple[EvolutionState, Generation]:
        """Make a generation; raises StoppedBySignal after a stop signal."""
        number, seed = int(state.meta_step), self.config.seed
        ask, tell = (keys.key(seed, Purpose.TRAIN, number, part) for part in range(2))
        candidates, search = self._search.ask(ask, state.search)
        rules = [
            self._with(jax.tree.map(lambda x, i=i: x[i], candidates))
            for i in range(self._num_candidates)
        ]
        drawn, returns, done = self._draw_once(number), [], 0
        total = sum(one.budget for one in drawn)
        for one in drawn:

            def add(steps: int, before: int = done) -> None:
                report((before + steps / self._num_candidates) / total)

            returns.append(self._mean_returns(rules, one, number, add))
            done += one.budget
        fitness = np.mean([_ranks(x) for x in returns], axis=0)
        mean, search = self._search.tell(tell, candidates, fitness, search)
        rule = self._with(mean)
        decay = min(self.config.meta.average_decay, number / (number + 1.0))
        average = jax.tree.map(lambda a, x: decay * a + (1.0 - decay) * x, state.average, rule)
        norm = float(jnp.linalg.norm(search.mean - state.search.mean))
        new = EvolutionState(
            rule=rule, average=average, search=search, meta_step=state.meta_step + 1
        )
        return new, Generation(drawn, np.array(returns), norm)

    def draw(self, generation: int) -> tuple[Drawn, ...]:
        """Return the tasks of a generation: one of each of M nearly equal parts, in order.

        Budgets are drawn with probability inversely proportional to the budget, as those of
        `meta.population`.
        """
        config, random = self.config, np.random.default_rng([self.config.seed, generation])
        lifetimes = np.sort(config.population.lifetimes)
        if interval := config.evolution.generations_per_lifetime:
            lifetimes = lifetimes[: 1 + generation // interval]
        weights = 1.0 / lifetimes
        parts = np.array_split(np.arange(len(self._tasks)), config.evolution.num_tasks)
        tasks = [int(random.choice(part)) for part in parts]
        budgets = random.choice(lifetimes, len(parts), p=weights / weights.sum())
        return tuple(map(Drawn, tasks, budgets.tolist()))

    def _mean_returns(
        self,
        rules: Sequence[disco.DiscoveredRule],
        drawn: Drawn,
        number: int,
        report: Callable[[int], None],
    ) -> Float[np.ndarray, "P"]:
        """Return the mean return of an agent of each rule; NaN where no scored episode ended."""
        task = self._tasks[drawn.task]
        config = self._agent_config(task, drawn.budget)
        agents = [make_agent(rule, config, task) for rule in rules]
        seed = int(np.random.default_rng([self.config.seed, number, drawn.task]).integers(2**32))
        settings = TrainingConfig(drawn.budget, runs_at_once=self.config.meta.agents_at_once)
        lifetimes = Lifetimes(agents, task, seed, settings)
        unrolls = settings.num_unrolls(lifetimes.steps_per_unroll)
        scored_from = int((1.0 - _SCORED) * unrolls)
        states, _ = lifetimes.advance(lifetimes.init(), 0, scored_from, report)
        before = scored_from * lifetimes.steps_per_unroll * len(rules)
        _, episodes = lifetimes.advance(
            states, scored_from, unrolls, lambda steps: report(before + steps)
        )
        with np.errstate(invalid="ignore"):
            return np.asarray(episodes.return_sum / episodes.count)

    def _agent_config(self, task: environments.Environment, budget: int) -> AgentConfig:
        own = self.config.family_agents.get(registry.family_of(task.name), self.config.agent)
        return dataclasses.replace(own, lifetime=budget)

    def summarize(self, window: Sequence[Generation]) -> Metrics:
        """Return the means over generations; `agents` has the returns of the last one."""
        last = window[-1]
        names = [self._tasks[one.task].name for one in last.drawn]
        number = self._num_candidates
        flat = [float(x) if np.isfinite(x) else None for x in last.returns.ravel()]
        return {
            "mean_return": finite_mean(np.concatenate([x.returns.ravel() for x in window])),
            "update_norm": float(np.mean([x.norm for x in window])),
            "agents": {
                "task": [name for name in names for _ in range(number)],
                "validation_reward": flat,
                "steps_since_reset": [one.budget for one in last.drawn for _ in range(number)],
            },
        }

    def environment_steps(self, meta_steps: int) -> int:
        """Return the environment steps of all agents in the first generations."""
        return sum(self._steps_by_task(meta_steps).values())

    def average_rule(self, state: EvolutionState) -> tuple[disco.DiscoveredRule, dict[str, int]]:
        """Return the moving average of the rules, and the environment steps by task."""
        return jax.device_get(state.average), self._steps_by_task(int(state.meta_step))

    def _steps_by_task(self, generations: int) -> dict[str, int]:
        steps = collections.Counter[str]()
        for one in itertools.chain.from_iterable(map(self._draw_once, range(generations))):
            steps[self._tasks[one.task].name] += self._num_candidates * one.budget
        return dict(steps)

    def close(self) -> None:
        """Stop nothing: there are no host environments."""


def _num_candidates(config: DiscoveryConfig) -> int:
    """Return P, or raise ValueError if the population is not one of pairs for each task."""
    size, num_tasks = config.population.size, config.evolution.num_tasks
    number, rest = divmod(size, num_tasks)
    if rest or number % 2 or number < 4:
        raise ValueError(
            f"population.size is {size}; expected a multiple of 2 evolution.num_tasks"
            f" ({2 * num_tasks}), and at least {4 * num_tasks}: pairs of candidates, each with an"
            " agent for each task of a generation."
        )
    return number


class Search:
    """A search of evosax by the configured estimator: `init`, `ask`, `tell`."""

    def __init__(self, config: DiscoveryConfig, num_candidates: int, parameters: PyTree[Array]):
        settings = config.evolution
        with _promoting():
            if config.estimator == "cma_es":
                self._own = searches.CMA_ES(num_candidates, parameters)
                start = self._own.default_params
                self._params = start.replace(std_init=jnp.float32(settings.sigma))
                return
            self._own = searches.Open_ES(
                num_candidates,
                parameters,
                optimizer=optax.adam(config.meta.learning_rate),
                std_schedule=optax.constant_schedule(settings.sigma),
                fitness_shaping_fn=lambda population, fitness, state, params: fitness,
            )
            self._params = self._own.default_params

    def init(self, key: PRNGKeyArray, mean: PyTree[Array]) -> PyTree[Array]:
        """Return the state of a search around a mean."""
        with _promoting():
            return self._own.init(key, mean, self._params)

    def ask(self, key: PRNGKeyArray, state: PyTree[Array]) -> tuple[PyTree[Array], PyTree[Array]]:
        """Return P candidates, with a leading axis, and the state."""
        with _promoting():
            return self._own.ask(key, state, self._params)

    def tell(
        self,
        key: PRNGKeyArray,
        candidates: PyTree[Array],
        fitness: Float[np.ndarray, "P"],
        state: PyTree[Array],
    ) -> tuple[PyTree[Array], PyTree[Array]]:
        """Return the mean and the state after the candidates' fitness, which is maximised."""
        with _promoting():
            loss = -jnp.asarray(fitness, jnp.float32)
            state, _ = self._own.tell(key, candidates, loss, state, self._params)
            return self._own.get_mean(state), state


@contextlib.contextmanager
def _promoting() -> Iterator[None]:
    """Let evosax mix dtypes and ranks, as JAX does unless it is told not to."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _ranks(returns: Float[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    """Return the ranks of returns, from -1/2 to 1/2; NaN is the lowest, equal ones share theirs."""
    known = np.where(np.isnan(returns), -np.inf, returns)
    return (scipy.stats.rankdata(known) - 1.0) / (len(known) - 1.0) - 0.5
