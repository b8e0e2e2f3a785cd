"""Dreamer's settings: those of the papers by version, size, ablation and benchmark; a laptop's."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from disco_common.ranges import (
    AtLeast0,
    Count,
    Fraction,
    Positive,
    Range,
    divisor_of,
    require_ranges,
)

# Deterministic and other units, classes, depth and layers, by version and size. Those of `"v1"` are
# Table B.1's, but for its size 1M, which the paper has not.
SIZES: Mapping[str, Mapping[str, tuple[int, int, int, int, int]]] = {
    "nature": {
        "1m": (512, 64, 4, 4, 3),
        "12m": (2048, 256, 16, 16, 3),
        "25m": (3072, 384, 24, 24, 3),
        "50m": (4096, 512, 32, 32, 3),
        "100m": (6144, 768, 48, 48, 3),
        "200m": (8192, 1024, 64, 64, 3),
        "400m": (12288, 1536, 96, 96, 3),
    },
    "v1": {
        "1m": (256, 64, 8, 8, 1),
        "xs": (256, 256, 32, 24, 1),
        "s": (512, 512, 32, 32, 2),
        "m": (1024, 640, 32, 48, 3),
        "l": (2048, 768, 32, 64, 4),
        "xl": (4096, 1024, 32, 96, 5),
    },
}
VERSIONS = tuple(SIZES)
# Of the arXiv version's Appendix E; each changes what its name says (`agents.dreamer.losses`).
ABLATIONS = (
    "NoFreeBits",
    "NoKLBalance",
    "NoObsSymlog",
    "TargetKL",
    "RewardNorm",
    "ContRegression",
    "SqrtTransform",
    "SlowTarget",
    "NoDenomMax",
    "AdvantageStd",
    "ReturnStd",
    "TargetEntropy",
)


_BYTE = Range("1 to 256, which a byte of the replay tells apart", lambda x: 1 <= x <= 256)
_AT_LEAST_2 = Range("at least 2", lambda x: x >= 2)
_MORE_THAN_1 = Range("more than 1", lambda x: x > 1)


@dataclasses.dataclass(frozen=True)
class DreamerConfig:
    """An agent's settings; the defaults are those of the Nature version at its size of 12M.

    Attributes:
      version: `"nature"`, the Nature paper's as its authors' code of 2025 has it, with the paper's
        1% of uniform in policies; or `"v1"`, the arXiv paper's.
      ablation: of `ABLATIONS`; empty for none.
      deterministic: units of the recurrent state h.
      latents: S, categorical variables of the stochastic state z.
      classes: C of each.
      blocks: of the recurrent weights; `"v1"` has none.
      units: of all other dense layers.
      depth: channels of the first convolution, of which all others are multiples.
      layers: of encoder's, decoder's, actor's and critic's MLPs.
      unimix: weight of the uniform distribution in the latents' mixtures.
      policy_unimix: weight of the uniform distribution in discrete policies. The papers have 0.01;
        the authors' code of 2025 sets it, but does not use it.
      free_nats: lower bound of the KL terms, below which they have no gradient.
      vector_cost: factor of the decoder's loss of observations that are not images. The loss of a
        board of a few cells is small compared with the KL terms; an image's sums over thousands of
        pixels.
      horizon: H, imagined steps.
      imagine_last: number of last steps of each sequence that imagination starts from; 0 for all.
      discount_horizon: 1 / (1 - γ).
      entropy_cost: η; with TargetEntropy, the first one.
      learning_rate: of LaProp, or of the world model's Adam (`"v1"`).
      actor_critic_learning_rate: of the actor's and the critic's Adam (`"v1"`).
      warmup: updates in which LaProp's learning rate rises; the Nature paper does not mention it.
      batch_size: B, sequences of an update.
      batch_length: T, steps of a sequence.
      replay_capacity: environment steps in the replay.
      replay_ratio: replayed steps per environment step.
      num_environments: number of parallel environments.
      prefill: sequences in the replay before the first update.
      image_side: of square images, in pixels, of environments that offer a choice.
      image_channels: likewise; 1 for grey images, 3 for RGB.
      dtype: in which the networks compute: `"float32"`, `"bfloat16"`, or `"auto"`, which is
        bfloat16 on accelerators. Parameters, the recurrent state, norms and losses are float32.
    """

    version: str = "nature"
    ablation: str = ""
    deterministic: Count = 2048
    latents: Count = 32
    classes: Annotated[int, _BYTE] = 16
    blocks: Count = 8
    units: Count = 256
    depth: Count = 16
    layers: Count = 3
    unimix: Fraction = 0.01
    policy_unimix: Fraction = 0.01
    free_nats: AtLeast0[float] = 1.0
    vector_cost: AtLeast0[float] = 1.0
    horizon: Count = 15
    imagine_last: int = 0
    discount_horizon: Annotated[float, _MORE_THAN_1] = 333.0
    entropy_cost: AtLeast0[float] = 3e-4
    learning_rate: Positive = 4e-5
    actor_critic_learning_rate: Positive = 3e-5
    warmup: AtLeast0[int] = 1000
    batch_size: Count = 16
    batch_length: Annotated[int, _AT_LEAST_2] = 64
    replay_capacity: Count = 5_000_000
    replay_ratio: Positive = 32.0
    num_environments: Count = 16
    prefill: int = 1024
    image_side: Count = 64
    image_channels: Count = 3
    dtype: str = "auto"

    def __post_init__(self):
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"Dreamer's {name} is {getattr(self, name)!r}; expected one of"
                    f" {', '.join(filter(None, known))}."
                )
        require_ranges(self, "Dreamer's ")
        least, most = self.batch_size, self.batch_length
        enough = Range(f"at least a batch of {least} sequences (batch_size)", lambda x: x >= least)
        enough.require_value("Dreamer's prefill", self.prefill)
        last = Range(f"0, or from 2 to batch_length ({most})", lambda x: not x or 2 <= x <= most)
        last.require_value("Dreamer's imagine_last", self.imagine_last)
        if not self.is_v1:
            allowed = divisor_of("deterministic", self.deterministic)
            allowed.require_value("Dreamer's blocks", self.blocks)

    @property
    def images(self) -> tuple[int, int]:
        """The side in pixels and the channels of images, where an environment offers a choice."""
        return self.image_side, self.image_channels

    @property
    def is_v1(self) -> bool:
        """Whether it is the arXiv version."""
        return self.version == "v1"

    @property
    def norm(self) -> str:
        """Kind of the layers' norm (`agents.dreamer.layers.Norm`)."""
        return "layer" if self.is_v1 else "rms"

    @property
    def head_layers(self) -> int:
        """Layers of the reward's and the continuation's MLPs."""
        return self.layers if self.is_v1 else 1

    @property
    def stores_latents(self) -> bool:
        """Whether sequences start from model states in the replay; else from the initial one."""
        return not self.is_v1

    @property
    def discount(self) -> float:
        """γ."""
        return 1.0 - 1.0 / self.discount_horizon


