"""Kinds of observations: how each is encoded, predicted and compared.

Observations are dictionaries by name of images (uint8 `[H, W, C]`), vectors and grids of numbers,
and integers of known ranges. Integers of few values are one-hot vectors. Those of many values, such
as words or glyphs, are vectors of fixed random embeddings, as the words of the authors' DMLab
(danijar/dreamerv3, `embodied/envs/dmlab.py`): as numbers, bfloat16 would not tell them apart.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float

from agents.dreamer.config import DreamerConfig
from agents.dreamer.distributions import symexp, symlog

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
    def spec(self) -> specs.Array:
        """The observation as other packages describe it."""
        return specs.Array(self.shape, self.dtype)

    @property
    def predicted_shape(self) -> tuple[int, ...]:
        """Shape of a prediction."""
        return self.shape

    def encoded(self, x: Array) -> Float[Array, "*s F"]:
        """Return observations as vectors, the inputs of an MLP."""
        x = x.astype(jnp.float32).reshape(*self._lead(x), -1)
        return symlog(x) if self.is_symlog else x

    def loss(self, predicted: Array, target: Array) -> Float[Array, "*s"]:
        """Return the loss of a prediction, summed over the observation's elements."""
        error, lead = self._error(predicted, target), self._lead(target)
        axes = tuple(range(len(lead), error.ndim))
        return jnp.sum(error, axis=axes) if axes else error

    def decoded(self, predicted: Array) -> Array:
        """Return a prediction in the observation's range and dtype; numbers are floats."""
        return symexp(predicted) if self.is_symlog else predicted

    def _lead(self, x: Array) -> tuple[int, ...]:
        return x.shape[: x.ndim - len(self.shape)]

    def _error(self, predicted: Array, target: Array) -> Array:
        target = target.astype(jnp.float32)
        target = symlog(target) if self.is_symlog else target
        return jnp.square(predicted - target)


@dataclasses.dataclass(frozen=True)
class Image(Observation):
    """An image, encoded by convolutions; predictions are in 0 to 1."""

    def _error(self, predicted: Array, target: Array) -> Array:
        return jnp.square(predicted - target.astype(jnp.float32) / 255.0)

    def decoded(self, predicted: Array) -> Array:
        return (255.0 * jnp.clip(predicted, 0.0, 1.0)).astype(jnp.uint8)


@dataclasses.dataclass(frozen=True)
class Classes(Observation):
    """Integers of few values, encoded as one-hot vectors; predictions are logits.

    Attributes:
      number: of values.
    """

    number: int = 0

    @property
    def predicted_shape(self) -> tuple[int, ...]:
        return (*self.shape, self.number)

    def encoded(self, x: Array) -> Float[Array, "*s F"]:
        return jax.nn.one_hot(x, self.number).reshape(*self._lead(x), -1)

    def _error(self, predicted: Array, target: Array) -> Array:
        log_p = jax.nn.log_softmax(predicted)
        index = target[..., None].astype(jnp.int32)
        return -jnp.take_along_axis(log_p, index, axis=-1)[..., 0]

    def decoded(self, predicted: Array) -> Array:
        return jnp.argmax(predicted, axis=-1).astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Embedded(Observation):
    """Integers of many values, encoded and predicted as fixed embeddings.

    Attributes:
      number: of values.
    """

    number: int = 0

    @property
    def table(self) -> Float[np.ndarray, "N E"]:
        """The embeddings."""
        size = (self.number, self.predicted_shape[-1])
        return np.random.default_rng(0).normal(size=size).astype(np.float32)

    @property
    def predicted_shape(self) -> tuple[int, ...]:
        return (*self.shape, _EMBEDDING if len(self.shape) == 1 else _CELL_EMBEDDING)

    def encoded(self, x: Array) -> Float[Array, "*s F"]:
        return jnp.asarray(self.table)[x].reshape(*self._lead(x), -1)

    def _error(self, predicted: Array, target: Array) -> Array:
        return jnp.square(predicted - jnp.asarray(self.table)[target])

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
    return Observation(*given, is_symlog=config.symlogs_vectors)


def _num_values(spec: specs.Array) -> int:
    """Return the number of values of integers from 0 to a bound; otherwise 0."""
    if not isinstance(spec, specs.BoundedArray) or not np.issubdtype(spec.dtype, np.integer):
        return 0
    return 0 if np.min(spec.minimum) < 0 else int(np.max(spec.maximum)) + 1
