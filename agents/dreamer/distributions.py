"""Dreamer's distributions: regressions at any scale, latents, actions; and kinds of observations.

"The arXiv version" is Hafner et al. 2023 (arXiv 2301.04104v1), "the Nature version" Hafner et al.
2025 (Nature 640, "Mastering diverse control tasks through world models").
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import rlax
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray

from agents.dreamer.config import DreamerConfig
from disco.values import entropy, signed_hyperbolic

symlog, symexp = rlax.signed_logp1, rlax.signed_expm1  # The arXiv version, equation 2.
_NUM_BINS = 255  # K, of two-hot regressions.


def signed_square(x: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """Return the inverse of R2D2's transformation, by the formula of its paper."""
    root = jnp.sqrt(1.0 + 4e-3 * (jnp.abs(x) + 1.0 + 1e-3))
    return jnp.sign(x) * (jnp.square((root - 1.0) / 2e-3) - 1.0)


def _identity(x: Array) -> Array:
    return x


def _chosen(x: Float[Array, "*s C"], index: Int[Array, "*s"]) -> Float[Array, "*s"]:
    return jnp.take_along_axis(x, index[..., None], axis=-1)[..., 0]


@dataclasses.dataclass(frozen=True, eq=False)
class TwoHot:
    """Regression by a softmax over bins, trained on two-hot targets.

    Attributes:
      bins: in ascending order, symmetric about 0; `[K]`.
      transform: from targets to the scale of the bins.
      inverse: of `transform`.
    """

    bins: np.ndarray
    transform: Callable[[Array], Array] = _identity
    inverse: Callable[[Array], Array] = _identity

    @property
    def num_logits(self) -> int:
        """K, the number of bins."""
        return len(self.bins)

    def mean(self, logits: Float[Array, "*s K"]) -> Float[Array, "*s"]:
        """Return the prediction: the inverse transformation of the expected bin.

        Bins span seventeen orders of magnitude. The probabilities of opposite bins are subtracted
        before they are multiplied by the bin. So symmetric probabilities give exactly 0, even if a
        compiler fuses multiplications and additions.
        """
        probabilities = jax.nn.softmax(logits)
        half = self.num_logits // 2
        above = probabilities[..., -half:] - probabilities[..., :half][..., ::-1]
        return self.inverse(jnp.sum(above * self.bins[-half:].astype(logits.dtype), axis=-1))

    def loss(self, logits: Float[Array, "*s K"], target: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the cross-entropy to the two-hot target (the Nature version, "Distributions")."""
        bins, target = jnp.asarray(self.bins, logits.dtype), self.transform(target)
        last, count = self.num_logits - 1, jnp.sum(bins <= target[..., None], axis=-1)
        below, above = jnp.clip(count - 1, 0, last), jnp.clip(count, 0, last)
        to_below, to_above = jnp.abs(bins[below] - target), jnp.abs(bins[above] - target)
        is_one = below == above
        total = jnp.where(is_one, 1.0, to_below + to_above)
        weight = jnp.where(is_one, 1.0, to_above / total)
        log_p = jax.nn.log_softmax(logits)
        found = -(weight * _chosen(log_p, below) + (1.0 - weight) * _chosen(log_p, above))
        return jnp.where(jnp.isnan(target), jnp.nan, found)  # NaN is in no bin.


def exponential_bins() -> np.ndarray:
    """Return bins that are equally spaced on the symlog scale (the Nature version)."""
    half = np.linspace(-20.0, 0.0, _NUM_BINS // 2 + 1, dtype=np.float32)
    half = np.asarray(symexp(jnp.asarray(half)))
    return np.concatenate([half, -half[-2::-1]])


@dataclasses.dataclass(frozen=True)
class SymlogRegression:
    """A single number with a squared error of symlogs: ablation ContRegression."""

    num_logits: int = 1

    def mean(self, logits: Float[Array, "*s 1"]) -> Float[Array, "*s"]:
        return symexp(logits[..., 0])

    def loss(self, logits: Float[Array, "*s 1"], target: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the squared error of symlogs (the arXiv version, equation 1)."""
        return 0.5 * jnp.square(logits[..., 0] - symlog(target))


Regression = TwoHot | SymlogRegression


@functools.cache
def regression_of(config: DreamerConfig) -> Regression:
    """Return the regression of rewards and values; equal settings give the same object.

    The Nature version's bins are on the scale of the targets, the arXiv version's (equations 8 to
    10) on the symlog scale, those of SqrtTransform on that of R2D2's transformation.
    """
    if config.ablation == "ContRegression":
        return SymlogRegression()
    if config.ablation == "SqrtTransform":
        bins = np.linspace(-300.0, 300.0, _NUM_BINS, dtype=np.float32)
        return TwoHot(bins, signed_hyperbolic, signed_square)
    if config.is_v1:
        return TwoHot(np.linspace(-20.0, 20.0, _NUM_BINS, dtype=np.float32), symlog, symexp)
    return TwoHot(exponential_bins())


def mixed_log_probabilities(
    logits: Float[Array, "*s C"], unimix: float = 0.01
) -> Float[Array, "*s C"]:
    """Return the log-probabilities of a mixture with the uniform distribution."""
    if not unimix:
        return jax.nn.log_softmax(logits)
    return jnp.log((1.0 - unimix) * jax.nn.softmax(logits) + unimix / logits.shape[-1])


def straight_through(
    one_hot: Float[Array, "*s C"], log_probabilities: Float[Array, "*s C"]
) -> Float[Array, "*s C"]:
    """Return one-hot samples with the straight-through gradient of their probabilities."""
    probabilities = jnp.exp(log_probabilities)
    return jax.lax.stop_gradient(one_hot - probabilities) + probabilities


def sample(key: PRNGKeyArray, log_probabilities: Float[Array, "*s C"]) -> Float[Array, "*s C"]:
    """Return one-hot samples with straight-through gradients."""
    index = jax.random.categorical(key, log_probabilities)
    one_hot = jax.nn.one_hot(index, log_probabilities.shape[-1], dtype=log_probabilities.dtype)
    return straight_through(one_hot, log_probabilities)


def kl_divergence(
    log_p: Float[Array, "*s S C"], log_q: Float[Array, "*s S C"]
) -> Float[Array, "*s"]:
    """Return the KL divergence of S independent variables, summed over them."""
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=(-2, -1))


