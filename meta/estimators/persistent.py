"""Persistent evolution strategies: a rule improves by parts of lifetimes, without their bias.

Vicol, Metz & Sohl-Dickstein 2021 (arXiv 2112.13835). An evolution strategy over whole lifetimes
(`meta.estimators.evolution`) moves the rule once in a lifetime. Over a part of each, a truncation,
it moves more often, but credits a rule with what it does within that part alone. Persistent ES
credits it with the effects on later parts, too: an agent lives on, and the score of each part
counts for the sum of all perturbations by which the agent has learned so far.

The population has M places, with P agents each. A meta-step is a generation:

1. perturb: at each place, P / 2 perturbations ε ~ N(0, σ² I); the agents of a pair learn by θ + ε
   and θ - ε, and ξ, the sum of an agent's perturbations in its life, becomes ξ + ε and -(ξ + ε);
2. learn: each agent goes on for a truncation, from where the last one ended. Task, budget, age,
   initial state and random numbers are the same for all agents of a place;
3. rank: an agent's score is the rank, among the P of its place, of the mean return of the episodes
   that ended in the truncation;
4. update: θ ascends 1/(σ² P M) Σ ξ · score (`persistent_gradient`) by Adam, and the moving average
   follows;
5. reset: where a lifetime is over, P fresh agents begin another one, with ξ = 0, on a task and a
   budget that are drawn anew (`PersistentES.draw`).

The first lifetimes end evenly spread over a lifetime, so that a generation has agents of all ages.
A library's search has one lifetime for all agents, so this one is our own.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

import disco
import environments
from agents.rule_agent import make_agent
from disco_common import keys
from disco_common.keys import Purpose
from meta.config import DiscoveryConfig
from meta.estimators import candidates
from meta.estimators.candidates import Generation
from meta.estimators.protocol import Metrics
from meta.groups import group_sizes
from training.device_program import Lifetimes, over_runs
from training.iteration import TrainingState
from training.schedule import TrainingConfig


class Life(NamedTuple):
    """A lifetime of the agents of a place.

    Attributes:
      task: index of the task.
      budget: environment steps that the agents' learning rate is scheduled for.
      truncations: after which the agents are reset; in the first lifetimes less than the budget.
      seed: of the agents' randomness.
    """

    task: int
    budget: int
    truncations: int
    seed: int


@chex.dataclass(frozen=True)
class PersistentState:
    """The state of a run.

    Attributes:
      rule: θ, perturbed in R numbers of some layers.
      average: the moving average of the rules, to be exported.
      optimizer: Adam's state.
      sums: ξ of the first agent of each pair.
      born: the generation in which each place's lifetime began.
      agents: of each place, stacked.
      task_generations: generations that a place has had each task for.
      meta_step: number of generations so far.
    """

    rule: disco.DiscoveredRule
    average: disco.DiscoveredRule
    optimizer: optax.OptState
    sums: Float[Array, "M half R"]
    born: Int[Array, "M"]
    agents: tuple[TrainingState, ...]
    task_generations: Int[Array, "_tasks"]
    meta_step: Int[Array, ""]


def persistent_gradient(
    sums: Float[Array, "M half R"], scores: Float[Array, "M P"], sigma: float
) -> Float[Array, "R"]:
    """Return the estimate of the derivative of a truncation's score by θ, a mean over places.

    It is that by θ in all truncations of the life so far, not in the last one alone.
    Vicol et al. 2021, section 4 and algorithm 2, with antithetic pairs.

    Args:
      sums: ξ of the first agent of each pair; the second one's is -ξ.
      scores: of the first agents of all pairs, then of the second ones.
      sigma: standard deviation of one perturbation.
    """
    first, second = jnp.split(scores, 2, axis=1)
    return jnp.einsum("mi,mir->r", first - second, sums) / (sigma**2 * scores.size)


class PersistentES:
    """A discovery by persistent ES (`meta.estimators.protocol.Discovery`), in JAX environments."""

    has_hosts = False
    can_stop_within = False  # The agents live on.
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
        self._num_places = config.evolution.num_tasks
        self._num_candidates = candidates.num_candidates(config)
        self._names = candidates.layer_names(config, rule)
        self._optimizer = optax.adam(config.evolution.learning_rate)
        self._unrolls = config.evolution.truncation // config.agent.steps_per_update
        self._draw_once = functools.cache(self.draw)

    @property
    def _truncation(self) -> int:
        """Environment steps of each agent in a generation."""
        return self._unrolls * self.config.agent.steps_per_update

    @functools.cached_property
    def _tasks_of(self) -> list[list[int]]:
        """The tasks of each place, of equal dynamics: their agents' states have one shape."""
        groups = environments.group_by_dynamics(self._tasks)
        indices = {task.name: number for number, task in enumerate(self._tasks)}
        sizes = group_sizes([len(group.names) for group in groups], self._num_places)
        return [
            part.tolist()
            for group, size in zip(groups, sizes, strict=True)
            for part in np.array_split([indices[name] for name in group.names], size)
        ]

    def check(self) -> None:
        """Check that the run can be made.

        Raises:
          OutputError, ValueError: as `meta.estimators.candidates.check` and
            `config.require_equal_updates`; ValueError also if a truncation has no unroll or is
            longer than a lifetime, or tasks have more dynamics than there are places.
        """
        self.config.require_equal_updates()
        settings, unroll = self.config.evolution, self.config.agent.steps_per_update
        shortest = min(self.config.population.lifetimes)
        if not unroll <= settings.truncation <= shortest:
            raise ValueError(
                f"evolution.truncation is {settings.truncation}; expected at least {unroll}"
                f" environment steps, an unroll, and at most {shortest}, the shortest of"
                " population.lifetimes."
            )
        groups = environments.group_by_dynamics(self._tasks)
        if len(groups) > self._num_places:
            names = ", ".join(group.names[0] for group in groups)
            raise ValueError(
                f"evolution.num_tasks is {self._num_places}; expected at least {len(groups)}, a"
                f" place for each group of tasks with equal dynamics (those of {names:.300})."
            )
        candidates.check(self.config, self._tasks, self._initial_rule, self.config.population.size)

    def draw(self, place: int, born: int) -> Life:
        """Return the lifetime that begins at a place in a generation."""
        random = np.random.default_rng([self.config.seed, born, place])
        task = int(random.choice(self._tasks_of[place]))
        lifetimes, weights = candidates.lifetimes_at(self.config, born)
        budget = int(random.choice(lifetimes, p=weights))
        truncations = budget // self._truncation
        if born == 0:
            truncations = -(-truncations * (place + 1) // self._num_places)
        return Life(task, budget, truncations, int(random.integers(2**32)))

    def _lifetimes(self, life: Life, rules: Sequence[disco.DiscoveredRule]) -> Lifetimes:
        """Return the functions of a place's agents, each of which learns by its rule."""
        task = self._tasks[life.task]
        config = candidates.agent_config(self.config, task, life.budget)
        one = make_agent(rules[0], config, task)
        agents = [dataclasses.replace(one, rule=rule) for rule in rules]
        # Of the longest lifetime, so that all replays of a place have one size.
        longest = max(self.config.population.lifetimes)
        settings = TrainingConfig(longest, runs_at_once=self.config.meta.agents_at_once)
        return Lifetimes(agents, task, life.seed, settings)

    def _begin(self, place: int, born: int) -> TrainingState:
        """Return the agents of a place at the beginning of a lifetime."""
        rules = [self._initial_rule] * self._num_candidates  # Agents begin alike by all of them.
        return self._lifetimes(self._draw_once(place, born), rules).init()

    def _with_agents(self, agents: tuple[TrainingState, ...]) -> PersistentState:
        """Return the state before the first generation."""
        rule = jax.tree.map(jnp.asarray, self._initial_rule)
        mean, _ = self._mean(rule)
        half = self._num_candidates // 2
        return PersistentState(
            rule=rule,
            average=rule,
            optimizer=self._optimizer.init(mean),
            sums=jnp.zeros((self._num_places, half, len(mean)), mean.dtype),
            born=jnp.zeros(self._num_places, jnp.int32),
            agents=agents,
            task_generations=jnp.zeros(len(self._tasks), jnp.int32),
            meta_step=jnp.int32(0),
        )

    def _mean(self, rule: disco.DiscoveredRule) -> tuple[Float[Array, "R"], Callable[[Array], Any]]:
        """Return the parameters that are perturbed, and the function back to layers."""
        return ravel_pytree({name: rule.parameters[name] for name in self._names})

    def init(self) -> PersistentState:
        return self._with_agents(tuple(self._begin(place, 0) for place in range(self._num_places)))

    @functools.cached_property
    def abstract_state(self) -> PersistentState:
        rules = [self._initial_rule] * self._num_candidates
        agents = tuple(
            self._lifetimes(self._draw_once(place, 0), rules).abstract_states
            for place in range(self._num_places)
        )
        shapes = jax.eval_shape(self._with_agents, agents)
        sharding = self._by_part(shapes, over_runs(), candidates.replicated())
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            sharding,
        )

    @functools.cached_property
    def agents_stacked(self) -> PersistentState:
        return self._by_part(self.abstract_state, self._num_candidates, 0)

    def _by_part(self, state: PersistentState, of_agents: Any, of_rest: Any) -> PersistentState:
        """Return a tree like a state, with a value for all arrays of agents, and one for others."""
        return jax.tree.map_with_path(
            lambda path, _: of_agents if path[0].name == "agents" else of_rest, state
        )

    def restored(self, state: PersistentState) -> PersistentState:
        return state

    def compile(self) -> None:
        """Compile nothing: a generation compiles what its tasks need, and keeps it."""

    def step(
        self, state: PersistentState, report: Callable[[float], None] = lambda part: None
    ) -> tuple[PersistentState, Generation]:
        """Make a generation, which donates the agents."""
        number, sigma = int(state.meta_step), self.config.evolution.sigma
        born = np.asarray(state.born)
        lives = [self._draw_once(place, int(begun)) for place, begun in enumerate(born)]
        mean, to_layers = self._mean(state.rule)
        key = keys.key(self.config.seed, Purpose.PERTURB, number)
        noise = sigma * jax.random.normal(key, state.sums.shape, mean.dtype)
        sums, agents, returns = state.sums + noise, [], []
        for place, life in enumerate(lives):
            tried = mean[None] + jnp.concatenate([noise[place], -noise[place]])
            rules = candidates.rules_of(state.rule, jax.vmap(to_layers)(tried))
            age = number - int(born[place])
            after, found = self._learn(life, rules, state.agents[place], age)
            agents.append(after)
            returns.append(found)
            report((place + 1) / len(lives))
        scores = jnp.asarray(np.array([candidates.ranks(x) for x in returns]), mean.dtype)
        gradient = persistent_gradient(sums, scores, sigma)
        update, optimizer = self._optimizer.update(-gradient, state.optimizer)
        rule = candidates.with_layers(state.rule, to_layers(mean + jnp.asarray(update)))
        decay = self.config.meta.average_decay
        new = PersistentState(
            rule=rule,
            average=candidates.follow(state.average, rule, number, decay),
            optimizer=optimizer,
            sums=sums,
            born=state.born,
            agents=tuple(agents),
            task_generations=state.task_generations.at[jnp.array([x.task for x in lives])].add(1),
            meta_step=jnp.int32(number + 1),
        )
        made = Generation(
            tasks=[self._tasks[life.task].name for life in lives],
            ages=[(number + 1 - int(begun)) * self._truncation for begun in born],
            returns=np.array(returns),
            norm=float(jnp.linalg.norm(update)),
        )
        return self._reset_if_due(new, lives), made

    def _learn(
        self,
        life: Life,
        rules: Sequence[disco.DiscoveredRule],
        states: TrainingState,
        age: int,
    ) -> tuple[TrainingState, Float[np.ndarray, "P"]]:
        """Let the agents of a place learn for a truncation, after `age` others.

        Returns:
          Their states, and the mean returns of their episodes that ended.
        """
        lifetimes, unrolls = self._lifetimes(life, rules), self._unrolls
        states, episodes = lifetimes.advance(states, age * unrolls, (age + 1) * unrolls)
        return states, candidates.mean_returns(episodes)

    def _reset_if_due(self, state: PersistentState, lives: Sequence[Life]) -> PersistentState:
        """Begin another lifetime where one is over."""
        number, agents = int(state.meta_step), list(state.agents)
        ages = number - np.asarray(state.born)
        is_over = ages >= np.array([life.truncations for life in lives])
        for place in np.flatnonzero(is_over).tolist():
            agents[place] = self._begin(place, number)
        return dataclasses.replace(
            state,
            sums=jnp.where(is_over[:, None, None], 0.0, state.sums),
            born=jnp.where(is_over, number, state.born),
            agents=tuple(agents),
        )

    def summarize(self, window: Sequence[Generation]) -> Metrics:
        return candidates.summarize(window)

    def environment_steps(self, meta_steps: int) -> int:
        """Return the environment steps of all agents in the first generations."""
        return meta_steps * self.config.population.size * self._truncation

    def average_rule(self, state: PersistentState) -> tuple[disco.DiscoveredRule, dict[str, int]]:
        """Return the moving average of the rules, and the environment steps by task."""
        average, counts = jax.device_get((state.average, state.task_generations))
        steps = self._num_candidates * self._truncation
        return average, {
            task.name: int(number) * steps
            for task, number in zip(self._tasks, counts, strict=True)
            if number
        }

    def close(self) -> None:
        """Stop nothing: there are no host environments."""
