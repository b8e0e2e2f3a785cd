"""Dreamer's settings: presets of its two versions, and sizes by name."""

import dataclasses

from disco_common.ranges import AT_LEAST_0, AT_LEAST_1, FRACTION, POSITIVE, Range


@dataclasses.dataclass(frozen=True)
class DreamerConfig:
    """An agent's settings; the defaults are those of the Nature version at its size of 12M.

    Where the Nature paper and its authors' current code (2025) disagree, the defaults are the
    code's, against which they are tested. The paper's results are of the code of April 2024
    (`presets`).

    Attributes:
      deterministic: units of the recurrent state h.
      hidden: units of the RSSM's dense layers.
      latents: S, categorical variables of the stochastic state z.
      classes: C of each.
      blocks: of the recurrent weights; 1 for a dense GRU.
      units: of all other dense layers.
      depth: channels of the first convolution, of which all others are multiples.
      layers: of encoder's, decoder's, actor's and critic's MLPs.
      head_layers: of the reward's and the continuation's MLPs.
      norm: `"rms"` or `"layer"`.
      architecture: `"nature"` (blocks, 5x5 convolutions) or `"v1"` (a dense GRU whose gates are
        normalised, 4x4 convolutions of stride 2).
      convolutions: of the architecture `"nature"`: `"pooled"`, followed by max-pooling and preceded
        by enlarging (the code of 2025), or `"strided"`, of stride 2 after one at full resolution
        (the paper, and the code of April 2024).
      unimix: weight of the uniform distribution in the latents' mixtures.
      policy_unimix: likewise in discrete policies. The Nature paper and the code of April 2024 have
        0.01, the code of 2025 has none.
      regression: of reward and value: `"symexp_twohot"`, `"symlog_twohot"`, `"sqrt_twohot"` or
        `"symlog_regression"`.
      bins: of two-hot regressions.
      symlog_vectors: whether vectors are encoded and decoded as symlogs.
      free_nats: lower bound of the KL terms, below which they have no gradient.
      reconstruction_cost: weight of the decoder's loss.
      vector_cost: additional factor for observations that are not images. The loss of a board of a
        few cells is small compared with the KL terms; an image's sums over thousands of pixels.
      reward_cost, continue_cost: weights of the losses of reward and continuation.
      dynamics_cost, representation_cost: β_dyn and β_rep.
      target_kl: KL divergence that the KL terms' weight is adapted to; 0 for a fixed weight
        (TargetKL: 3.5).
      horizon: H, imagined steps.
      imagine_last: number of last steps of each sequence that imagination starts from; 0 for all.
      discount_horizon: 1 / (1 - γ).
      learns_discount: whether the continuation's target includes γ, as in the Nature version's
        code. In its paper the target is the flag, and γ is a separate factor.
      recorded_first_weight: with `learns_discount`, whether the first imagined state has weight 1
        unless it is terminal (the code of April 2024); otherwise its predicted continuation.
      lambda_: λ of the λ-returns.
      entropy_cost: η.
      target_randomness: randomness of the policy that η is adapted to; 0 for a fixed η
        (TargetEntropy: 0.4).
      return_norm: scale of the returns: `"range"` of percentiles, `"std"` or `"advantage_std"`.
      least_norm: lower bound of the returns' scale; 1e-8 for NoDenomMax.
      return_norm_decay: decay of the scale's moving average.
      reward_norm: whether rewards are divided by their running standard deviation (RewardNorm).
      dynamics_gradients: whether the gradient of the actor of continuous actions flows through the
        dynamics.
      actor_cost, critic_cost: weights of their losses.
      critic_replay_cost: weight of the critic's loss on replayed states; 0 for none.
      slow_target: whether returns bootstrap from the slow critic (SlowTarget).
      slow_critic_cost: weight of the regulariser towards the slow critic's predictions.
      slow_critic_decay: decay of the slow critic's moving average.
      optimizer: `"laprop"`, one for all networks, or `"adam"`, one each for world model, actor and
        critic.
      learning_rate: of LaProp, or of the world model's Adam.
      actor_critic_learning_rate: of the actor's and the critic's Adam.
      warmup: updates in which LaProp's learning rate rises; the Nature paper does not mention it.
      rms_decay: β2 of LaProp. The Nature paper says 0.99, its code has 0.999.
      batch_size: B, sequences of an update.
      batch_length: T, steps of a sequence.
      online_queue: whether each new sequence is learned from once before others are drawn.
      stored_latents: whether sequences start from the model states in the replay; otherwise from
        the initial model state.
      stored_dtype: of h in the replay: `"float32"`, or `"bfloat16"`, which halves its memory and
        rounds the state that a sequence starts from.
      replay_capacity: environment steps in the replay.
      replay_ratio: replayed steps per environment step.
      num_environments: number of parallel environments.
      image_side: of square images, in pixels, of environments that offer a choice.
      image_channels: likewise; 1 for grey images, 3 for RGB.
      prefill: sequences in the replay before the first update.
      dtype: in which the networks compute: `"float32"`, `"bfloat16"`, or `"auto"`, which is
        bfloat16 on accelerators. Parameters, the recurrent state, norms and losses are float32.
    """

    deterministic: int = 2048
    hidden: int = 256
    latents: int = 32
    classes: int = 16
    blocks: int = 8
    units: int = 256
    depth: int = 16
    layers: int = 3
    head_layers: int = 1
    norm: str = "rms"
    architecture: str = "nature"
    convolutions: str = "pooled"
    unimix: float = 0.01
    policy_unimix: float = 0.0
    regression: str = "symexp_twohot"
    bins: int = 255
    symlog_vectors: bool = True
    free_nats: float = 1.0
    reconstruction_cost: float = 1.0
    vector_cost: float = 1.0
    reward_cost: float = 1.0
    continue_cost: float = 1.0
    dynamics_cost: float = 1.0
    representation_cost: float = 0.1
    target_kl: float = 0.0
    horizon: int = 15
    imagine_last: int = 0
    discount_horizon: float = 333.0
    learns_discount: bool = True
    recorded_first_weight: bool = False
    lambda_: float = 0.95
    entropy_cost: float = 3e-4
    target_randomness: float = 0.0
    return_norm: str = "range"
    least_norm: float = 1.0
    return_norm_decay: float = 0.99
    reward_norm: bool = False
    dynamics_gradients: bool = False
    actor_cost: float = 1.0
    critic_cost: float = 1.0
    critic_replay_cost: float = 0.3
    slow_target: bool = False
    slow_critic_cost: float = 1.0
    slow_critic_decay: float = 0.98
    optimizer: str = "laprop"
    learning_rate: float = 4e-5
    actor_critic_learning_rate: float = 3e-5
    warmup: int = 1000
    rms_decay: float = 0.999
    batch_size: int = 16
    batch_length: int = 64
    online_queue: bool = True
    stored_latents: bool = True
    stored_dtype: str = "float32"
    replay_capacity: int = 5_000_000
    replay_ratio: float = 32.0
    num_environments: int = 16
    image_side: int = 64
    image_channels: int = 3
    prefill: int = 1024
    dtype: str = "auto"

    def __post_init__(self):
        """Check the settings.

        Raises:
          ValueError: naming a setting that is out of range.
        """
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"Dreamer's {name} is {getattr(self, name)!r}; expected one of"
                    f" {', '.join(known)}."
                )
        for numbers, names in _RANGES.items():
            numbers.require(self, "Dreamer's ", *names.split())
        if self.classes > _MOST_CLASSES:
            raise ValueError(
                f"Dreamer's classes is {self.classes}; expected at most {_MOST_CLASSES}, as many as"
                " a byte of the replay can tell apart."
            )
        if self.deterministic % self.blocks:
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
    def discount(self) -> float:
        """γ."""
        return 1.0 - 1.0 / self.discount_horizon

    @property
    def feature_size(self) -> int:
        """Size of a model state, h and z."""
        return self.deterministic + self.latents * self.classes


