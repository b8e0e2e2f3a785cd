"""Dreamer's settings: those of the papers by version, size, ablation and benchmark; a laptop's."""

import dataclasses
from typing import Any, NamedTuple

from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, FRACTION, POSITIVE, Range

VERSIONS = ("nature", "v1")
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
_MOST_CLASSES = 256


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
    deterministic: int = 2048
    latents: int = 32
    classes: int = 16
    blocks: int = 8
    units: int = 256
    depth: int = 16
    layers: int = 3
    unimix: float = 0.01
    policy_unimix: float = 0.01
    free_nats: float = 1.0
    vector_cost: float = 1.0
    horizon: int = 15
    imagine_last: int = 0
    discount_horizon: float = 333.0
    entropy_cost: float = 3e-4
    learning_rate: float = 4e-5
    actor_critic_learning_rate: float = 3e-5
    warmup: int = 1000
    batch_size: int = 16
    batch_length: int = 64
    replay_capacity: int = 5_000_000
    replay_ratio: float = 32.0
    num_environments: int = 16
    prefill: int = 1024
    image_side: int = 64
    image_channels: int = 3
    dtype: str = "auto"

    def __post_init__(self):
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"Dreamer's {name} is {getattr(self, name)!r}; expected one of"
                    f" {', '.join(filter(None, known))}."
                )
        for numbers, names in _RANGES.items():
            numbers.require(self, "Dreamer's ", *names.split())
        if self.classes > _MOST_CLASSES:
            raise ValueError(
                f"Dreamer's classes is {self.classes}; expected at most {_MOST_CLASSES}, as many as"
                " a byte of the replay can tell apart."
            )
        if not self.is_v1 and self.deterministic % self.blocks:
            raise ValueError(
                f"Dreamer's blocks is {self.blocks}; expected a divisor of deterministic"
                f" ({self.deterministic})."
            )
        if self.prefill < self.batch_size:
            raise ValueError(
                f"Dreamer's prefill is {self.prefill}; expected at least a batch of"
                f" {self.batch_size} sequences (batch_size)."
            )
        if self.imagine_last and not 2 <= self.imagine_last <= self.batch_length:
            raise ValueError(
                f"Dreamer's imagine_last is {self.imagine_last}; expected 0, or from 2 to"
                f" batch_length ({self.batch_length})."
            )

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
    def symlogs_vectors(self) -> bool:
        """Whether vectors are encoded and decoded as symlogs."""
        return self.ablation != "NoObsSymlog"

    @property
    def discount(self) -> float:
        """γ."""
        return 1.0 - 1.0 / self.discount_horizon


_CHOICES = {
    "version": VERSIONS,
    "ablation": ("", *ABLATIONS),
    "dtype": ("auto", "float32", "bfloat16"),
}
_RANGES = {
    AT_LEAST_1: """deterministic latents classes blocks units depth layers horizon batch_size
        num_environments replay_capacity image_side image_channels""",
    Range("at least 2", lambda x: x >= 2): "batch_length",
    AT_LEAST_0: "free_nats vector_cost entropy_cost warmup",
    FRACTION: "unimix policy_unimix",
    POSITIVE: "replay_ratio learning_rate actor_critic_learning_rate",
    Range("more than 1", lambda x: x > 1): "discount_horizon",
}


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
    """Return the names of a version's sizes, from small to large."""
    if version not in VERSIONS:
        raise ValueError(
            f"Dreamer's version is {version!r}; expected one of {', '.join(VERSIONS)}."
        )
    return tuple(_V1_SIZES if version == "v1" else _NATURE_SIZES)


def laptop(version: str = "nature", size: str = "", ablation: str = "") -> DreamerConfig:
    """Return settings for small tasks, of minutes on two cores; by default the least size."""
    size = size or sizes(version)[0]
    return dataclasses.replace(preset(version, size, ablation), **_LAPTOP)