_CHOICES = {
    "version": VERSIONS,
    "ablation": ("", *ABLATIONS),
    "dtype": ("auto", "float32", "bfloat16"),
}

# The arXiv version: Table W.1.
_V1: dict[str, Any] = {"learning_rate": 1e-4, "warmup": 0, "replay_capacity": 1_000_000}


class Benchmark(NamedTuple):
    """The size of a version's networks on a benchmark, and fields of its `DreamerConfig`."""

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

    By default the size is the version's on the benchmark of the family of environments, otherwise
    `"12m"`, or `"s"` of `"v1"`. The family determines the replay ratio and the number of
    environments, too.

    Raises:
      ValueError: if there is no such version, size or ablation.
    """
    is_v1 = version == "v1"
    benchmark = _BENCHMARKS[family][is_v1]._asdict() if family in _BENCHMARKS else {}
    own = benchmark.pop("size", "s" if is_v1 else "12m")
    size = size or own
    if size not in SIZES.get(version, ()):
        known = "; ".join(f"{name}: {', '.join(sizes)}" for name, sizes in SIZES.items())
        raise ValueError(f"There is no Dreamer {version!r} of size {size!r}; expected {known}.")
    fields = ("deterministic", "units", "classes", "depth", "layers")
    settings = dict(zip(fields, SIZES[version][size], strict=True)) | benchmark
    return DreamerConfig(version, ablation, **settings, **(_V1 if is_v1 else {}))


def laptop(version: str = "nature", size: str = "1m", ablation: str = "") -> DreamerConfig:
    """Return settings for small tasks, of minutes on two cores."""
    return dataclasses.replace(preset(version, size, ablation), **_LAPTOP)
