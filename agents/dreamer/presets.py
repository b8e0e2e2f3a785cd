"""Dreamer's settings by version, size, ablation and benchmark: the papers', and a laptop's."""

import dataclasses
from typing import Any, NamedTuple

from agents.dreamer.config import VERSIONS, DreamerConfig

# Deterministic units, other units, classes, depth.
_NATURE_SIZES = {
    "1m": (512, 64, 4, 4),
    "12m": (2048, 256, 16, 16),
    "25m": (3072, 384, 24, 24),
    "50m": (4096, 512, 32, 32),
    "100m": (6144, 768, 48, 48),
    "200m": (8192, 1024, 64, 64),
    "400m": (12288, 1536, 96, 96),
}
# Table B.1: recurrent units, depth, units, layers; and classes, 32 in the paper. The paper has no
# size 1M.
_V1_SIZES = {
    "1m": (256, 8, 64, 1, 8),
    "xs": (256, 24, 256, 1, 32),
    "s": (512, 32, 512, 2, 32),
    "m": (1024, 48, 640, 3, 32),
    "l": (2048, 64, 768, 4, 32),
    "xl": (4096, 96, 1024, 5, 32),
}
# The arXiv version: Table W.1.
_V1: dict[str, Any] = {"learning_rate": 1e-4, "warmup": 0, "replay_capacity": 1_000_000}


class Benchmark(NamedTuple):
    """A version's settings on a benchmark. The environments repeat actions.

    Attributes:
      size: of the networks.
      num_environments: number of parallel environments.
      replay_ratio: see `DreamerConfig`.
      image_side: likewise.
      image_channels: likewise.
    """

    size: str
    num_environments: int
    replay_ratio: float
    image_side: int = 64
    image_channels: int = 3


# By family of environments, the Nature and the arXiv version's. The Nature version's are its
# paper's table of benchmarks; both of its codes have a replay ratio of 256 on Atari 100k and 16
# environments of Minecraft. In the control suites they are those of its code of 2024: the
# environments repeat actions twice, as there. The code of 2025 repeats none, and has twice that
# replay ratio for proprioception and half of it for vision. The arXiv version's are Table A.1's. A
# family here on which the papers did not run a version has the settings of the most similar family.
# All other families have `preset`'s size and `DreamerConfig`'s defaults.
_DMLAB = (Benchmark("200m", 16, 32), Benchmark("xl", 8, 64))
_PROCGEN = (Benchmark("200m", 16, 64), Benchmark("xl", 8, 64))
_CONTROL = (Benchmark("12m", 16, 512), Benchmark("s", 4, 512))
_CRAFTER = (Benchmark("200m", 1, 512), Benchmark("xl", 1, 512))
_BENCHMARKS = {
    "atari": (Benchmark("200m", 16, 32, 96, 1), Benchmark("xl", 8, 64)),
    "atari100k": (Benchmark("200m", 1, 128), Benchmark("s", 1, 1024)),
    "bsuite": (Benchmark("200m", 1, 1024), Benchmark("xl", 1, 1024)),
    "control_proprio": _CONTROL,
    "control_vision": _CONTROL,
    "craftax_classic": _CRAFTER,
    "crafter": _CRAFTER,
    "dmlab": _DMLAB,
    "dmlab_test": _DMLAB,
    "dmlab_r2d2": _DMLAB,
    "dmlab_r2d2_test": _DMLAB,
    "minecraft": (Benchmark("200m", 64, 32), Benchmark("xl", 16, 16)),
    "nethack": (Benchmark("200m", 8, 64), Benchmark("xl", 8, 64)),
    "procgen": _PROCGEN,
    "procgen_all": _PROCGEN,
    "procgen_unseen": _PROCGEN,
}
FAMILIES = tuple(_BENCHMARKS)

_LAPTOP: dict[str, Any] = {
    "vector_cost": 10.0,
    "imagine_last": 8,
    "entropy_cost": 1e-1,
    "free_nats": 0.3,
    "batch_size": 8,
    "batch_length": 16,
    "num_environments": 8,
    "replay_ratio": 32.0,
    "prefill": 64,
    "learning_rate": 1e-3,
    "actor_critic_learning_rate": 1e-3,
    "warmup": 100,
}


def preset(
    version: str = "nature", size: str = "", ablation: str = "", family: str = ""
) -> DreamerConfig:
    """Return a version's settings at a size, with an ablation if one is given.

    Args:
      version: of `VERSIONS`.
      size: of `sizes(version)`; by default the version's on the family's benchmark, otherwise
        `"12m"`, or `"s"` of `"v1"`.
      ablation: of `ABLATIONS`, or empty for none.
      family: of environments; it determines the replay ratio and the number of environments.

    Raises:
      ValueError: if there is no such version, size or ablation.
    """
    known, is_v1 = sizes(version), version == "v1"
    benchmark = _BENCHMARKS[family][is_v1] if family in _BENCHMARKS else None
    if not size:
        size = benchmark.size if benchmark else ("s" if is_v1 else "12m")
    if size not in known:
        raise ValueError(f"Dreamer's size is {size!r}; {version!r} has {', '.join(known)}.")
    if is_v1:
        deterministic, depth, units, layers, classes = _V1_SIZES[size]
        settings = {**_V1, "layers": layers}
    else:
        deterministic, units, classes, depth = _NATURE_SIZES[size]
        settings: dict[str, Any] = {}
    settings |= {"deterministic": deterministic, "units": units, "classes": classes, "depth": depth}
    if benchmark:
        settings |= {name: x for name, x in benchmark._asdict().items() if name != "size"}
    return DreamerConfig(version, ablation, **settings)


def sizes(version: str) -> tuple[str, ...]:
    """Return the names of a version's sizes, from small to large.

    Raises:
      ValueError: if there is no such version.
    """
    if version not in VERSIONS:
        raise ValueError(
            f"Dreamer's version is {version!r}; expected one of {', '.join(VERSIONS)}."
        )
    return tuple(_V1_SIZES if version == "v1" else _NATURE_SIZES)


def laptop(version: str = "nature", size: str = "", ablation: str = "") -> DreamerConfig:
    """Return settings for small tasks, learned in minutes on two cores; by default the least size.

    Raises:
      ValueError: see `preset`.
    """
    size = size or sizes(version)[0]
    return dataclasses.replace(preset(version, size, ablation), **_LAPTOP)
