r"""The cost of a discovery run, and its predicted duration on a machine: `docs/scale.md`.

    python -m benchmarks.scale --config=launch/configs/disco57.py --devices=1024 \
        --accelerators=tpu_v3_core
    python -m benchmarks.scale --config=launch/configs/disco103.py --devices=32,64

Any field of the config can be overridden by `--config.FIELD=value`. Arithmetic, memory and messages
are counted in the program of one agent's meta-step (`benchmarks.scale_model`), which is traced on
shapes: nothing is compiled, and no environment is started. DeepMind Lab need not be installed.

The seconds are the FLOP of products divided by an assumed fraction (`--utilization`, lowest and
highest) of the vendor's peak, but no less than the memory's bandwidth allows. The agents of a
device are computed one after the other. Acting and simulators are listed separately, as they run
beside the learning. Of the layouts of agents over devices that fit in memory, the one with the
fewest devices per agent is shown that is at most a tenth slower than the fastest.
"""

import itertools
import math
from typing import NamedTuple

from absl import app, flags

import environments
from benchmarks.accelerators import ACCELERATORS, Accelerator
from benchmarks.counting import num_bytes
from benchmarks.scale_model import AgentCost, DeviceMemory, agent_cost, device_memory
from disco_common.configuration import from_config
from environments.suites import dmlab
from launch.configs import disco57
from launch.support.flag_parsing import define_config, parse_flags
from launch.support.settings import DiscoverSettings
from launch.support.setup import make_discovery
from meta.discovery import Discovery

_DEVICES = flags.DEFINE_list("devices", ["1024"], "Numbers of devices.")
_ACCELERATORS = flags.DEFINE_list("accelerators", list(ACCELERATORS), "Kinds of devices.")
_UTILIZATION = flags.DEFINE_list(
    "utilization", ["0.02", "0.2"], "Assumed fractions of the peak: lowest and highest."
)
_ENGINES = flags.DEFINE_list(
    "steps_per_core",
    ["atari:2757", "procgen:10134"],
    "Environment steps per second of a host's core. By default half of the rates in"
    " docs/measurements/environments.md for Pong and coinrun on two cores.",
)


# XLA's temporary memory over the counted one, at most, for IMPALA's network on a CPU
# (docs/scale.md).
_TEMPORARY_MARGIN = 1.65


class Layout(NamedTuple):
    """A layout of agents over devices.

    Attributes:
      devices_per_agent: number of devices that split an agent's batches.
      rows: number of agents of each group on each device, including copies that pad a group.
    """

    devices_per_agent: int
    rows: tuple[int, ...]


