"""Other environments as colour images: `pixels/<name>`, for agents that learn from images.

The observation is uint8 `[64, 64, 3]`. A board `[H, W]` or vector is drawn in grey, a grid of
planes `[H, W, C]` with a colour for each plane; later planes cover earlier ones. Numbers are drawn
between the bounds of the observation's spec, from dark to bright. Everything else is the other
environment's.
"""

import dataclasses
import math

import dm_env
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from environments.base import Environment, JaxEnvironment, State, TaskParams, episode_results
from environments.errors import EnvironmentNameError

SIDE = 64

# Of planes, in the order of a categorical palette whose neighbours differ most.
_COLOURS = np.array(
    [
        (31, 119, 180),
        (127, 127, 127),
        (44, 160, 44),
        (214, 39, 40),
        (255, 127, 14),
        (148, 103, 189),
        (227, 119, 194),
        (188, 189, 34),
        (23, 190, 207),
        (140, 86, 75),
    ],
    np.float32,
)
_BACKGROUND = 24.0


@dataclasses.dataclass(frozen=True)
class Pixels:
    """The dynamics of another environment, observed as images.

    Attributes:
      inner: the other environment's dynamics.
      side: of the images, in pixels.
    """

    inner: JaxEnvironment
    side: int = SIDE

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((self.side, self.side, 3), np.uint8, 0, 255, name="image")

    def action_spec(self) -> specs.DiscreteArray:
        return self.inner.action_spec()

    def reset(self, task: TaskParams, key: PRNGKeyArray) -> tuple[State, dm_env.TimeStep]:
        state, timestep = self.inner.reset(task, key)
        return state, self._drawn(timestep)

    def step(
        self, task: TaskParams, state: State, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[State, dm_env.TimeStep]:
        state, timestep = self.inner.step(task, state, action, key)
        return state, self._drawn(timestep)

    def results(self, task: TaskParams, state: State) -> dict[str, Float[Array, ""]]:
        return episode_results(self.inner, task, state)

    def _drawn(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        spec = self.inner.observation_spec()
        assert isinstance(spec, specs.Array)
        low, high = _bounds(spec)
        x = timestep.observation.astype(jnp.float32)
        return timestep._replace(observation=draw((x - low) / (high - low), self.side))


def draw(observation: Float[Array, "*shape"], side: int = SIDE) -> UInt8[Array, "side side 3"]:
    """Return an image of a vector, a board or a grid of planes; entries are drawn from 0 to 1."""
    x = jnp.clip(observation, 0.0, 1.0)
    if x.ndim < 3:
        x = jnp.atleast_2d(x)[:, :, None]
    if x.shape[-1] in (1, 3):
        image = jnp.broadcast_to(255.0 * x, (*x.shape[:2], 3))
    else:
        image = jnp.full((*x.shape[:2], 3), _BACKGROUND)
        for i in range(x.shape[-1]):
            weight = x[:, :, i : i + 1]
            image = (1.0 - weight) * image + weight * _COLOURS[i % len(_COLOURS)]
    rows, columns = (np.arange(side) * length // side for length in image.shape[:2])
    return jnp.round(image).astype(jnp.uint8)[rows][:, columns]


def _bounds(spec: specs.Array) -> tuple[float, float]:
    """Return the numbers that are drawn darkest and brightest: the spec's bounds, or 0 and 1."""
    bounds = [np.min(getattr(spec, "minimum", 0.0)), np.max(getattr(spec, "maximum", 1.0))]
    low, high = (float(x) for x in bounds)
    return (low, high) if math.isfinite(high - low) and low < high else (0.0, 1.0)


def make(name: str) -> Environment:
    """Make `pixels/<name>`, for example `pixels/catch/8x8`.

    Raises:
      EnvironmentNameError: if there is no such environment, or it cannot be drawn: it is simulated
        outside JAX, or its observation is no array of at most three axes and `SIDE` rows.
    """
    import environments  # The registry imports this module.

    drawn = name.partition("/")[2]
    if drawn.partition("/")[0] == "pixels":
        raise EnvironmentNameError(f"{name!r} is drawn twice; expected 'pixels/' once.")
    inner = environments.make(drawn)
    dynamics = inner.dynamics
    if not isinstance(dynamics, JaxEnvironment):
        raise EnvironmentNameError(
            f"{name!r} is simulated outside JAX; expected a JAX environment."
        )
    spec = dynamics.observation_spec()
    shape = getattr(spec, "shape", ())
    if not 1 <= len(shape) <= 3 or max(shape[:2]) > SIDE:
        raise EnvironmentNameError(
            f"{name!r} has observations of shape {shape or None}; expected a vector, a board, or a"
            f" grid of planes, with sides of at most {SIDE}."
        )
    return dataclasses.replace(inner, name=name, dynamics=Pixels(dynamics))
