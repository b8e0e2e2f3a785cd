"""Evolution strategies: a rule improves by what agents learn from it in whole lifetimes.

A meta-gradient goes through a few updates of an agent, and does not see what a rule makes of the
agent after hundreds. Here a meta-step is a generation:

1. perturb: a search proposes M P candidates, the rule with perturbed parameters (OpenES: Salimans
   et al. 2017, arXiv 1703.03864, by antithetic pairs; CMA-ES: Hansen 2016, arXiv 1604.00772);
2. learn: each of M tasks with a budget is learned by P fresh agents, each by a candidate of its
   own, for the whole budget. Task, budget, initial agent and random numbers are the same for all P;
3. rank: a candidate's fitness is its rank among the P of its task by the mean return of the
   episodes that ended in the last fifth. So no scale of rewards counts, and no reference score is
   needed;
4. update: the search moves its mean, the rule (OpenES by Adam), and the moving average follows.

Tasks and budgets are drawn anew for each generation (`Evolution.draw`). The searches are the
library evosax's.
"""

import collections
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import chex
import evosax.algorithms as searches
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import disco
import environments
from agents.rule_agent import make_agent
from disco_common import keys, stopping
from disco_common.keys import Purpose
from meta.config import DiscoveryConfig
from meta.estimators import candidates
from meta.estimators.candidates import Generation
from meta.estimators.protocol import Metrics
from training.device_program import Lifetimes
from training.schedule import TrainingConfig

_SCORED = 0.2  # Of a lifetime, at its end.


class Drawn(NamedTuple):
    """A task of a generation, and the environment steps for which each agent learns it."""

    task: int
    budget: int


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
        self._num_candidates = candidates.num_candidates(config)
        self._draw_once = functools.cache(self.draw)
        self._names = candidates.layer_names(config, rule)
        self._search = Search(config, config.population.size, self._perturbed(rule))

    def _perturbed(self, rule: disco.DiscoveredRule) -> dict[str, Any]:
        """Return the parameters that are perturbed, by layer."""
        return {name: rule.parameters[name] for name in self._names}

    @functools.cached_property
    def abstract_state(self) -> EvolutionState:
        sharding = candidates.replicated()
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            jax.eval_shape(self.init),
        )

    @functools.cached_property
    def agents_stacked(self) -> EvolutionState:
        return jax.tree.map(lambda _: 0, self.abstract_state)

    def check(self) -> None:
        """Check that the run can be made.

        Raises:
          OutputError, ValueError: as `meta.estimators.candidates.check`, and if a budget has no
            update.
        """
        config = self.config
        least = min(config.population.lifetimes)
        agents = (config.agent, *config.family_agents.values())
        unroll = max(agent.steps_per_update for agent in agents)
        if int((1.0 - _SCORED) * least) < unroll:
            raise ValueError(
                f"population.lifetimes has {least}; expected environment steps for two unrolls"
                f" of {unroll} at least."
            )
        candidates.check(config, self._tasks, self._initial_rule, self._num_candidates)

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
        number = int(state.meta_step)
        rule, search, made = self.generation(number, state.rule, state.search, report)
        average = candidates.follow(state.average, rule, number, self.config.meta.average_decay)
        state = EvolutionState(
            rule=rule, average=average, search=search, meta_step=jnp.int32(number + 1)
        )
        return state, made

    def generation(
        self,
        number: int,
        rule: disco.DiscoveredRule,
        search: PyTree[Array],
        report: Callable[[float], None],
    ) -> tuple[disco.DiscoveredRule, PyTree[Array], Generation]:
        """Make generation `number` around a rule, which is at the mean of a search's state.

        Returns:
          The rule with the layers that are perturbed at the new mean, the search's state, and what
          was tried.

        Raises:
          StoppedBySignal: after a stop signal.
        """
        ask, tell = (keys.key(self.config.seed, Purpose.PERTURB, number, part) for part in range(2))
        proposed, asked = self._search.ask(ask, search)
        rules = candidates.rules_of(rule, proposed)
        drawn, returns, done = self._draw_once(number), [], 0
        total = sum(one.budget for one in drawn)
        fitness = np.zeros(len(rules), np.float32)
        for one, own in zip(drawn, candidates.by_task(self.config), strict=True):

            def add(steps: int, before: int = done) -> None:
                report((before + steps / self._num_candidates) / total)
                stopping.raise_if_requested()

            returns.append(self._mean_returns([rules[x] for x in own], one, number, add))
            fitness[own] = candidates.ranks(returns[-1])
            done += one.budget
        mean, told = self._search.tell(tell, proposed, fitness, asked)
        made = Generation(
            tasks=[self._tasks[one.task].name for one in drawn],
            ages=[one.budget for one in drawn],
            returns=np.array(returns),
            norm=float(jnp.linalg.norm(told.mean - search.mean)),
        )
        return candidates.with_layers(rule, mean), told, made

    def draw(self, generation: int) -> tuple[Drawn, ...]:
        """Return the tasks of a generation: one of each of M nearly equal parts, in order.

        Budgets are drawn as `meta.estimators.candidates.lifetimes_at` says.
        """
        config, random = self.config, np.random.default_rng([self.config.seed, generation])
        lifetimes, weights = candidates.lifetimes_at(config, generation)
        parts = np.array_split(np.arange(len(self._tasks)), config.evolution.num_tasks)
        tasks = [int(random.choice(part)) for part in parts]
        budgets = random.choice(lifetimes, len(parts), p=weights)
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
        config = candidates.agent_config(self.config, task, drawn.budget)
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
        return candidates.mean_returns(episodes)

    def summarize(self, window: Sequence[Generation]) -> Metrics:
        return candidates.summarize(window)

    def environment_steps(self, meta_steps: int) -> int:
        """Return the environment steps of all agents in the first generations."""
        return sum(self.steps_by_task(meta_steps).values())

    def average_rule(self, state: EvolutionState) -> tuple[disco.DiscoveredRule, dict[str, int]]:
        """Return the moving average of the rules, and the environment steps by task."""
        return jax.device_get(state.average), self.steps_by_task(int(state.meta_step))

    def steps_by_task(self, generations: int) -> dict[str, int]:
        """Return the environment steps of all agents in the first generations, by task."""
        steps = collections.Counter[str]()
        for one in itertools.chain.from_iterable(map(self._draw_once, range(generations))):
            steps[self._tasks[one.task].name] += self._num_candidates * one.budget
        return dict(steps)

    def close(self) -> None:
        """Stop nothing: there are no host environments."""


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
                optimizer=optax.adam(settings.learning_rate),
                std_schedule=optax.constant_schedule(settings.sigma),
                fitness_shaping_fn=lambda population, fitness, state, params: fitness,
            )
            self._params = self._own.default_params

    def init(self, key: PRNGKeyArray, mean: PyTree[Array]) -> PyTree[Array]:
        """Return the state of a search around a mean."""
        with _promoting():
            return self._own.init(key, mean, self._params)

    def ask(self, key: PRNGKeyArray, state: PyTree[Array]) -> tuple[PyTree[Array], PyTree[Array]]:
        """Return the candidates of a generation, with a leading axis, and the state."""
        with _promoting():
            return self._own.ask(key, state, self._params)

    def tell(
        self,
        key: PRNGKeyArray,
        candidates: PyTree[Array],
        fitness: Float[np.ndarray, "all"],
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
