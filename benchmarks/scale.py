r"""The plan of a discovery on thousands of devices: arithmetic, memory, hours (`docs/scale.md`).

    python -m benchmarks.scale --config=launch/configs/disco57.py --devices=1024 \
        --accelerators=tpu_v3_core
    python -m benchmarks.scale --config=launch/configs/disco103.py --devices=32,64

Any field of the config can be overridden by `--config.FIELD=value`. The functions of one agent's
meta-step are traced on shapes, and the products of their jaxprs counted: nothing is compiled, and
no environment is started. DeepMind Lab need not be installed. XLA would count a loop's body once;
here a product in a loop counts as often as it runs. Dead code does not count. Equal expressions,
which XLA computes once, count twice: in `disco57` this adds a twentieth. Convolutions have the
derivatives that accelerators take, which are not a CPU's (`agents.convolutions`).

The seconds are the FLOP of products divided by an assumed fraction (`--utilization`, lowest and
highest) of the vendor's peak, but no less than the memory's bandwidth allows. The agents of a
device are computed one after the other. Acting (below 1% of the FLOP) and simulators, which run
beside the learning, are left out. A row is of a number of devices that share an agent's batches.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from jax.extend import core
from jax.interpreters import partial_eval

import disco
import environments
from agents import convolutions
from agents.rule_agent import to_trajectory
from disco_common.configuration import from_config
from environments.suites import dmlab
from launch.support.command_flags import define_config, parse_flags
from launch.support.discovery_config import DiscoveryRunConfig, make_rule
from launch.support.display import print_rows
from meta import inner_loop
from meta.estimators.meta_gradient import MetaGradient
from meta.meta_step import agent_meta_update
from meta.population import Member
from training import collection
from training.replay import num_bytes

# XLA's temporary memory over the counted one, at most, for IMPALA's network on a CPU
# (docs/scale.md).
_TEMPORARY_MARGIN = 1.65
_array = jax.ShapeDtypeStruct


class Product(NamedTuple):
    """A matrix product or convolution.

    Attributes:
      flop: number of its multiplications and additions, without those of a padding's zeros.
      num_bytes: size of its operands and its result.
      dtype: of the operands.
    """

    flop: int
    num_bytes: int
    dtype: str


Work = Counter[Product]
"""How often a program computes each product."""


def count(function: Callable, *arguments: Any) -> Work:
    """Return the products that a function of arrays or shapes computes.

    Raises:
      ValueError: if a product is in a loop of unknown length.
    """
    return _count(_program(function, arguments))


def flop(work: Work) -> int:
    """Return the FLOP of all products."""
    return sum(number * product.flop for product, number in work.items())


def peak_bytes(function: Callable, *arguments: Any) -> int:
    """Return the peak memory of intermediate results, without arguments and results.

    Each operation's result counts from its computation to its last use, in the order of the
    program. The compiler needs less if it fuses operations or finds a better order.
    """
    return _peak_bytes(_program(function, arguments))


def _program(function: Callable, arguments: tuple) -> core.Jaxpr:
    """Return a function's jaxpr without dead code."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return partial_eval.dce_jaxpr(program, [True] * len(program.outvars), instantiate=True)[0]


def _count(program: core.Jaxpr) -> Work:
    work: Work = Counter()
    for eqn in program.eqns:
        name = eqn.primitive.name
        if name in ("dot_general", "conv_general_dilated"):
            operands = tuple((x.aval.shape, x.aval.dtype) for x in eqn.invars)  # pyright: ignore
            work[_product(eqn.primitive, tuple(sorted(eqn.params.items())), operands)] += 1
            continue
        works = [_count(inner) for inner in core.jaxprs_in_params(eqn.params)]
        if name == "while" and any(works):
            raise ValueError("A matrix product is in a while loop, whose length is unknown.")
        most = max(works, key=flop, default=Counter())  # Of branches; of others there is one.
        times = eqn.params["length"] if name == "scan" else 1
        work.update({product: times * number for product, number in most.items()})
    return work


@functools.cache
def _product(primitive: core.Primitive, params: tuple, operands: tuple) -> Product:
    shapes = [_array(*operand) for operand in operands]
    program = jax.jit(lambda *operands: primitive.bind(*operands, **dict(params)))
    cost = program.lower(*shapes).cost_analysis()
    assert cost is not None
    return Product(int(cost["flops"]), int(cost["bytes accessed"]), str(shapes[0].dtype))


