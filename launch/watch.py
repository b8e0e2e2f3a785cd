"""Film the agent of a finished run.

    python -m launch.watch --run=runs/pong/runs/ppo/atari_Pong/seed_0 --output=agent.gif

`--run` is the folder of a run of `launch.evaluate`; without `--output` the film is its `film.gif`,
which reports play. The film, a GIF, has a picture for each step: what the environment draws, or the
agent's observation.

    python -m launch.watch --run=… --output=imagination.gif --imagine=15

films what a model of the world imagines beside what happens, and their difference; every 15 steps
the model reads what happened.
"""

import os
import pathlib
import sys

from absl import flags

from launch.support import commands
from launch.support.command_flags import define_imports, define_output_file, define_path


def main() -> None:
    """Run the command."""
    from disco_common.terminal import message
    from evaluation import films
    from evaluation.loading import load_agent

    values = flags.FLAGS
    output = pathlib.Path(values.output or pathlib.Path(values.run, "film.gif"))
    if not pathlib.Path(values.run).is_dir():
        raise ValueError(f"--run={values.run} is not a folder; expected that of a finished run.")
    films.check(output)
    # Of environments that draw with SDL: no sound card is needed.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("MUJOCO_GL", "egl")
    agent = load_agent(values.run, imports=values.imports not in ("", "false"))
    doing = f"{agent.name} on {agent.task.name}: {values.episodes} episodes …"
    print(message(doing), flush=True)
    arguments = agent, values.episodes, values.seed, values.steps
    if values.imagine is None:
        found = films.frames(*arguments)
    else:
        found = films.imagination(*arguments, values.imagine)
    number = films.write(output, found, values.fps)
    print(message(f"Written: {output}, {number} pictures."))


def _define_flags() -> None:
    define_path("run", "Folder of a finished run.")
    define_output_file(
        "output",
        "Film: a file .gif (default: film.gif in the run's folder; reports play it).",
        required=False,
    )
    define_imports()
    flags.DEFINE_integer("episodes", 1, "Number of episodes.", lower_bound=1)
    flags.DEFINE_integer("steps", 1000, "Steps of an episode at most.", lower_bound=1)
    flags.DEFINE_integer(
        "imagine",
        None,
        "Of agents with a model of the world, which observe pictures (dreamer, iris): film what the"
        " model imagines, from the actions taken, beside what happens. It reads what happened every"
        " so many steps, and imagines those between.",
        lower_bound=3,
    )
    flags.DEFINE_integer("seed", 0, "Of the environment and of the agent.", lower_bound=0)
    flags.DEFINE_float("fps", 15.0, "Pictures a second.", lower_bound=0.1)


if __name__ == "__main__":
    commands.run(main, _define_flags)
