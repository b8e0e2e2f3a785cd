"""Comparisons of the times of compiled functions."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax


def time_in_turn(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each call. The functions take turns, so that other load affects all.

    Args:
      functions: by name; each one has an untimed call first.
      repeats: number of timed calls of each function.
      clock: returns seconds, for example `time.thread_time` for CPU time.
    """
    for function in functions.values():
        jax.block_until_ready(function())
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            jax.block_until_ready(function())
            seconds[name].append(clock() - start)
    return seconds


def text(seconds: Sequence[float]) -> str:
    """Return the median of some times, and their range."""
    low, middle, high = (1e3 * x for x in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{middle:.4g} ms ({low:.4g} to {high:.4g}, {len(seconds)} timed)"


def ratio(seconds: Mapping[str, list[float]], name: str, baseline: str) -> str:
    """Return the median turn-by-turn ratio of two functions' times, and its range."""
    each = [a / b for a, b in zip(seconds[name], seconds[baseline], strict=True)]
    spread = f"{min(each):.2f} to {max(each):.2f}, {len(each)} turns"
    return f"{name} / {baseline}: {statistics.median(each):.2f} ({spread})"


def compare(
    programs: Mapping[str, tuple[Callable, tuple]], baseline: str, repeats: int
) -> dict[str, list[float]]:
    """Print what programs take, and the ratios of their times to one's; return the times.

    `programs` are functions to compile, with their arguments, by name.
    """
    calls = {}
    for name, (function, arguments) in programs.items():
        calls[name], megabytes, gflop = compiled(function, *arguments)
        print(f"{name}: {megabytes:.0f} MB temporary, {gflop:.1f} GFLOP by XLA's count", flush=True)
    seconds = time_in_turn(calls, repeats)
    for name, times in seconds.items():
        print(f"{name}: {text(times)}")
        if name != baseline:
            print(ratio(seconds, name, baseline), flush=True)
    return seconds


def compiled(function: Callable, *args: Any) -> tuple[Callable[[], Any], float, float]:
    """Compile a function for its arguments.

    Returns:
      A function without arguments that calls it, and XLA's counts of its temporary memory in MB and
      of its GFLOP.
    """
    program = jax.jit(function).lower(*args).compile()
    memory = program.memory_analysis()
    assert memory is not None, "XLA reports the memory on every backend that JAX supports."
    cost = program.cost_analysis() or {}
    return (
        lambda: program(*args),
        memory.temp_size_in_bytes / 1e6,
        cost.get("flops", float("nan")) / 1e9,
    )