def _peak_bytes(jaxpr: core.Jaxpr) -> int:
    read = [[x for x in eqn.invars if not isinstance(x, core.Literal)] for eqn in jaxpr.eqns]
    last_use = {atom: i for i, atoms in enumerate(read) for atom in atoms}
    kept = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    made: dict[Any, int] = {}
    live = peak = 0
    for i, eqn in enumerate(jaxpr.eqns):
        new = {x: num_bytes(x.aval) for x in eqn.outvars if x in last_use and x not in kept}
        made |= new
        live += sum(new.values())
        inside = max((_peak_bytes(inner) for inner in core.jaxprs_in_params(eqn.params)), default=0)
        peak = max(peak, live + inside)
        live -= sum(made.pop(x, 0) for x in set(read[i]) if last_use[x] == i)
    return peak


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

    def seconds(self, work: Work, utilization: float) -> float:
        """Return the seconds at a fraction of the peak, as far as the memory's bandwidth allows."""
        at_peak = least = 0.0
        for product, number in work.items():
            peak = self.narrow_peak if product.dtype == "bfloat16" else self.peak
            at_peak += number * product.flop / peak
            least += number * max(product.flop / peak, product.num_bytes / self.bandwidth)
        return max(at_peak / utilization, least)


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
_ACCELERATORS = flags.DEFINE_list("accelerators", list(ACCELERATORS), "Kinds of devices.")
_DEVICES = flags.DEFINE_list("devices", ["1024"], "Numbers of devices.")
_UTILIZATION = flags.DEFINE_list(
    "utilization", ["0.02", "0.2"], "Assumed fractions of the peak: lowest and highest."
)


