"""What an agent does, without learning; and a strip of pictures of it.

A strip shows an episode of the agent at its run's end, where its observations are pictures: images,
boards, and grids of planes. It is a PNG file, whose text `caption` says what it is of.
"""

import dataclasses
import functools
import io
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import matplotlib
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree, UInt8
from PIL import Image, PngImagePlugin

import disco
import environments
from agents.agent import Agent
from agents.frames import History
from agents.host_acting import HostActor, make_act

CAPTION = "caption"

_STEPS = 200  # At most, of an episode.
_LEAST_SIDE = 4
_HEIGHT, _GAP = 64, 2  # Pixels of a strip; smaller frames are enlarged.
_BACKGROUND, _BETWEEN = 24, 128
# Of planes. The second is grey: those are the walls of our grid-worlds.
_COLOURS = tuple(matplotlib.colormaps["tab10"].colors[i] for i in (0, 7, 2, 3, 1, 4, 6, 8, 9, 5))  # pyright: ignore


def play(
    agent: Agent,
    params: disco.Params,
    task: environments.Environment,
    num_steps: int,
    num_environments: int,
    seed: int,
) -> disco.Trajectory:
    """What an agent does: NumPy arrays `[num_steps + 1, num_environments, ...]`.

    Raises:
      SimulatorError: if a simulator failed.
    """
    key = jax.random.key(seed)
    if task.is_host:
        assert isinstance(task.dynamics, environments.HostEnvironment)
        act = _make_act(agent.network)
        actor = HostActor(task.dynamics, agent.network, act, task.task, num_environments, seed)
        try:
            return actor.collect(params, key, num_steps).trajectory
        finally:
            actor.close()
    return jax.device_get(_rollout(agent, num_steps, num_environments, params, task.task, key))


_make_act = functools.lru_cache(maxsize=8)(make_act)


# Runs seldom, so that it pays to compile it fast rather than well.
@functools.partial(
    jax.jit,
    static_argnums=(0, 1, 2),
    compiler_options={"xla_backend_optimization_level": 0},
)
def _rollout(
    agent: Agent,
    num_steps: int,
    num_environments: int,
    params: disco.Params,
    task: PyTree,
    key: PRNGKeyArray,
) -> disco.Trajectory:
    start_key, act_key = jax.random.split(key)
    start = agent.start(task, start_key, num_environments)
    return agent.act(params, task, start, act_key, num_steps)[1]


def one_environment(trajectory: disco.Trajectory, number: int) -> disco.Trajectory:
    """The part of one environment, still with an axis B."""
    which = slice(number, number + 1)
    return dataclasses.replace(
        jax.tree.map(lambda x: x[:, which], dataclasses.replace(trajectory, core_state=None)),
        core_state=jax.tree.map(lambda x: x[which], trajectory.core_state),
    )


def frames(agent: Agent, trajectory: disco.Trajectory) -> Any:
    """The environment's observations `[T+1, B, ...]`, also where the agent sees histories."""
    observation: Any = trajectory.observation
    if isinstance(observation, History):
        return jax.tree.map(lambda x: x[agent.network.seen.rows_before :], observation.frames)
    return observation


def is_picture(spec: environments.ObservationSpec) -> bool:
    """Whether observations can be looked at: images, boards, grids of planes."""
    shape = getattr(spec, "shape", ())
    return len(shape) in (2, 3) and sorted(shape)[-2] >= _LEAST_SIDE and min(shape[:2]) > 1


def as_image(observation: np.ndarray) -> UInt8[np.ndarray, "H W 3"]:
    """Grey, colours, or a colour for each plane, the later ones above.

    Args:
      observation: `[H, W]` or `[H, W, C]`; bytes, or numbers, of which the largest is bright where
        it is more than 1.
    """
    x = observation[..., None] if observation.ndim == 2 else observation
    if x.dtype != np.uint8:
        x = np.nan_to_num(x.astype(np.float64))
        x = 255.0 * np.clip(x / max(1.0, x.max(initial=0.0)), 0.0, 1.0)
    if x.shape[-1] in (1, 3):
        return np.broadcast_to(x, (*x.shape[:2], 3)).astype(np.uint8)
    image = np.full((*x.shape[:2], 3), float(_BACKGROUND))
    for plane, colour in zip(np.moveaxis(x, -1, 0), itertools.cycle(_COLOURS), strict=False):
        weight = plane[..., None] / 255.0
        image = (1.0 - weight) * image + weight * 255.0 * np.array(colour)
    return image.astype(np.uint8)


def strip(
    agent: Agent,
    params: disco.Params,
    task: environments.Environment,
    seed: int,
    num_frames: int,
) -> bytes:
    """Pictures of an episode that the agent plays, or of its beginning, side by side.

    Args:
      agent: that plays.
      params: of its network.
      task: that it plays; its observations are pictures.
      seed: of the episode.
      num_frames: at most, evenly spaced.

    Returns:
      A PNG file.

    Raises:
      SimulatorError: if a simulator failed.
    """
    trajectory = play(agent, params, task, _STEPS, 1, seed)
    ends = np.flatnonzero(trajectory.last[:, 0])
    num_steps = int(ends[0]) + 1 if len(ends) else _STEPS
    shown = np.unique(np.linspace(0, num_steps, num_frames).round().astype(int))
    whole = "an episode" if len(ends) else "the beginning of an episode"
    reward = float(np.sum(trajectory.reward[:num_steps, 0]))
    caption = f"{whole}: {num_steps} steps, reward {reward:.4g}"
    seen = frames(agent, trajectory)
    return _side_by_side([as_image(seen[i, 0]) for i in shown], caption)


def _side_by_side(images: Sequence[UInt8[np.ndarray, "H W 3"]], caption: str) -> bytes:
    scale = -(-_HEIGHT // images[0].shape[0])
    large = [image.repeat(scale, axis=0).repeat(scale, axis=1) for image in images]
    gap = np.full((large[0].shape[0], _GAP, 3), _BETWEEN, np.uint8)
    row = [part for image in large for part in (gap, image)][1:]
    text, buffer = PngImagePlugin.PngInfo(), io.BytesIO()
    text.add_text(CAPTION, caption)
    Image.fromarray(np.concatenate(row, axis=1)).save(buffer, "PNG", optimize=True, pnginfo=text)
    return buffer.getvalue()


def read_caption(picture: bytes) -> str:
    """What a strip is of.

    Raises:
      OSError: if it is not a picture, or too large a one.
    """
    try:
        with Image.open(io.BytesIO(picture), formats=["PNG"]) as image:
            image.verify()
            return str(image.info.get(CAPTION, ""))
    except (SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(f"it is not a picture ({error})") from error
