"""How programs are compiled: XLA's options by how often a program runs (docs/performance.md)."""

import jax

# For what runs seldom or computes little: it pays to compile it fast rather than well. The second
# option concerns CPUs; neither was tried on an accelerator.
QUICKEST = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def quickly_on_cpu() -> dict[str, bool | int] | None:
    """For large programs of which a CPU makes a step a second: a third less time to compile."""
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
    if not jax.config.read("jax_disable_most_optimizations"):  # Whoever asks for that wants less.
        options["xla_backend_optimization_level"] = 1
    return options
