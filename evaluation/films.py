"""Films of agents: the pictures of their episodes, as GIF."""

import io
import itertools
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

import environments
from agents import pictures
from agents.protocol import ImaginingAgent
from disco_common.files import write_atomically
from environments.processes import SerialSimulators
from evaluation import playing
from evaluation.loading import LoadedAgent

_BAR, _BARS_HEIGHT, _MOST_BARS = 12, 100, 40
_HEIGHT, _CAPTION = 320, 16  # Pixels. Smaller pictures are enlarged by whole numbers.
_LAST_FRAMES = 8  # An episode's last picture is shown as often.


def frames(
    agent: LoadedAgent, episodes: int, seed: int, most_steps: int
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """Yield the pictures of episodes, one for each step, with the step and the reward so far.

    A picture is what the environment draws (`environments.Filmed`), otherwise the first of its
    observations that is an image or a board (`agents.pictures`), or else bars of its numbers.

    Actions and environment follow from the seed. What comes after `most_steps` of an episode is
    left out.

    Raises:
      SimulatorError: if a simulator failed.
    """
    simulators, draw = _start(agent.task, seed)
    memory = agent.initial_memory(1, seed)
    try:
        for episode in range(1, episodes + 1):
            timestep, reward, step = simulators.reset(), 0.0, 0
            picture = _captioned(draw(timestep), f"episode {episode}, step 0")
            yield picture
            while not timestep.last()[0] and step < most_steps:
                memory, action = agent.act(memory, timestep)
                timestep = simulators.step(action)
                reward, step = reward + float(timestep.reward[0]), step + 1
                caption = f"episode {episode}, step {step}, reward {reward:.4g}"
                picture = _captioned(draw(timestep), caption)
                yield picture
            for _ in range(_LAST_FRAMES - 1):
                yield picture
    finally:
        simulators.close()


def imagination(
    agent: LoadedAgent, episodes: int, seed: int, most_steps: int, interval: int
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """Yield pictures of episodes: what happened, what a world model imagined, their difference.

    The agent plays. Every `interval` steps its model of the world reads what happened; until the
    next time it imagines what follows from the actions that the agent took.

    The seed is that of the first episode's environment, actions and imagination; later episodes
    have the following ones. What comes after `most_steps` of an episode is left out.

    Raises:
      ValueError: if the agent has no model of the world, or observes no picture.
      SimulatorError: if a simulator failed.
    """
    imagining, spec = agent.agent, agent.task.dynamics.observation_spec()
    if not isinstance(imagining, ImaginingAgent):
        raise ValueError(
            f"{agent.name} has no model of the world that imagines observations; expected a run of"
            " an agent that has, as dreamer and iris."
        )
    if pictures.image_index(spec) is None:
        raise ValueError(
            f"{agent.name} on {agent.task.name} imagines no pictures, as it observes none; its"
            f" observations are {spec}."
        )
    for episode in range(1, episodes + 1):
        own_seed = seed + episode - 1
        played = playing.play(imagining, agent.learner, agent.task, most_steps, 1, own_seed)
        found = imagining.imagine(agent.learner, played, jax.random.key(own_seed), interval)
        ends = np.flatnonzero(played.last[:, 0])
        length = int(ends[0]) + 1 if len(ends) else most_steps
        returns = np.concatenate([[0.0], np.cumsum(played.reward[:length, 0])])
        for step in (*range(length), *[length] * _LAST_FRAMES):
            known = "seen" if found.steps[step] == 0 else f"imagined for {found.steps[step]} steps"
            yield _captioned(
                _side_by_side(found.observed[step], found.predicted[step]),
                "what happened, what the model imagined, their difference: episode"
                f" {episode}, step {step}, reward {returns[step]:.4g}, {known}",
            )


def _side_by_side(observed: np.ndarray, predicted: np.ndarray) -> UInt8[np.ndarray, "H W 3"]:
    brightest = float(max(observed.max(), predicted.max()))
    left, middle, right = pictures.compared(observed, predicted, brightest)
    gap = np.full((len(left), 1, 3), pictures.BETWEEN, np.uint8)
    return np.concatenate([left, gap, middle, gap, right], axis=1)


def write(
    path: pathlib.Path, pictures_: Iterator[UInt8[np.ndarray, "height width 3"]], fps: float
) -> int:
    """Write a film, a GIF; return the number of its pictures, which are of one size.

    Pictures a second are at most 50, and rounded to hundredths of a second each.

    Raises:
      ValueError: if the path does not end in `.gif`.
      OSError: if the file cannot be written.
    """
    check(path)
    number = itertools.count()
    images = (Image.fromarray(picture) for picture, _ in zip(pictures_, number, strict=False))
    # In hundredths of a second, the file's unit. Viewers slow faster films down.
    duration = 10 * max(2, round(100.0 / fps))
    film, options = io.BytesIO(), {"save_all": True, "duration": duration, "loop": 0}
    next(images).save(film, "GIF", append_images=images, **options)
    write_atomically(path, film.getvalue())
    return next(number)


def check(path: pathlib.Path) -> None:
    """Raise an error of `write` if a film cannot be written there, before there is one."""
    if path.suffix.lower() != ".gif":
        raise ValueError(f"The film {str(path)!r} ends in {path.suffix!r}; expected .gif.")
    path.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryDirectory(dir=path.parent).cleanup()


def _start(task: environments.Environment, seed: int):
    """Return a simulator, and a function from its time step to a picture."""
    dynamics = task.dynamics
    if isinstance(dynamics, environments.Filmed):
        filmed, made = dynamics.filmed, list[Any]()

        def make(own_seed: int) -> Any:
            made.append(filmed(task.params, own_seed))
            return made[0]

        # They make it, so that what it draws from global generators follows from the seed, too.
        simulators = SerialSimulators(make, dynamics, 1, seed)
        if made[0] is not None:
            return simulators, lambda _: made[0].render()
    index = pictures.image_index(dynamics.observation_spec())

    def draw(timestep) -> np.ndarray:
        leaves = [np.asarray(x)[0] for x in jax.tree.leaves(timestep.observation)]
        if index is None:
            return _bars(np.concatenate([x.ravel().astype(np.float64) for x in leaves]))
        return pictures.as_image(leaves[index])

    return environments.start(task, 1, seed, workers=1), draw


def _bars(numbers: np.ndarray) -> np.ndarray:
    """Draw numbers as bars up and down from the middle, on a signed logarithmic scale."""
    finite = np.nan_to_num(numbers[:_MOST_BARS])
    heights = np.sign(finite) * np.log1p(np.abs(finite)) / np.log(101.0)  # 1 at 100.
    middle = _BARS_HEIGHT // 2
    image = np.full((_BARS_HEIGHT, _BAR * len(finite), 3), 24, np.uint8)
    for i, height in enumerate(np.clip(heights, -1.0, 1.0)):
        low, high = sorted((middle, middle - round(height * middle)))
        image[low : high + 1, i * _BAR + 1 : (i + 1) * _BAR - 1] = (31, 119, 180)
    return image


def _captioned(picture: np.ndarray, caption: str) -> np.ndarray:
    """Enlarge a picture, and write a line below it."""
    scale = max(1, _HEIGHT // picture.shape[0])
    large = picture.repeat(scale, axis=0).repeat(scale, axis=1)
    image = Image.new("RGB", (max(large.shape[1], _HEIGHT), large.shape[0] + _CAPTION))
    image.paste(Image.fromarray(large), ((image.width - large.shape[1]) // 2, 0))
    ImageDraw.Draw(image).text((4, large.shape[0] + 2), caption, fill=(230, 230, 230))
    return np.asarray(image)