@dataclasses.dataclass(frozen=True)
class Discrete:
    """A policy over a number of actions.

    Attributes:
      log_probabilities: `[*s, A]`.
    """

    log_probabilities: Float[Array, "*s A"]

    def sample(self, key: PRNGKeyArray) -> Int[Array, "*s"]:
        """Return a sampled action."""
        return jax.random.categorical(key, self.log_probabilities)

    def log_prob(self, action: Int[Array, "*s"]) -> Float[Array, "*s"]:
        """Return the log-probabilities of actions."""
        return _chosen(self.log_probabilities, action)

    def entropy(self) -> Float[Array, "*s"]:
        """Return the entropy in nats."""
        return entropy(self.log_probabilities)

    def randomness(self) -> Float[Array, "*s"]:
        """Return the normalised entropy: 0 for a deterministic policy, 1 for the uniform one."""
        return self.entropy() / jnp.log(self.log_probabilities.shape[-1])


_LEAST_STDDEV, _MOST_STDDEV = 0.1, 1.0


@dataclasses.dataclass(frozen=True)
class Continuous:
    """A policy over vectors: independent normals with bounded means and standard deviations.

    Attributes:
      mean: `[*s, D]`, in -1 to 1.
      stddev: `[*s, D]`, in 0.1 to 1.
    """

    mean: Float[Array, "*s D"]
    stddev: Float[Array, "*s D"]

    @classmethod
    def of_outputs(cls, mean: Float[Array, "*s D"], stddev: Float[Array, "*s D"]) -> "Continuous":
        """Return the policy of a network's outputs."""
        width = _MOST_STDDEV - _LEAST_STDDEV
        return cls(jnp.tanh(mean), width * jax.nn.sigmoid(stddev + 2.0) + _LEAST_STDDEV)

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*s D"]:
        """Return a sampled action, possibly outside the mean's bounds."""
        return self.mean + self.stddev * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def log_prob(self, action: Float[Array, "*s D"]) -> Float[Array, "*s"]:
        return jnp.sum(jax.scipy.stats.norm.logpdf(action, self.mean, self.stddev), axis=-1)

    def entropy(self) -> Float[Array, "*s"]:
        """Return the entropy in nats."""
        return jnp.sum(jnp.log(self.stddev) + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e), axis=-1)

    def randomness(self) -> Float[Array, "*s"]:
        """Return the mean log-deviation, normalised to 0 at the least and 1 at the largest."""
        low, high = np.log(_LEAST_STDDEV), np.log(_MOST_STDDEV)
        return jnp.mean((jnp.log(self.stddev) - low) / (high - low), axis=-1)


Policy = Discrete | Continuous

_MOST_CLASSES = 64  # Integers of more values have embeddings.
_MOST_IDS = 2**17  # Integers of more values are numbers, such as counts.
_EMBEDDING, _CELL_EMBEDDING = 32, 8  # Sizes of embeddings: in vectors, and in boards.

Specs = Mapping[str, specs.Array]


