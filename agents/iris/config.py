"""IRIS' settings and presets (Micheli et al. 2023, Transformers are Sample-Efficient World Models).

The defaults are those of the authors' configuration files (eloialonso/iris at 24326aa).
"""

import dataclasses

from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, BELOW_1, FRACTION, POSITIVE, Range


@dataclasses.dataclass(frozen=True)
class IrisConfig:
    """An agent's settings; the defaults are the paper's for Atari 100k.

    Attributes:
      vocabulary: N, codes of the discrete autoencoder.
      code_size: d, of a code's embedding.
      latent_channels: of the encoder's last and the decoder's first convolution.
      channels: of the autoencoder's other convolutions.
      groups: of the channels in its norms.
      patch: side of the squares of pixels that encoder and decoder take as one pixel of more
        channels; 1 for the paper's.
      tile: side of the squares of pixels that the autoencoder encodes and decodes each by itself,
        so that a token depends on its own square only; 0 for whole images, as the paper's.
      multipliers: factors of `channels` at each resolution, the image's first. Each further one
        halves the side, so five levels of a 64x64 image give K = 16 tokens, and four give 64.
      residual_blocks: of the encoder at each resolution; the decoder has one more.
      attention_resolutions: sides of the feature maps whose residual blocks are followed by
        attention.
      commitment_cost: β, weight of the encoder's part of the commitment loss.
      squared_cost: weight of an additional squared error of reconstructions; 0 for the paper's.
      revival_updates: first updates of the autoencoder in which codes without any use in the last
        100 updates, and all codes at first, become feature vectors of the current batch; 0 for the
        paper's. Later they would change the tokens that the world model has learned to predict.
      perceptual_file: `.npz` file of the perceptual loss' network; the loss is off without one.
      memory_steps: L, time steps that the Transformer's context contains.
      layers: M, of the Transformer.
      heads: of its attention.
      width: D, of its embeddings.
      dropout: of embeddings and of the blocks' outputs, while the world model learns.
      actor_patch: as `patch`, of the actor-critic.
      actor_channels: of its convolutions, each of which halves the side.
      lstm_size: units of its LSTM.
      horizon: H, imagined steps.
      learns_after_end: whether the actor-critic learns from imagined steps after an imagined end,
        too, as in the authors' code. Episodes of a few steps would then dilute its gradient by
        steps that do not happen.
      burn_in: earlier frames from which the LSTM's state is computed before imagination.
      discount: γ.
      lambda_: λ of the λ-returns.
      entropy_cost: η.
      temperature: of the policy while it collects experience; the paper has 0.01 for Freeway.
      epsilon: probability of a uniformly random action instead.
      evaluation_temperature: of the policy in `Mode.EVALUATION`, where epsilon is 0.
      learning_rate: of the three optimisers.
      tokenizer_decay_updates: updates in which the autoencoder's learning rate falls, along half a
        cosine, to a thirtieth, where it stays; 0 for a constant one, as the paper's. Codes that
        change late change what the world model has learned to predict.
      weight_decay: of the Transformer's linear weights.
      max_gradient_norm: of each of the three networks.
      tokenizer_batch: frames of an update of the autoencoder.
      world_model_batch: sequences of an update of the Transformer, of L steps each.
      actor_critic_batch: imagined trajectories of an update of the actor-critic.
      epoch_steps: environment steps of an epoch. An epoch collects, then updates the autoencoder,
        then the Transformer, then the actor-critic.
      epoch_updates: updates of each of the three in an epoch.
      tokenizer_start: epochs before the autoencoder's first update.
      world_model_start: before the Transformer's.
      actor_critic_start: before the actor-critic's.
      ends_at_life_loss: whether, in Atari games, the loss of a life ends an episode of training
        (`agents.protocol.Experience.ends_at_life_loss`).
      replay_capacity: environment steps in the replay.
      num_environments: number of parallel environments.
    """

    vocabulary: int = 512
    code_size: int = 512
    latent_channels: int = 512
    channels: int = 64
    groups: int = 32
    patch: int = 1
    tile: int = 0
    multipliers: tuple[int, ...] = (1, 1, 1, 1, 1)
    residual_blocks: int = 2
    attention_resolutions: tuple[int, ...] = (8, 16)
    commitment_cost: float = 1.0
    squared_cost: float = 0.0
    revival_updates: int = 0
    perceptual_file: str = ""
    memory_steps: int = 20
    layers: int = 10
    heads: int = 4
    width: int = 256
    dropout: float = 0.1
    actor_patch: int = 1
    actor_channels: tuple[int, ...] = (32, 32, 64, 64)
    lstm_size: int = 512
    horizon: int = 20
    learns_after_end: bool = True
    burn_in: int = 20
    discount: float = 0.995
    lambda_: float = 0.95
    entropy_cost: float = 0.001
    temperature: float = 1.0
    epsilon: float = 0.01
    evaluation_temperature: float = 0.5
    learning_rate: float = 1e-4
    tokenizer_decay_updates: int = 0
    weight_decay: float = 0.01
    max_gradient_norm: float = 10.0
    tokenizer_batch: int = 256
    world_model_batch: int = 64
    actor_critic_batch: int = 64
    epoch_steps: int = 200
    epoch_updates: int = 200
    tokenizer_start: int = 5
    world_model_start: int = 25
    actor_critic_start: int = 50
    ends_at_life_loss: bool = True
    replay_capacity: int = 100_000
    num_environments: int = 1

    def __post_init__(self):
        """Check the settings.

        Raises:
          ValueError: naming a setting that is out of range.
        """
        for numbers, names in _RANGES.items():
            numbers.require(self, "IRIS' ", *names.split())
        for name in ("multipliers", "actor_channels"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(
                    f"IRIS' {name} is {getattr(self, name)}; expected some numbers of at least 1."
                )
        if self.channels % self.groups:
            raise ValueError(
                f"IRIS' groups is {self.groups}; expected a divisor of channels ({self.channels})."
            )
        if self.tile % self.downsampling:
            raise ValueError(
                f"IRIS' tile is {self.tile}; expected a multiple of the {self.downsampling} pixels"
                " of a token's side (patch, and twice that for each further multiplier), or 0."
            )
        if self.width % self.heads:
            raise ValueError(
                f"IRIS' heads is {self.heads}; expected a divisor of width ({self.width})."
            )
        if self.epoch_steps % self.num_environments:
            raise ValueError(
                f"IRIS' num_environments is {self.num_environments}; expected a divisor of"
                f" epoch_steps ({self.epoch_steps})."
            )

    @property
    def downsampling(self) -> int:
        """The side of the square of pixels that a token stands for."""
        return self.patch * 2 ** (len(self.multipliers) - 1)


_RANGES = {
    AT_LEAST_1: """code_size latent_channels channels groups patch actor_patch residual_blocks
        layers heads width lstm_size burn_in tokenizer_batch world_model_batch actor_critic_batch
        epoch_steps epoch_updates replay_capacity num_environments""",
    Range("at least 2", lambda x: x >= 2): "vocabulary memory_steps horizon",
    AT_LEAST_0: """tile revival_updates commitment_cost squared_cost entropy_cost weight_decay
        tokenizer_decay_updates max_gradient_norm tokenizer_start world_model_start
        actor_critic_start""",
    FRACTION: "discount lambda_ epsilon",
    BELOW_1: "dropout",
    POSITIVE: "temperature evaluation_temperature learning_rate",
}
