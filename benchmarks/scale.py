r"""The plan of a discovery on thousands of devices: arithmetic, memory, hours (`docs/scale.md`).

    python -m benchmarks.scale --config=launch/configs/disco57.py --devices=1024 \
        --accelerators=tpu_v3_core
    python -m benchmarks.scale --config=launch/configs/disco103.py --devices=32,64

Any field of the config can be overridden by `--config.FIELD=value`. The functions of one agent's
meta-step are traced on shapes (`benchmarks.counting`): nothing is compiled, and no environment is
started. DeepMind Lab need not be installed. Convolutions have the derivatives that accelerators
take, which are not a CPU's (`agents.convolutions`).

The seconds are the FLOP of products divided by an assumed fraction (`--utilization`, lowest and
highest) of the vendor's peak, but no less than the memory's bandwidth allows. The agents of a
device are computed one after the other. Acting and simulators are listed separately, as they run
beside the learning. Of the layouts of agents over devices that fit in memory, the one with the
fewest devices per agent is shown that is at most a tenth slower than the fastest.
"""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags

import disco
import environments
from agents import convolutions
from agents.rule_agent import RuleAgent, to_trajectory
from benchmarks.counting import Product, Work, count, flop, num_bytes, peak_bytes, repeated
from disco_common.configuration import from_config
from environments.suites import dmlab
from launch.support.flag_parsing import define_config, parse_flags
from launch.support.settings import DiscoverSettings
from launch.support.setup import make_discovery
from meta import inner_loop
from meta.discovery import Discovery
from meta.meta_step import agent_meta_update
from meta.state import DiscoveryState, Member
from training import batches
from training.host_collection import NUM_HALVES
from training.memory_budget import plan


class Accelerator(NamedTuple):
    """One device of JAX, by its vendor.

    Attributes:
      peak: FLOP per second of dense products of float32 operands at JAX's default precision (on
        TPUs one bfloat16 pass, on GPUs TF32: `jax.lax.Precision`).
      narrow_peak: FLOP per second of dense products of bfloat16 operands.
      bandwidth: of its memory, in bytes per second.
      memory: in bytes.
    """

    peak: float
    narrow_peak: float
    bandwidth: float
    memory: float

    def at_peak(self, work: Work) -> float:
        """Return the seconds that the products of some work take at the peak."""
        return sum(n * p.flop / self._peak(p) for p, n in work.items())

    def seconds(self, work: Work, utilization: float) -> float:
        """Return the seconds at a fraction of the peak, as far as the memory's bandwidth allows."""
        least = sum(
            n * max(p.flop / self._peak(p), p.num_bytes / self.bandwidth) for p, n in work.items()
        )
        return max(self.at_peak(work) / utilization, least)

    def _peak(self, product: Product) -> float:
        return self.narrow_peak if product.dtype == "bfloat16" else self.peak


# For GPUs, the dense peak, which is half of the sparse peak in data sheets.
ACCELERATORS: Mapping[str, Accelerator] = {
    # Half a chip of https://docs.cloud.google.com/tpu/docs/v3, then /v5e and /v6e there.
    "tpu_v3_core": Accelerator(61.5e12, 61.5e12, 450e9, 16 * 2**30),
    "tpu_v5e": Accelerator(197e12, 197e12, 819e9, 16e9),
    "tpu_v6e": Accelerator(918e12, 918e12, 1638e9, 32e9),
    # NVIDIA's data sheets (SXM; A100 of 80 GB) as other pages cite them. The H200's memory and
    # bandwidth were not looked up again.
    "a100": Accelerator(156e12, 312e12, 2039e9, 80e9),
    "h100": Accelerator(494.5e12, 989e12, 3.35e12, 80e9),
    "h200": Accelerator(494.5e12, 989e12, 4.8e12, 141e9),
}

_DEVICES = flags.DEFINE_list("devices", ["1024"], "Numbers of devices.")
_ACCELERATORS = flags.DEFINE_list("accelerators", list(ACCELERATORS), "Kinds of devices.")
_UTILIZATION = flags.DEFINE_list(
    "utilization", ["0.02", "0.2"], "Assumed fractions of the peak: lowest and highest."
)
# XLA's temporary memory over the counted one, at most, for IMPALA's network on a CPU
# (docs/scale.md).
_TEMPORARY_MARGIN = 1.65


_array = jax.ShapeDtypeStruct


