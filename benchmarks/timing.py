"""Comparisons of the times of compiled functions."""

import statistics
import time
from collections.abc import Callable, Mapping
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
      clock: returns seconds, for example `time.process_time` for CPU time.
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


def ratios(seconds: Mapping[str, list[float]], name: str, baseline: str) -> tuple[float, ...]:
    """Return minimum, median and maximum of the turn-by-turn ratio of two functions' times."""
    each = [a / b for a, b in zip(seconds[name], seconds[baseline], strict=True)]
    return min(each), statistics.median(each), max(each)


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