_CHOICES = {
    "norm": ("rms", "layer"),
    "architecture": ("nature", "v1"),
    "convolutions": ("pooled", "strided"),
    "regression": ("symexp_twohot", "symlog_twohot", "sqrt_twohot", "symlog_regression"),
    "return_norm": ("range", "std", "advantage_std"),
    "optimizer": ("laprop", "adam"),
    "stored_dtype": ("float32", "bfloat16"),
    "dtype": ("auto", "float32", "bfloat16"),
}
_RANGES = {
    AT_LEAST_1: """deterministic hidden latents classes blocks units depth layers horizon batch_size
        num_environments replay_capacity image_side image_channels""",
    Range("at least 2", lambda x: x >= 2): "batch_length bins",
    AT_LEAST_0: """free_nats reconstruction_cost vector_cost reward_cost continue_cost dynamics_cost
        representation_cost target_kl entropy_cost actor_cost critic_cost critic_replay_cost
        slow_critic_cost head_layers warmup""",
    FRACTION: """unimix policy_unimix lambda_ target_randomness return_norm_decay slow_critic_decay
        rms_decay""",
    POSITIVE: "replay_ratio learning_rate actor_critic_learning_rate least_norm",
    Range("more than 1", lambda x: x > 1): "discount_horizon",
}
_MOST_CLASSES = 256