class Cost(NamedTuple):
    """The cost of one agent in a meta-step.

    Attributes:
      parts: its work by name; a part whose name starts with "-" is contained in the one above.
      environment_steps: number of simulated steps.
      policy_calls: number of sequential calls, each for half of its environments.
      transferred: bytes of trajectories from the host to its devices; 0 with JAX environments.
      replay: bytes of its full replay on the host; 0 with JAX environments.
      all_reduced: bytes of the arrays that its devices sum over each other, if it has several.
    """

    parts: dict[str, Work]
    environment_steps: int
    policy_calls: int
    transferred: int
    replay: int
    all_reduced: int

    @property
    def work(self) -> Work:
        """All work."""
        return sum((x for name, x in self.parts.items() if name[0] != "-"), Counter())


class Agents:
    """The agents of a group in a meta-step, traced on shapes.

    Attributes:
      family: of their environments.
      count: their number.
    """

    def __init__(self, discovery: Discovery, number: int):
        """Take the shapes of a discovery's group."""
        self._config, self._group = discovery.config, discovery.groups[number]
        self.family, self.count = self._group.family, len(self._group.indices)
        state = discovery.abstract_state
        self._rule = jax.tree.map(lambda x: _array(x.shape, x.dtype), state.rule)
        members = state.groups[number]
        self._member: Member = jax.tree.map(lambda x: _array(x.shape[1:], x.dtype), members)
        self._memories: dict[int, dict[str, int]] = {}

    def programs(self, split: int = 1) -> tuple[tuple, tuple]:
        """Return an update and the meta-update, with arguments for one of `split` devices."""
        group, member, (batch, residuals, validation) = self._group, self._member, self._data(split)

        def update(rule, *arguments):
            return inner_loop.update(group.agent_with(rule), group.value_function, *arguments)

        meta_update = functools.partial(agent_meta_update, self._config, group)
        return (
            (update, self._rule, member.agent, member.value, batch),
            (meta_update, self._rule, member, member.agent.learner, residuals, validation),
        )

    def memory(self, split: int) -> dict[str, int]:
        """Return an agent's bytes on each of `split` devices.

        Returns:
          By name: `state`, the agent with all its optimisers, and a copy of its learner from before
          the updates; `residuals` of the K updates; `batches`, one to learn from and the validation
          trajectories; `temporary`, the intermediate results of an update or of the meta-gradient,
          whichever is larger, only for the agents of a vectorised pass.
        """
        if split not in self._memories:
            batch, residuals, validation = self._data(split)
            self._memories[split] = {
                "state": num_bytes((self._member, self._member.agent.learner)),
                "residuals": num_bytes(residuals),
                "batches": num_bytes((batch, validation)),
                "temporary": max(peak_bytes(*program) for program in self.programs(split)),
            }
        return self._memories[split]

    @functools.cached_property
    def cost(self) -> Cost:
        """The cost of one of them."""
        group, meta, config = self._group, self._config.meta, self._group.agent.config
        num_playing, length = meta.validation_trajectories, meta.validation_length
        if unrolls := group.validation_unrolls(meta):
            num_playing, length = config.num_environments, unrolls * length
        _, residuals, validation = self._data(1)
        replay = group.is_host and config.num_replayed
        return Cost(
            parts=self._parts(num_playing, length),
            environment_steps=meta.num_updates * config.steps_per_update + num_playing * length,
            policy_calls=NUM_HALVES * (meta.num_updates * config.unroll_length + length),
            transferred=num_bytes((residuals.batch, validation) if group.is_host else ()),
            replay=plan("", group.agent, group.dynamics).num_bytes if replay else 0,
            all_reduced=self._all_reduced(),
        )

    def _data(self, split: int) -> tuple[disco.Trajectory, Any, disco.Trajectory]:
        """Return a batch, the residuals of K updates, and the validation trajectories."""
        agent, meta, dynamics = self._group.agent, self._config.meta, self._group.dynamics

        def trajectory(batch_size: int, length: int) -> disco.Trajectory:
            return to_trajectory(batches.example(agent, dynamics, batch_size // split, length))

        batch = trajectory(agent.config.batch_size, agent.config.unroll_length)

        def update(rule, *arguments):
            return inner_loop.update_with_residuals(self._group.agent_with(rule), *arguments)[1]

        residuals = jax.eval_shape(update, self._rule, self._member.agent.learner, batch)
        residuals = jax.tree.map(lambda x: _array((meta.num_updates, *x.shape), x.dtype), residuals)
        return batch, residuals, trajectory(meta.validation_trajectories, meta.validation_length)

    def _parts(self, num_playing: int, play_length: int) -> dict[str, Work]:
        """Return `Cost.parts`, with validation in so many environments and steps."""
        agent, learner = self._group.agent, self._member.agent.learner
        num_updates = self._config.meta.num_updates
        batch, residuals, _ = self._data(1)
        outputs = jax.eval_shape(agent.network.unroll, learner.params, batch)
        given = (self._rule, outputs, batch, learner.rule_state)
        cotangent = jax.tree.map(lambda x: _array(x.shape[1:], x.dtype), residuals.update.targets)

        def pull_back(rule, outputs, batch, state, cotangent):
            _, pull = jax.vjp(lambda r, o: r.targets(o, o, batch, state)[0], rule, outputs)
            return pull(cotangent)

        update, meta_update = (count(*program) for program in self.programs())
        targets = count(lambda r, o, b, s: r.targets(o, o, b, s), *given)
        acting = repeated(self._policy(agent.config.num_environments), agent.config.unroll_length)
        playing = repeated(self._policy(num_playing), play_length)
        return {
            "acting": repeated(acting, num_updates) + playing,
            "K updates": repeated(update, num_updates),
            "- of these the rule": repeated(targets, num_updates),
            "meta-gradient": meta_update,
            "- of this the rule": repeated(count(pull_back, *given, cotangent), num_updates),
        }

    def _policy(self, num_environments: int) -> Work:
        """Return the policy's work for one step of some environments."""
        config = dataclasses.replace(self._group.agent.config, burn_in=0)
        agent = RuleAgent.create(config, self._group.dynamics, self._group.agent.rule)
        size = max(1, num_environments // NUM_HALVES)
        seen: Any = batches.example(agent, self._group.dynamics, size, 0).observation
        if not agent.network.history.is_history:
            seen = jax.tree.map(lambda x: _array(x.shape[1:], x.dtype), seen)
        memory = jax.eval_shape(lambda: agent.network.initial_memory(size))
        params = self._member.agent.learner.params
        return repeated(count(agent.network.policy, params, seen, memory), NUM_HALVES)

    def _all_reduced(self) -> int:
        """Return the bytes of the arrays that an agent's devices sum over each other.

        Each update sums its gradients. Its backward pass sums the derivatives with respect to the
        rule, the parameters and the target network's; the meta-loss the parameters'.
        """
        params, value_params = self._member.agent.learner.params, self._member.value.params
        learns = self._group.value_function.config.learns_from_batches
        in_update = num_bytes((value_params if learns else (), self._rule, 3 * [params]))
        return self._config.meta.num_updates * in_update + num_bytes((value_params, params))


class Layout(NamedTuple):
    """A layout of agents over devices.

    Attributes:
      devices_per_agent: number of devices that split an agent's batches.
      rows: number of agents of each group on each device, including copies that pad a group.
    """

    devices_per_agent: int
    rows: tuple[int, ...]

    def seconds(self, device: Accelerator, groups: Sequence[Agents], utilization: float) -> float:
        """Return the seconds of a meta-step, in which each device computes its share."""
        each = [device.seconds(agents.cost.work, utilization) for agents in groups]
        return float(np.dot(self.rows, each)) / self.devices_per_agent

    def bytes_per_device(self, groups: Sequence[Agents]) -> int:
        """Return the memory of a device that computes one agent at a time."""
        each = [agents.memory(self.devices_per_agent) for agents in groups]
        temporary = max(memory["temporary"] for memory in each)
        kept = [sum(memory.values()) - memory["temporary"] for memory in each]
        return int(np.dot(self.rows, kept)) + round(_TEMPORARY_MARGIN * temporary)


def layouts(settings: DiscoverSettings, groups: Sequence[Agents], devices: int) -> list[Layout]:
    """Return all layouts that the batch sizes and the number of devices allow."""
    common = math.gcd(devices, settings.agent.batch_size, settings.meta.validation_trajectories)
    return [
        Layout(split, tuple(-(-agents.count * split // devices) for agents in groups))
        for split in range(1, common + 1)
        if common % split == 0
    ]


def main(argv: list[str]) -> None:
    """Print tables in Markdown."""
    del argv
    convolutions.convolution = None  # Accelerators take JAX's derivatives.
    settings = from_config(DiscoverSettings, flags.FLAGS.config)
    discovery = make_discovery(settings, _tasks(settings.suite))
    groups = [Agents(discovery, number) for number in range(len(discovery.groups))]
    _print_agents(groups)
    _print_totals(settings.meta_steps, discovery.abstract_state, groups)
    columns = "devices, devices per agent, agents per device, GiB per device, utilisation at most"
    columns += ", s per meta-step, hours, ms per policy call, environment steps per s"
    _print_row(*columns.split(", "))
    _print_row(*["---"] * 9)
    for name, number in itertools.product(_ACCELERATORS.value, map(int, _DEVICES.value)):
        _print_row(f"{number} {name}", *_prediction(settings, groups, ACCELERATORS[name], number))


def _tasks(suites: str) -> tuple[environments.Environment, ...]:
    """Return the tasks of suites, those of DMLab without its engine."""
    tasks = []
    for name in suites.split(","):
        if name == "dmlab30":
            tasks += [
                environments.Environment(f"dmlab/{level}", dmlab.DMLab(), dmlab.Level(level))
                for level in dmlab.LEVELS
            ]
        else:
            tasks += environments.suite(name.strip())
    return tuple(tasks)


def _print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _print_agents(groups: Sequence[Agents]) -> None:
    _print_row("one agent of", *(agents.family for agents in groups))
    _print_row(*["---"] * (1 + len(groups)))
    _print_row("agents", *(agents.count for agents in groups))
    costs = [agents.cost for agents in groups]
    for name in costs[0].parts:
        _print_row(f"{name}, TFLOP", *(f"{flop(x.parts[name]) / 1e12:.2f}" for x in costs))
    _print_row("in all, TFLOP", *(f"{flop(x.work) / 1e12:.1f}" for x in costs))
    moved = (sum(n * p.num_bytes for p, n in x.work.items()) for x in costs)
    _print_row("operands and results of products, TB", *(f"{x / 1e12:.2f}" for x in moved))
    memories = [agents.memory(1) for agents in groups]
    for name in memories[0]:
        _print_row(f"device memory: {name}, GiB", *(f"{x[name] / 2**30:.2f}" for x in memories))
    _print_row("environment steps", *(f"{x.environment_steps:,}" for x in costs))
    _print_row("policy calls", *(f"{x.policy_calls:,}" for x in costs))
    _print_row("from host to device, GiB", *(f"{x.transferred / 2**30:.2f}" for x in costs))
    _print_row("replay on the host, GiB", *(f"{x.replay / 2**30:.2f}" for x in costs))
    _print_row("all-reduced between devices, GB", *(f"{x.all_reduced / 1e9:.2f}" for x in costs))


def _print_totals(meta_steps: int, state: DiscoveryState, groups: Sequence[Agents]) -> None:
    in_all = sum(agents.count * flop(agents.cost.work) for agents in groups)
    steps = sum(agents.count * agents.cost.environment_steps for agents in groups)
    replay = sum(agents.count * agents.cost.replay for agents in groups)
    print(
        f"\nA meta-step: {in_all / 1e15:.2f} PFLOP, {steps:,} environment steps."
        f" {meta_steps:,} of them: {in_all * meta_steps:.3g} FLOP."
        f"\nThe rule's update: {num_bytes(state.rule) / 1e6:.2f} MB, of which a ring of many"
        f" devices moves twice as much through each. A checkpoint:"
        f" {num_bytes(state) / 2**30:.2f} GiB. Replays: {replay / 2**30:.0f} GiB.\n"
    )


def _prediction(
    settings: DiscoverSettings, groups: Sequence[Agents], accelerator: Accelerator, devices: int
) -> list[str]:
    """Return the cells of a machine: its layout, and what a meta-step takes."""
    possible = layouts(settings, groups, devices)
    fastest = {layout: layout.seconds(accelerator, groups, 1.0) for layout in possible}
    # The devices of an agent wait for each other, and only one of them acts.
    slack = 1.1 * min(fastest.values())
    possible.sort(key=lambda layout: (max(fastest[layout], slack), layout.devices_per_agent))
    fits = (x for x in possible if x.bytes_per_device(groups) <= accelerator.memory)
    layout = next(fits, None)
    if layout is None:
        return ["does not fit"]
    low, high = (layout.seconds(accelerator, groups, float(u)) for u in _UTILIZATION.value)
    at_peak = np.dot(layout.rows, [accelerator.at_peak(agents.cost.work) for agents in groups])
    calls = np.dot(layout.rows, [agents.cost.policy_calls for agents in groups])
    steps = sum(agents.count * agents.cost.environment_steps for agents in groups)
    hours = settings.meta_steps / 3600
    return [
        str(layout.devices_per_agent),
        " + ".join(map(str, layout.rows)),
        f"{layout.bytes_per_device(groups) / 2**30:.1f}",
        f"{at_peak / layout.devices_per_agent / fastest[layout]:.2f}",
        f"{high:.3g} to {low:.3g}",
        f"{high * hours:.3g} to {low * hours:.3g}",
        f"{1e3 * high / calls:.2g} to {1e3 * low / calls:.2g}",
        f"{steps / low:,.0f} to {steps / high:,.0f}",
    ]


if __name__ == "__main__":
    define_config("disco57")
    app.run(main, flags_parser=parse_flags)
