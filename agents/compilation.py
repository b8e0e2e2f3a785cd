"""How programs are compiled: XLA's options by how often a program runs (docs/performance.md)."""

import jax

# For what runs once or seldom. All devices know both options; the second concerns CPUs.
SELDOM = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def quickly_on_cpu() -> dict[str, bool | int] | None:
    """For large programs of which a CPU makes a step a second: a third less time to compile."""
    if jax.default_backend() != "cpu":
        return None
    return {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