class Agents:
    """The agents of a group in a meta-step, traced on shapes.

    Attributes:
      family: of their environments.
      count: their number.
      steps: environment steps of each in a meta-step, validation included.
      parts: the products that one of them computes, by name, without acting.
    """

    def __init__(self, discovery: MetaGradient, number: int):
        """Trace a discovery's group."""
        self._config, self._group = discovery.config, discovery.groups[number]
        self.family, self.count = self._group.family, len(self._group.indices)
        state = discovery.abstract_state
        self._rule = jax.tree.map(lambda x: _array(x.shape, x.dtype), state.rule)
        members = state.groups[number]
        self._member: Member = jax.tree.map(lambda x: _array(x.shape[1:], x.dtype), members)
        meta, config = self._config.meta, self._group.agent.config
        validation = meta.validation_trajectories
        if unrolls := self._group.validation_unrolls(meta):
            validation = config.num_environments * unrolls
        self.steps = meta.num_updates * config.steps_per_update
        self.steps += validation * meta.validation_length
        update, meta_update = (count(*program) for program in self._programs(self._data(1)))
        updates = Counter({x: meta.num_updates * n for x, n in update.items()})
        self.parts = {"K updates": updates, "meta-gradient": meta_update}

    @property
    def work(self) -> Work:
        """All work of one of them."""
        return sum(self.parts.values(), Counter())

    def memory(self, split: int) -> dict[str, int]:
        """Return an agent's bytes on each of `split` devices.

        Returns:
          By name: `state`, the agent with all its optimisers, and a copy of its learner from before
          the updates; `residuals` of the K updates; `batches`, one to learn from and the validation
          trajectories; `temporary`, the intermediate results of an update or of the meta-gradient,
          whichever is larger, only for the agents of a vectorised pass.
        """
        batch, residuals, validation = data = self._data(split)
        return {
            "state": num_bytes((self._member, self._member.agent.learner)),
            "residuals": num_bytes(residuals),
            "batches": num_bytes((batch, validation)),
            "temporary": max(peak_bytes(*program) for program in self._programs(data)),
        }

    def _programs(self, data: tuple[disco.Trajectory, Any, disco.Trajectory]) -> tuple[tuple, ...]:
        """Return an update and the meta-update, with their arguments, of which some are `_data`."""
        group, member, (batch, residuals, validation) = self._group, self._member, data

        def update(rule, *arguments):
            return inner_loop.update(group.agent_with(rule), group.value_function, *arguments)

        meta_update = functools.partial(agent_meta_update, self._config, group)
        return (
            (update, self._rule, member.agent, member.value, batch),
            (meta_update, self._rule, member, member.agent.learner, residuals, validation),
        )

    def _data(self, split: int) -> tuple[disco.Trajectory, Any, disco.Trajectory]:
        """Return the shapes of a batch, of K updates' residuals, and of validation trajectories.

        They are those of one of `split` devices.
        """
        agent, meta, dynamics = self._group.agent, self._config.meta, self._group.dynamics

        def trajectory(batch_size: int, length: int) -> disco.Trajectory:
            return to_trajectory(collection.example(agent, dynamics, batch_size // split, length))

        def update(rule, *arguments):
            return inner_loop.update_with_residuals(self._group.agent_with(rule), *arguments)[1]

        batch = trajectory(agent.config.batch_size, agent.config.unroll_length)
        residuals = jax.eval_shape(update, self._rule, self._member.agent.learner, batch)
        residuals = jax.tree.map(lambda x: _array((meta.num_updates, *x.shape), x.dtype), residuals)
        return batch, residuals, trajectory(meta.validation_trajectories, meta.validation_length)


class Layout(NamedTuple):
    """Agents of some groups on devices, which compute one after the other.

    Attributes:
      devices_per_agent: number of devices that split an agent's batches.
      rows: number of agents of each group on each device, including copies that pad a group.
      num_bytes: memory of a device.
    """

    devices_per_agent: int
    rows: tuple[int, ...]
    num_bytes: int

    def seconds(self, device: Accelerator, groups: Sequence[Agents], utilization: float) -> float:
        """Return the seconds of a meta-step, in which each device computes its share."""
        each = [device.seconds(agents.work, utilization) for agents in groups]
        return float(np.dot(self.rows, each)) / self.devices_per_agent


def layouts(
    settings: DiscoveryRunConfig, groups: Sequence[Agents], devices: int
) -> Iterator[Layout]:
    """Yield all layouts that the batch sizes and the number of devices allow."""
    common = math.gcd(devices, settings.agent.batch_size, settings.meta.validation_trajectories)
    for split in (x for x in range(1, common + 1) if common % x == 0):
        rows = tuple(-(-agents.count * split // devices) for agents in groups)
        memories = [agents.memory(split) for agents in groups]
        temporary = max(memory.pop("temporary") for memory in memories)
        kept = np.dot(rows, [sum(memory.values()) for memory in memories])
        yield Layout(split, rows, int(kept) + round(_TEMPORARY_MARGIN * temporary))


def main(argv: list[str]) -> None:
    """Print the plan."""
    del argv
    convolutions.convolution = None  # Accelerators take JAX's derivatives.
    settings = from_config(DiscoveryRunConfig, flags.FLAGS.config)
    discovery = MetaGradient(settings, _tasks(settings.suite), make_rule(settings))
    groups = [Agents(discovery, number) for number in range(len(discovery.groups))]
    rows = [
        {"one agent of": agents.family, "agents": str(agents.count)}
        | {f"{name}, TFLOP": f"{flop(work) / 1e12:.1f}" for name, work in agents.parts.items()}
        | {f"{name}, GiB": f"{x / 2**30:.2f}" for name, x in agents.memory(1).items()}
        | {"environment steps": f"{agents.steps:,}"}
        for agents in groups
    ]
    print_rows("One agent, one meta-step", rows)
    in_all = sum(agents.count * flop(agents.work) for agents in groups)
    state = discovery.abstract_state
    print(
        f"A meta-step: {in_all / 1e15:.2f} PFLOP,"
        f" {sum(agents.count * agents.steps for agents in groups):,} environment steps;"
        f" {settings.meta_steps:,} of them: {in_all * settings.meta_steps:.3g} FLOP."
        f" The rule's update: {num_bytes(state.rule) / 1e6:.2f} MB, of which a ring of many devices"
        f" moves twice as much through each. A checkpoint: {num_bytes(state) / 2**30:.2f} GiB."
    )
    rows = [
        _row(settings, groups, devices, name, layout)
        for devices in map(int, _DEVICES.value)
        for layout, name in itertools.product(
            layouts(settings, groups, devices), _ACCELERATORS.value
        )
    ]
    print_rows("A discovery", rows)


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


def _row(
    settings: DiscoveryRunConfig, groups: Sequence[Agents], devices: int, name: str, layout: Layout
) -> dict[str, str]:
    """Return the row of a machine and a layout."""
    device = ACCELERATORS[name]
    low, high = (layout.seconds(device, groups, float(u)) for u in _UTILIZATION.value)
    hours, fits = settings.meta_steps / 3600, layout.num_bytes <= device.memory
    return {
        "devices": f"{devices} {name}",
        "devices per agent": str(layout.devices_per_agent),
        "agents per device": " + ".join(map(str, layout.rows)),
        "GiB per device": f"{layout.num_bytes / 2**30:.1f}{'' if fits else ', does not fit'}",
        "s per meta-step": f"{high:.3g} to {low:.3g}",
        "hours in all": f"{high * hours:.3g} to {low * hours:.3g}",
    }


if __name__ == "__main__":
    define_config("disco57")
    app.run(main, flags_parser=parse_flags)