def layouts(settings: DiscoverSettings, costs: list[AgentCost], num_devices: int) -> list[Layout]:
    """Return all layouts that the batch sizes and the number of devices allow."""
    common = math.gcd(num_devices, settings.agent.batch_size, settings.meta.validation_trajectories)
    return [
        Layout(split, tuple(-(-cost.count * split // num_devices) for cost in costs))
        for split in range(1, common + 1)
        if common % split == 0
    ]


def main(argv: list[str]) -> None:
    """Print tables in Markdown."""
    del argv
    settings = from_config(DiscoverSettings, _CONFIG.value)
    discovery = make_discovery(settings, _tasks(settings.suite))
    costs = [agent_cost(settings, discovery, group) for group in discovery.groups]
    memories = _Memories(settings, discovery)
    _print_agents(costs, memories(1))
    _print_totals(settings, discovery, costs)
    print(
        "\n| devices | devices per agent | agents per device | GiB per device | utilisation at most"
        " | s per meta-step | hours | ms per policy call | simulator cores |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, number in itertools.product(_ACCELERATORS.value, map(int, _DEVICES.value)):
        _print_prediction(settings, costs, memories, name, number)


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


class _Memories:
    """The memory of an agent on a device, by the number of devices per agent; traced lazily."""

    def __init__(self, settings: DiscoverSettings, discovery: Discovery):
        self._settings, self._discovery = settings, discovery
        self._known: dict[int, list[DeviceMemory]] = {}

    def __call__(self, devices_per_agent: int) -> list[DeviceMemory]:
        if devices_per_agent not in self._known:
            self._known[devices_per_agent] = [
                device_memory(self._settings, self._discovery, group, devices_per_agent)
                for group in self._discovery.groups
            ]
        return self._known[devices_per_agent]


def _print_agents(costs: list[AgentCost], memories: list[DeviceMemory]) -> None:
    print("| one agent of | " + " | ".join(cost.family for cost in costs) + " |")
    print("| --- |" + " --- |" * len(costs))

    def row(name, value):
        print(f"| {name} | " + " | ".join(str(value(cost)) for cost in costs) + " |")

    row("agents", lambda c: c.count)
    row("acting, TFLOP", lambda c: f"{c.acting.flop / 1e12:.2f}")
    row("K updates, TFLOP", lambda c: f"{c.updates.flop / 1e12:.1f}")
    for part in costs[0].of_updates:
        row(f"of these {part}", lambda c, part=part: f"{c.of_updates[part].flop / 1e12:.2f}")
    row("meta-gradient, TFLOP", lambda c: f"{c.meta_gradient.flop / 1e12:.1f}")
    for part in costs[0].of_meta_gradient:
        row(f"of these {part}", lambda c, part=part: f"{c.of_meta_gradient[part].flop / 1e12:.2f}")
    row("in all, TFLOP", lambda c: f"{c.work.flop / 1e12:.1f}")
    row("other operations, 10^12", lambda c: f"{c.work.other_flop / 1e12:.2f}")
    row("arrays of products, TB", lambda c: f"{c.work.num_bytes / 1e12:.2f}")
    for part in DeviceMemory._fields:
        sizes = [f"{getattr(memory, part) / 2**30:.2f}" for memory in memories]
        print(f"| device memory: {part}, GiB | " + " | ".join(sizes) + " |")
    row("environment steps", lambda c: f"{c.environment_steps:,}")
    row("policy calls", lambda c: f"{c.policy_calls:,}")
    row("from host to device, GiB", lambda c: f"{c.transferred / 2**30:.2f}")
    row("all-reduced between devices, GB", lambda c: f"{c.all_reduced / 1e9:.2f}")
    row("replay on the host, GiB", lambda c: f"{c.replay / 2**30:.2f}")


def _print_totals(settings: DiscoverSettings, discovery: Discovery, costs: list[AgentCost]) -> None:
    state = discovery.abstract_state
    flop = sum(cost.count * cost.work.flop for cost in costs)
    steps = sum(cost.count * cost.environment_steps for cost in costs)
    replay = sum(cost.count * cost.replay for cost in costs)
    print(
        f"\nA meta-step: {flop / 1e15:.2f} PFLOP, {steps:,} environment steps."
        f" {settings.meta_steps:,} of them: {flop * settings.meta_steps:.3g} FLOP."
        f"\nThe rule's update: {num_bytes(state.rule) / 1e6:.2f} MB, of which a ring of many"
        f" devices moves twice as much through each. A checkpoint:"
        f" {num_bytes(state) / 2**30:.2f} GiB. Replays: {replay / 2**30:.0f} GiB.\n"
    )


def _print_prediction(
    settings: DiscoverSettings,
    costs: list[AgentCost],
    memories: _Memories,
    name: str,
    num_devices: int,
) -> None:
    accelerator = ACCELERATORS[name]
    possible = layouts(settings, costs, num_devices)
    seconds = {layout: _seconds(accelerator, costs, layout, 1.0) for layout in possible}
    # The devices of an agent wait for each other, and only one of them acts.
    slack = 1.1 * min(seconds.values())
    possible.sort(key=lambda layout: (max(seconds[layout], slack), layout.devices_per_agent))
    needs = ((layout, _device_bytes(layout, memories)) for layout in possible)
    layout, needed = next(
        ((layout, needed) for layout, needed in needs if needed <= accelerator.memory),
        (None, 0),
    )
    if layout is None:
        print(f"| {num_devices} {name} | does not fit |")
        return
    low, high = (_seconds(accelerator, costs, layout, float(u)) for u in _UTILIZATION.value)
    at_peak = sum(
        rows * accelerator.seconds(cost.work, 1.0)
        for rows, cost in zip(layout.rows, costs, strict=True)
    )
    calls = sum(rows * cost.policy_calls for rows, cost in zip(layout.rows, costs, strict=True))
    hours = settings.meta_steps / 3600
    print(
        f"| {num_devices} {name} | {layout.devices_per_agent} |"
        f" {' + '.join(map(str, layout.rows))} | {needed / 2**30:.1f} |"
        f" {at_peak / layout.devices_per_agent / _seconds(accelerator, costs, layout, 1.0):.2f} |"
        f" {high:.3g} to {low:.3g} | {high * hours:.3g} to {low * hours:.3g} |"
        f" {1e3 * high / calls:.2g} to {1e3 * low / calls:.2g} |"
        f" {_cores(costs, low)} to {_cores(costs, high)} |",
        flush=True,
    )


def _seconds(
    accelerator: Accelerator, costs: list[AgentCost], layout: Layout, utilization: float
) -> float:
    """Return the seconds of a meta-step, in which each device computes its share of its agents."""
    return (
        sum(
            rows
            * max(accelerator.seconds(cost.work, utilization), accelerator.least_seconds(cost.work))
            for rows, cost in zip(layout.rows, costs, strict=True)
        )
        / layout.devices_per_agent
    )


def _device_bytes(layout: Layout, memories: _Memories) -> int:
    """Return the memory of a device that computes one agent at a time."""
    each = memories(layout.devices_per_agent)
    pairs = zip(layout.rows, each, strict=True)
    persistent = sum(rows * memory.persistent for rows, memory in pairs)
    return persistent + round(_TEMPORARY_MARGIN * max(memory.temporary for memory in each))


def _cores(costs: list[AgentCost], seconds: float) -> str:
    """Return the number of host cores that simulate a meta-step in some seconds, as text."""
    rates = {family: float(rate) for family, rate in (x.split(":") for x in _ENGINES.value)}
    cores, unknown = 0.0, 0.0
    for cost in costs:
        rate = cost.count * cost.environment_steps / seconds
        if cost.family in rates:
            cores += rate / rates[cost.family]
        else:
            unknown += rate
    rest = f" and those for {unknown:,.0f} other steps/s" if unknown else ""
    return f"{cores:,.0f}{rest}"


if __name__ == "__main__":
    _CONFIG = define_config(disco57)
    app.run(main, flags_parser=parse_flags)
