"""Timing of compiled functions, side by side."""

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
    """Seconds of each call, the functions taking turns so that a busy machine hits all alike.

    Args:
      functions: by name; each is called once more beforehand, uncounted.
      repeats: counted calls of each.
      clock: gives seconds; `time.process_time` those of this process's processors.
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
    """Minimum, median and maximum of the turn-by-turn ratio of two functions' times."""
    each = [a / b for a, b in zip(seconds[name], seconds[baseline], strict=True)]
    return min(each), statistics.median(each), max(each)


def compiled(function: Callable, *args: Any) -> tuple[Callable[[], Any], float, float]:
    """Compiles a function for its arguments.

    Returns:
      A call of it, its temporary memory in MB and its GFLOP, both as XLA counts them.
    """
    program = jax.jit(function).lower(*args).compile()
    memory = program.memory_analysis()
    assert memory is not None, "XLA tells the memory of every backend that JAX supports."
    cost = program.cost_analysis() or {}
    return (
        lambda: program(*args),
        memory.temp_size_in_bytes / 1e6,
        cost.get("flops", float("nan")) / 1e9,
    )