@dataclasses.dataclass(frozen=True)
class Observation:
    """Numbers, predicted as such.

    Attributes:
      shape: of one observation.
      dtype: of its elements.
      is_symlog: whether they are encoded and predicted as symlogs.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    is_symlog: bool = False

    @property
    def predicted_shape(self) -> tuple[int, ...]:
        return self.shape

    def encoded(self, x: Array) -> Float[Array, "*s F"]:
        """Return observations as vectors, the inputs of an MLP."""
        return self._numbers(x).reshape(*x.shape[: x.ndim - len(self.shape)], -1)

    def loss(self, predicted: Array, target: Array) -> Float[Array, "*s"]:
        """Return the loss of a prediction, summed over the observation's elements."""
        error = self._error(predicted, target)
        axes = tuple(range(target.ndim - len(self.shape), error.ndim))
        return jnp.sum(error, axis=axes) if axes else error

    def decoded(self, predicted: Array) -> Array:
        """Return a prediction in the observation's range and dtype; numbers are floats."""
        return symexp(predicted) if self.is_symlog else predicted

    def _numbers(self, x: Array) -> Array:
        """Return observations as the numbers that are encoded and predicted."""
        x = x.astype(jnp.float32)
        return symlog(x) if self.is_symlog else x

    def _error(self, predicted: Array, target: Array) -> Array:
        return jnp.square(predicted - self._numbers(target))


@dataclasses.dataclass(frozen=True)
class Image(Observation):
    """An image, encoded by convolutions; predictions are in 0 to 1."""

    def _numbers(self, x: Array) -> Array:
        return x.astype(jnp.float32) / 255.0

    def decoded(self, predicted: Array) -> Array:
        return (255.0 * jnp.clip(predicted, 0.0, 1.0)).astype(jnp.uint8)


@dataclasses.dataclass(frozen=True)
class Classes(Observation):
    """Integers of few values, encoded as one-hot vectors; predictions are logits."""

    number: int = 0

    @property
    def predicted_shape(self) -> tuple[int, ...]:
        return (*self.shape, self.number)

    def _numbers(self, x: Array) -> Array:
        return jax.nn.one_hot(x, self.number)

    def _error(self, predicted: Array, target: Array) -> Array:
        return -_chosen(jax.nn.log_softmax(predicted), target.astype(jnp.int32))

    def decoded(self, predicted: Array) -> Array:
        return jnp.argmax(predicted, axis=-1).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Embedded(Observation):
    """Integers of many values, encoded and predicted as fixed embeddings."""

    number: int = 0

    @property
    def table(self) -> Float[np.ndarray, "N E"]:
        size = (self.number, self.predicted_shape[-1])
        return np.random.default_rng(0).normal(size=size).astype(np.float32)

    @property
    def predicted_shape(self) -> tuple[int, ...]:
        return (*self.shape, _EMBEDDING if len(self.shape) == 1 else _CELL_EMBEDDING)

    def _numbers(self, x: Array) -> Array:
        return jnp.asarray(self.table)[x]

    def decoded(self, predicted: Array) -> Array:  # The closest.
        table = self.table
        distance = jnp.sum(jnp.square(table), axis=-1) - 2.0 * predicted @ table.T
        return jnp.argmin(distance, axis=-1).astype(self.dtype)


def is_image(spec: specs.Array) -> bool:
    """Return whether an observation is encoded by convolutions."""
    return len(spec.shape) == 3 and spec.dtype == np.uint8


def observations_of(config: DreamerConfig, observation_specs: Specs) -> dict[str, Observation]:
    """Return observations by name: images last, both parts in the order of their names."""
    found = {name: _of(config, spec) for name, spec in sorted(observation_specs.items())}
    return dict(sorted(found.items(), key=lambda item: isinstance(item[1], Image)))


def _of(config: DreamerConfig, spec: specs.Array) -> Observation:
    given, number = (tuple(spec.shape), np.dtype(spec.dtype)), _num_values(spec)
    if is_image(spec):
        return Image(*given)
    if 0 < number <= _MOST_CLASSES:
        return Classes(*given, number=number)
    # Integers of one number per observation, such as counts, are numbers.
    if _MOST_CLASSES < number <= _MOST_IDS and spec.shape:
        return Embedded(*given, number=number)
    return Observation(*given, is_symlog=config.ablation != "NoObsSymlog")


def _num_values(spec: specs.Array) -> int:
    """Return the number of values of integers from 0 to a bound; otherwise 0."""
    if not isinstance(spec, specs.BoundedArray) or not np.issubdtype(spec.dtype, np.integer):
        return 0
    return 0 if np.min(spec.minimum) < 0 else int(np.max(spec.maximum)) + 1
