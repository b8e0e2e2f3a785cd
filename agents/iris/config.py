"""IRIS' settings (Micheli et al. 2023, Transformers are Sample-Efficient World Models).

The defaults, and what does not vary, are those of the authors' configuration files (eloialonso/iris
at 24326aa).

`tile` chooses another IRIS for simple images, called `tiles` where it is compared with others. Its
autoencoder encodes and decodes each square of pixels by itself, so that a token depends on its own
square only, and learns differently (`agents.iris.learner`). Its actor-critic takes squares of
4x4 pixels for one, and does not learn from imagined steps after an imagined end: episodes of a few
steps would dilute its gradient by steps that do not happen.
"""

import dataclasses
from typing import Annotated

from disco_common.ranges import (
    AT_LEAST_1,
    AtLeast0,
    Below1,
    Count,
    Fraction,
    Positive,
    Range,
    divisor_of,
    require_ranges,
)

_ACTOR_PATCH = 4
_AtLeast2 = Annotated[int, Range("at least 2", lambda x: x >= 2)]


@dataclasses.dataclass(frozen=True)
class IrisConfig:
    """An agent's settings; the defaults are the paper's for Atari 100k.

    Attributes:
      vocabulary: N, codes of the discrete autoencoder.
      code_size: d, of a code's embedding.
      latent_channels: of the encoder's last and the decoder's first convolution.
      channels: of the autoencoder's other convolutions.
      groups: of the channels in its norms.
      tile: side of the square of pixels that a token of `tiles` stands for; 0 for the paper's IRIS.
      multipliers: factors of `channels` at each resolution, the image's first. Each further one
        halves the side, so five levels of a 64x64 image give K = 16 tokens, and four give 64. A
        tile is a pixel of one level.
      residual_blocks: of the encoder at each resolution; the decoder has one more.
      attention_resolutions: sides of the feature maps whose residual blocks are followed by
        attention.
      perceptual_file: `.npz` file of the perceptual loss' network; the loss is off without one.
      memory_steps: L, time steps that the Transformer's context contains.
      layers: M, of the Transformer.
      heads: of its attention.
      width: D, of its embeddings.
      dropout: of embeddings and of the blocks' outputs, while the world model learns.
      actor_channels: of the actor-critic's convolutions, each of which halves the side.
      lstm_size: units of its LSTM.
      horizon: H, imagined steps.
      burn_in: earlier frames from which the LSTM's state is computed before imagination.
      discount: γ.
      entropy_cost: η.
      temperature: of the policy while it collects experience; the paper has 0.01 for Freeway.
      learning_rate: of the three optimisers.
      tokenizer_batch: frames of an update of the autoencoder.
      world_model_batch: sequences of an update of the Transformer, of L steps each.
      actor_critic_batch: imagined trajectories of an update of the actor-critic.
      epoch_steps: environment steps of an epoch. An epoch collects, then updates the autoencoder,
        then the Transformer, then the actor-critic.
      epoch_updates: updates of each of the three in an epoch.
      tokenizer_start: epochs before the autoencoder's first update.
      world_model_start: before the Transformer's.
      actor_critic_start: before the actor-critic's.
      replay_capacity: environment steps in the replay.
      num_environments: number of parallel environments.
    """

    vocabulary: _AtLeast2 = 512
    code_size: Count = 512
    latent_channels: Count = 512
    channels: Count = 64
    groups: int = 32
    tile: AtLeast0[int] = 0
    multipliers: tuple[Count, ...] = (1, 1, 1, 1, 1)
    residual_blocks: Count = 2
    attention_resolutions: tuple[int, ...] = (8, 16)
    perceptual_file: str = ""
    memory_steps: _AtLeast2 = 20
    layers: Count = 10
    heads: int = 4
    width: Count = 256
    dropout: Below1 = 0.1
    actor_channels: tuple[Count, ...] = (32, 32, 64, 64)
    lstm_size: Count = 512
    horizon: _AtLeast2 = 20
    burn_in: Count = 20
    discount: Fraction = 0.995
    entropy_cost: AtLeast0[float] = 0.001
    temperature: Positive = 1.0
    learning_rate: Positive = 1e-4
    tokenizer_batch: Count = 256
    world_model_batch: Count = 64
    actor_critic_batch: Count = 64
    epoch_steps: Count = 200
    epoch_updates: Count = 200
    tokenizer_start: AtLeast0[int] = 5
    world_model_start: AtLeast0[int] = 25
    actor_critic_start: AtLeast0[int] = 50
    replay_capacity: Count = 100_000
    num_environments: int = 1

    def __post_init__(self):
        require_ranges(self, "IRIS' ")
        for name in ("multipliers", "actor_channels"):
            AT_LEAST_1.require_value(f"IRIS' number of {name}", len(getattr(self, name)))
        if self.tile and len(self.multipliers) > 1:
            raise ValueError(
                f"IRIS' multipliers is {self.multipliers}; expected one, as a tile (now"
                f" {self.tile}) is one token."
            )
        divisor_of("channels", self.channels).require_value("IRIS' groups", self.groups)
        divisor_of("width", self.width).require_value("IRIS' heads", self.heads)
        of_epoch = divisor_of("epoch_steps", self.epoch_steps)
        of_epoch.require_value("IRIS' num_environments", self.num_environments)

    @property
    def images(self) -> tuple[int, int]:
        """The side in pixels and the channels of images, where an environment offers a choice."""
        return 64, 3

    @property
    def downsampling(self) -> int:
        """The side of the square of pixels that a token stands for."""
        return self.tile or 2 ** (len(self.multipliers) - 1)

    @property
    def actor_patch(self) -> int:
        """The side of the square of pixels that the actor-critic takes for one."""
        return _ACTOR_PATCH if self.tile else 1


def paper(tokens: int = 16, *, is_long: bool = False) -> IrisConfig:
    """Return the paper's settings for Atari 100k, with 16 or 64 tokens per frame (appendix E).

    Those of a long run are for 10 million steps: one update in 50 steps (appendix F), and a replay
    of as many steps as the authors' limit of memory holds: 30 GiB of frames of 64x64 RGB pixels
    (config/datasets/default.yaml, max_ram_usage).
    """
    config = IrisConfig()
    if tokens == 64:
        config = dataclasses.replace(config, multipliers=config.multipliers[1:])
    if is_long:
        updates = config.epoch_updates // 50
        config = dataclasses.replace(config, epoch_updates=updates, replay_capacity=2_600_000)
    return config


def tiles() -> IrisConfig:
    """Return the variant for simple images: small networks, few updates, on two cores."""
    return IrisConfig(
        vocabulary=32,
        code_size=32,
        latent_channels=32,
        channels=32,
        groups=8,
        tile=16,
        multipliers=(1,),
        residual_blocks=1,
        attention_resolutions=(),
        memory_steps=5,
        layers=2,
        heads=4,
        width=64,
        dropout=0.0,
        actor_channels=(32, 32),
        lstm_size=64,
        horizon=5,
        burn_in=4,
        discount=0.97,
        entropy_cost=0.01,
        learning_rate=1e-3,
        tokenizer_batch=16,
        world_model_batch=8,
        actor_critic_batch=16,
        epoch_steps=64,
        epoch_updates=16,
        tokenizer_start=2,
        world_model_start=28,
        actor_critic_start=160,
        replay_capacity=20_000,
        num_environments=8,
    )
