"""Environments that a module of a user registers: `--imports`, and what is said without it."""

import pathlib

import pytest

from tests.launch.common import TINY, outcomes_of

LAMP = '''
import gymnasium
import numpy as np

class Lamp(gymnasium.Env):
    """Is on or off, as the action was."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.full(1, action, np.float32), float(action), self.left == 0, False, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)

gymnasium.register("Lamp-v0", Lamp)
'''
EVALUATION = (
    "--suite=gymnasium/Lamp-v0",
    "--baselines=",
    "--config.seeds=1",
    "--config.budget=2560",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("imports")
    (folder / "lamps.py").write_text(LAMP)
    (folder / "broken.py").write_text("\n1 / 0\n")
    return folder


@pytest.mark.slow
def test_modules_that_register_environments(folder):
    workdir = folder / "evaluation"
    here, evaluate = f"--workdir={workdir}", "launch.evaluate"
    run = f"--run={workdir}/runs/random/gymnasium_Lamp-v0/seed_0"
    discovery = (f"--workdir={folder / 'discovery'}", TINY, "--config.suite=gymnasium/Lamp-v0")

    def said(**cases: tuple[str, ...]) -> dict[str, tuple[int, str]]:
        return outcomes_of(cases, path=[str(folder)])

    first = said(
        unknown=(evaluate, f"--workdir={folder / 'unknown'}", *EVALUATION),
        broken=(evaluate, here, "--imports=broken", *EVALUATION),
        evaluation=(evaluate, here, "--imports=lamps", *EVALUATION),
        discovery=("launch.discover", "--imports=lamps", *discovery, "--config.meta_steps=1"),
    )
    status, output = first["unknown"]
    assert status == 2
    assert "registers are 'gymnasium/<module>:<id>'" in output
    status, output = first["broken"]
    assert status == 2
    cause = "ZeroDivisionError: division by zero"
    assert f"the module 'broken' cannot be imported: {cause} ({folder}/broken.py, line 2)" in output
    assert "Traceback" not in output
    for name in ("evaluation", "discovery"):
        assert first[name][0] == 0, first[name][1]

    then = said(
        report=("launch.report", f"--runs={workdir}", f"--output={folder / 'report'}"),
        film=("launch.watch", run, "--imports=lamps", f"--output={folder / 'film.gif'}"),
    )
    assert then["report"][0] == 0, then["report"][1]
    assert then["film"][0] == 0, then["film"][1]

    # With the arguments that the workdir knows, as they stand and with leave to import.
    again, trusted = (said(again=(evaluate, here, *x))["again"] for x in ([], ["--imports"]))
    assert again[0] == 2
    assert f"python -m launch.evaluate --workdir={workdir} --imports=lamps" in again[1]
    assert trusted[0] == 0, trusted[1]
    assert "1 of 1 runs are finished." in trusted[1]
