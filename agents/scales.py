"""What follows from the scale of inputs and rewards alone is the agent's business, not its rule's.

**Steps of layers.** A step of Adam changes each weight by up to the learning rate, and so a unit
w·x by up to the learning rate times Σ|x_j|: an encoding with a hundred ones moves it fifty times as
far as one with two. So the step of a layer of weights is multiplied by `REFERENCE / E Σ|x_j|`,
which makes the change of a unit the same for every encoding and width; a convolution's sum is over
one window. For the layer that reads observations the sum is measured, as a moving mean over
batches. Hidden units are of the order of 1, and their sum is taken as proportional to their number;
so a step falls with the width, as in the maximal update parametrisation (Yang et al. 2022,
arXiv 2203.03466, table 8: Adam).

**Rewards.** They are divided by the root mean square of the discounted sums of rewards within
unrolls, of those that are not 0: how large rewards are that arrive, not how often. Otherwise the
first reward of a sparse task would be divided by nearly 0.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
from dm_env import specs
from jaxtyping import Array, Float

import disco
from agents.encoders import numbers
from environments import ObservationSpec

REFERENCE = 32.0  # Σ|x_j| of `grid57`, and the width of the small networks.
_DECAY = 0.99  # Of the moving means.
_FIRST = "torso/mlp/~/linear_0"  # Reads observations where no other layer does.
_OF_IMAGES = ("residual_net/patch", "residual_net/section_0_in")


@chex.dataclass(frozen=True)
class Scales:
    """The scales of an agent's inputs and rewards, by moving sums that all decay alike.

    Attributes:
      weight: of the batches so far.
      inputs: |x_j|, the mean over a batch.
      squares: of discounted sums of rewards, those that are not 0.
      arrived: number of these.
    """

    weight: Float[Array, ""]
    inputs: Float[Array, ""]
    squares: Float[Array, ""]
    arrived: Float[Array, ""]

    @classmethod
    def zeros(cls) -> "Scales":
        """Return the sums before the first batch."""
        return cls(**{name: jnp.zeros(()) for name in ("weight", "inputs", "squares", "arrived")})

    def after(
        self, trajectory: disco.Trajectory, inputs: Float[Array, ""], discount: float
    ) -> "Scales":
        """Return the sums after a batch, `[T+1, B, ...]`, and the mean of |x_j| over it."""
        sums = discounted_sums(trajectory, discount)
        arrived = sums != 0.0
        new = Scales(
            weight=jnp.ones(()),
            inputs=inputs,
            squares=jnp.sum(sums**2),
            arrived=jnp.sum(arrived.astype(sums.dtype)),
        )
        return jax.tree.map(lambda old, x: _DECAY * old + jax.lax.stop_gradient(x), self, new)

    @property
    def of_rewards(self) -> Float[Array, ""]:
        """What rewards are divided by; 1 before the first one."""
        mean = self.squares / jnp.maximum(self.arrived, 1e-6)
        return jnp.where(self.arrived > 0.0, jnp.sqrt(mean), 1.0)

    @property
    def of_inputs(self) -> Float[Array, ""]:
        """The mean of |x_j|."""
        return self.inputs / jnp.maximum(self.weight, 1e-6)


def discounted_sums(trajectory: disco.Trajectory, discount: float) -> Float[Array, "T B"]:
    """Return the discounted sums of rewards up to each step of the unroll, within an episode."""

    def add(total, row):
        reward, goes_on = row
        total = total + reward
        return discount * goes_on * total, total

    reward = jnp.where(trajectory.mask, trajectory.reward, 0.0)  # Others may be anything.
    rows = reward, 1.0 - trajectory.last.astype(reward.dtype)
    return jax.lax.scan(add, jnp.zeros_like(reward[0]), rows)[1]


def mean_input(spec: ObservationSpec, stacked: Any) -> Float[Array, ""]:
    """Return the mean of |x_j| over observations, leaves `[*s, S, ...]` (`history.stack`)."""

    def one(leaf: specs.Array, x: Array) -> tuple[Array, int]:
        read = jnp.abs(numbers(leaf, x, jnp.result_type(float)))
        return jnp.mean(jnp.sum(read, axis=-1)), read.shape[-1]

    sums, sizes = zip(*map(one, jax.tree.leaves(spec), jax.tree.leaves(stacked)), strict=True)
    return sum(sums, jnp.zeros(())) / sum(sizes)


def factors(params: Mapping[str, Mapping[str, Any]], of_inputs: Float[Array, ""]) -> Any:
    """Return the factor of the step of each array of parameters, by module and name."""
    reading = _reading_observations(params)

    def factor(module: str, name: str, x: Any) -> Array:
        if name != "w" or x.ndim not in (2, 4):
            return jnp.ones(())
        fan_in = math.prod(x.shape[:-1])
        if module in reading:
            return REFERENCE / jnp.maximum(fan_in * of_inputs, 1e-3)
        return jnp.asarray(min(1.0, REFERENCE / fan_in))

    return {
        module: {name: factor(module, name, x) for name, x in arrays.items()}
        for module, arrays in params.items()
    }


def _reading_observations(modules: Iterable[str]) -> set[str]:
    """Return the modules that read observations: the MLP's first layer, or those for images."""
    others = [x for x in modules if x.startswith("torso/") and not x.startswith("torso/mlp/")]
    of_images = [[x for x in others if x.endswith(end)] for end in _OF_IMAGES]
    return set(of_images[0] or of_images[1]) if others else {_FIRST}
