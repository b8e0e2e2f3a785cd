"""Settings of a discovery run."""

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Collection
from typing import ClassVar

from agents.rule_agent import RuleAgentConfig
from disco_common.ranges import AtLeast0, Below1, Count, Fraction, Positive, require_ranges

ESTIMATORS = ("meta_gradient", "open_es", "cma_es", "persistent_es", "hybrid")

# Fields of the network whose units, and of the agent whose numbers, differ between tasks.
_UNITS = ("torso", "head")
_NUMBERS = ("memory", "frame_stack", "burn_in", "num_environments", "batch_size", "unroll_length")
_CHANGES = rf"(?:\s*\b(?:(?:{'|'.join(_NUMBERS)})=\d+|(?:{'|'.join(_UNITS)})=\d+(?:x\d+)*)(?!\S))+"
_FAMILY = re.compile(rf"\s*(\S+)\s*:({_CHANGES})\s*")
_MAX_LIFETIME = 2**31 - 1  # An int32 counts environment steps.


@dataclasses.dataclass(frozen=True)
class MetaConfig:
    """The meta-step.

    Attributes:
      num_updates: K, the agent updates that a meta-gradient flows through.
      validation_trajectories: per agent and meta-step.
      validation_length: steps of each validation trajectory.
      validation_from_training: whether validation goes on from the states of the training
        environments, so that its episodes are of all ages. In JAX some validation environments, in
        turn, take these states at each meta-step. Simulators' states cannot be copied: there, the
        updated agent acts in the training environments, which go on from where validation ended.
        Their validation trajectories also enter the replay, and count in lifetimes, but not in the
        environment steps that metrics and rule files have.
      learning_rate: of the rule.
      average_decay: weight of the old average in the moving average of the rules, which is the
        result of a run because single iterates are noisy. In the first meta-steps it is the plain
        mean. With 0 it is the newest rule.
      max_gradient_norm: each agent's meta-gradient is clipped to it before the agent's Adam.
      adam_b2: decay of the second moment of each agent's Adam. The first meta-gradients after a
        reset are tens of times larger than later ones. With 0.999 they suppress the agent's
        updates for hundreds of meta-steps.
      segment_length: see `meta.inner_loop.differentiable_inner_loop`; None for about the square
        root of K.
      layers: names of the meta-network's layers that meta-gradients change; empty for all, but for
        those that evolve.
      agents_at_once: agents per device in one vectorised pass; the passes run in a loop. Fewer
        agents need less memory. None for one on a CPU and all on an accelerator.
    """

    # Fields of earlier versions, in stored settings (`disco_common.configuration`).
    REMOVED: ClassVar = ("learning_rate_decay_steps", "end_learning_rate")

    num_updates: Count = 20
    validation_trajectories: Count = 48
    validation_length: Count = 29
    validation_from_training: bool = False
    learning_rate: Positive = 1e-3
    average_decay: Below1 = 0.98
    max_gradient_norm: Positive = 1.0
    adam_b2: Below1 = 0.999
    segment_length: int | None = None
    layers: tuple[str, ...] = ()
    agents_at_once: Count | None = None

    def __post_init__(self):
        require_ranges(self, "meta.")
        segment = self.segment_length
        if segment is not None and (segment < 1 or self.num_updates % segment):
            raise ValueError(
                f"meta.segment_length is {segment}; expected a divisor of meta.num_updates"
                f" ({self.num_updates})."
            )


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
    """The agents of the population and their experience budgets.

    Attributes:
      size: agents, at least one for each group of tasks with equal dynamics. Unless a group's
        agents are a multiple of its tasks, an agent that is reset takes the least-trained of the
        tasks that the fewest other agents have.
      lifetimes: the categories of experience budget, in environment steps.
      first_reset_after: environment steps that are added to the budget of each agent of the first
        generation, so that the rule has been trained before the first agents are reset.
      counts_frames: whether `lifetimes` and `first_reset_after` are frames, of which an
        environment step has as many as its suite's protocol says (4 in Atari, 1 in ProcGen).
      keeps_tasks: whether an agent that is reset keeps its task wherever a group has at least as
        many agents as tasks.
    """

    size: Count = 57
    lifetimes: tuple[int, ...] = (200_000_000, 100_000_000, 50_000_000, 20_000_000)
    first_reset_after: AtLeast0[int] = 0
    counts_frames: bool = False
    keeps_tasks: bool = False

    def __post_init__(self):
        require_ranges(self, "population.")
        if not self.lifetimes or min(self.lifetimes) < 1:
            raise ValueError(
                f"population.lifetimes is {self.lifetimes}; expected positive numbers of"
                " environment steps."
            )
        if self.first_reset_after + max(self.lifetimes) > _MAX_LIFETIME:
            raise ValueError(
                f"population.lifetimes is {self.lifetimes} and population.first_reset_after"
                f" {self.first_reset_after}; expected lifetimes of at most {_MAX_LIFETIME}"
                " environment steps, as an int32 counts them."
            )

    def in_steps(self, frames_per_action: int) -> "PopulationConfig":
        """Return the settings with budgets in environment steps of so many frames."""
        return dataclasses.replace(
            self,
            lifetimes=tuple(-(-frames // frames_per_action) for frames in self.lifetimes),
            first_reset_after=-(-self.first_reset_after // frames_per_action),
            counts_frames=False,
        )


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """Weights of the meta-loss's regularisers; the weight of the policy-gradient loss is 1.

    Attributes:
      policy_entropy_cost: of the updated agent's policy entropy (from the authors' notebook).
      prediction_entropy_cost: of the entropy of its predictions y and z (L_ent in the paper).
      target_kl_cost: of KL(target network's policy || policy target) (L_KL in the paper).
      target_mean_cost: of the squared mean of each target's logits (from the authors' notebook).
    """

    policy_entropy_cost: AtLeast0[float] = 1e-2
    prediction_entropy_cost: AtLeast0[float] = 1e-3
    target_kl_cost: AtLeast0[float] = 1e-2
    target_mean_cost: AtLeast0[float] = 1e-3

    def __post_init__(self):
        require_ranges(self, "objective.")


@dataclasses.dataclass(frozen=True)
class ValueFunctionConfig:
    """Learning of the meta-value function; the paper's, but for `learns_from_batches`.

    Attributes:
      hidden: units of the MLP's layers, which follow convolutions like those of the agent's
        network.
      learning_rate: of Adam.
      discount: gamma.
      lambda_: trace decay of V-trace.
      learns_from_batches: whether it learns from each batch that the agent learns from, as in the
        authors' notebook, besides the validation trajectories. The paper names only the latter.
    """

    hidden: tuple[Count, ...] = (256, 256)
    learning_rate: Positive = 3e-4
    discount: Fraction = 0.997
    lambda_: Fraction = 0.95
    learns_from_batches: bool = True

    def __post_init__(self):
        require_ranges(self, "value_function.")


@dataclasses.dataclass(frozen=True)
class EvolutionConfig:
    """Evolution strategies (`meta.estimators`); agents of a generation as `population`.

    Attributes:
      num_tasks: of a generation. Each has `population.size / num_tasks` candidates of its own.
      sigma: standard deviation of the parameters' perturbations; of CMA-ES the initial one.
      learning_rate: of Adam, which moves the mean; CMA-ES has none.
      layers: names of the meta-network's layers whose parameters are perturbed; empty for all.
      generations_per_lifetime: generations after which the next longer one of
        `population.lifetimes` is drawn, too; 0 to draw from all of them from the beginning.
      truncation: environment steps of each agent in a generation of persistent ES, in whole
        unrolls. Lifetimes are whole truncations.
      interval: meta-steps of the hybrid from one generation to the next.
    """

    num_tasks: Count = 4
    sigma: Positive = 0.05
    learning_rate: Positive = 0.03
    layers: tuple[str, ...] = ()
    generations_per_lifetime: AtLeast0[int] = 0
    truncation: Count = 10_000
    interval: Count = 100

    def __post_init__(self):
        require_ranges(self, "evolution.")


@dataclasses.dataclass(frozen=True)
class DiscoveryConfig:
    """Settings of a discovery but for its tasks, its rule and its length.

    `launch.support.discovery_config.DiscoveryRunConfig` adds these.

    Attributes:
      seed: of all randomness.
      estimator: what improves the rule (`meta.estimators`).
      families: changes of `agent` for families of environments, for example
        `"dmlab: memory=256 frame_stack=1"`. The family is the part of the environments' names
        before the slash, or a pattern of whole names, as `varied/*_view`; the first that fits
        counts. The changes may be of memory (units of the network's memory), torso and head (units
        by layer, as 64x64), frame_stack, burn_in, unroll_length, and num_environments and
        batch_size, of which the batch's fresh trajectories and replay_ratio follow.
      devices_per_agent: number of devices that split an agent's batches, if an agent does not fit
        on one.
      agent, value_function, objective, population, meta, evolution: see their classes.
    """

    seed: int = 0
    estimator: str = "meta_gradient"
    agent: RuleAgentConfig = RuleAgentConfig()
    families: tuple[str, ...] = ()
    value_function: ValueFunctionConfig = ValueFunctionConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    population: PopulationConfig = PopulationConfig()
    meta: MetaConfig = MetaConfig()
    evolution: EvolutionConfig = EvolutionConfig()
    devices_per_agent: Count = 1

    def __post_init__(self):
        if self.estimator not in ESTIMATORS:
            raise ValueError(
                f"estimator is {self.estimator!r}; expected one of {', '.join(ESTIMATORS)}."
            )
        if self.estimator == "hybrid" and not self.evolution.layers:
            raise ValueError(
                "evolution.layers is (); expected the names of the layers that evolve with"
                " estimator 'hybrid'."
            )

    def frozen_layers(self, names: Collection[str]) -> tuple[str, ...]:
        """Return which of the meta-network's layers meta-gradients leave unchanged."""
        evolving = self.evolution.layers if self.estimator == "hybrid" else ()
        learned = self.meta.layers or names
        return tuple(name for name in names if name in evolving or name not in learned)

    @functools.cached_property
    def family_agents(self) -> dict[str, RuleAgentConfig]:
        """The agents' settings of the families that have their own.

        Raises:
          ValueError: if an entry of `families` is malformed, or its values are out of range.
        """
        agents = {}
        for entry in self.families:
            found = _FAMILY.fullmatch(entry)
            if found is None:
                raise ValueError(
                    f"families has {entry!r}; expected a family, a colon and whole numbers for some"
                    f" of {', '.join(_NUMBERS + _UNITS)}, as 'dmlab: memory=256 frame_stack=1'."
                )
            changes = dict(re.findall(r"(\w+)=([\dx]+)", found[2]))
            agents[found[1]] = _changed(self.agent, changes)
        return agents

    def agent_of(self, task: str) -> RuleAgentConfig:
        """Return the settings of the agents that learn a task; raises as `family_agents`."""
        for family, agent in self.family_agents.items():
            if fnmatch.fnmatchcase(task, family if "/" in family else f"{family}/*"):
                return agent
        return self.agent

    def require_equal_updates(self) -> None:
        """Raise a ValueError if agents of some families update after other environment steps."""
        expected = self.agent.steps_per_update
        for family, agent in self.family_agents.items():
            if agent.steps_per_update != expected:
                raise ValueError(
                    f"families gives {family!r} an update after {agent.steps_per_update}"
                    f" environment steps (num_environments x unroll_length); expected {expected},"
                    f" the agent's, with estimator {self.estimator!r}."
                )


def _changed(agent: RuleAgentConfig, changes: dict[str, str]) -> RuleAgentConfig:
    """Return an agent's settings with those of `DiscoveryConfig.families`."""
    network, numbers = agent.network, {}
    for name, value in changes.items():
        if name in _UNITS:
            units = tuple(map(int, value.split("x")))
            network = dataclasses.replace(network, **{name: units})
        elif name == "memory":
            network = dataclasses.replace(network, memory=int(value))
        else:
            numbers[name] = int(value)
    if not {"num_environments", "batch_size"}.isdisjoint(numbers):
        number = numbers.get("num_environments", agent.num_environments)
        size = numbers.get("batch_size", agent.batch_size)
        if number > size:
            raise ValueError(
                f"families has num_environments {number} beside batch_size {size}; expected a"
                " trajectory of each environment in a batch."
            )
        numbers["replay_ratio"] = 1.0 - number / size
    return dataclasses.replace(agent, network=network, **numbers)
