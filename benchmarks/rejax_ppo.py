"""Trains PPO of the package rejax, for `benchmarks.ppo`, in an environment that has it.

    python benchmarks/rejax_ppo.py < request.json > result.json

Reads {"environment": ..., "settings": ..., "steps": ..., "interval": ..., "seeds": ...}, and writes
the mean returns of its evaluations (`returns`, by seed and interval), the steps at which they were
made, and the seconds that training alone takes, without evaluations and compilation: the lesser of
those of all seeds in one vectorised program and of one after the other. It needs nothing of this
repository. Run with rejax 0.1.3 and gymnax 0.0.9.
"""

import json
import sys
import time
from importlib import metadata

import jax
import jax.numpy as jnp
import rejax  # pyright: ignore[reportMissingImports]


def _seconds(train, keys) -> float:
    """Return the wall time of a compiled function."""
    compiled = train.lower(keys).compile()
    start = time.perf_counter()
    jax.block_until_ready(compiled(keys))
    return time.perf_counter() - start


def main() -> None:
    """Train twice: with evaluations for the curves, without them for the time."""
    request = json.load(sys.stdin)
    steps, interval = request["steps"], request["interval"]
    algorithm = rejax.PPO.create(
        env=request["environment"],
        total_timesteps=steps,
        eval_freq=interval,
        skip_initial_evaluation=True,
        **request["settings"],
    )
    keys = jax.random.split(jax.random.key(0), request["seeds"])
    _, (_, returns) = jax.jit(jax.vmap(algorithm.train))(keys)  # [seeds, intervals, episodes]
    alone = algorithm.replace(eval_callback=lambda *_: jnp.zeros(()), eval_freq=steps)
    together = jax.jit(jax.vmap(alone.train))
    one_by_one = jax.jit(lambda keys: jax.lax.map(alone.train, keys))
    seconds = min(_seconds(train, keys) for train in (together, one_by_one))
    means = jnp.mean(returns, axis=-1)
    result = {
        "steps": [interval * (i + 1) for i in range(means.shape[1])],
        "returns": means.tolist(),
        "seconds": seconds,
        "versions": {x: metadata.version(x) for x in ("jax", "rejax", "gymnax")},
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
