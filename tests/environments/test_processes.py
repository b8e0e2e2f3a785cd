"""Simulators in this thread, and in worker processes that may die."""

import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import psutil
import pytest

from environments import (
    EngineDiedError,
    SimulatorError,
    processes,
    workers,
)
from environments.processes import ProcessSimulators, SerialSimulators
from tests.agents.common import HostCorridor, HostCorridors
from tests.environments.streams import FIRST, LAST, MID, assert_same, record

DIE, FAIL, HANG, LOSE_ENGINE = 2, 3, 4, 5
CORRIDORS = HostCorridors()
RESULTS = ("reached", "seen")


class Mortal(HostCorridor):
    """A corridor with actions that are the end of its process, and others that pay."""

    def step(self, action):
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == FAIL:
            raise RuntimeError("The corridor has collapsed.")
        if action == HANG:
            time.sleep(600.0)
        if action == LOSE_ENGINE:
            raise EngineDiedError("The corridor's engine is gone.")
        timestep = super().step(action)
        self._seen = timestep.observation[1]
        return timestep._replace(reward=timestep.reward + 10.0 * action)

    def episode_results(self):
        return super().episode_results() | {"seen": self._seen}


def staggered(seed: int) -> Mortal:
    """Episodes of three steps for even seeds, of four for odd ones."""
    return Mortal(3 + seed % 2, terminates=True, seed=seed)


class Global(HostCorridor):
    """A corridor that draws from Python's and NumPy's global generators wherever it can."""

    def __init__(self, seed: int):
        self._made = random.random() + np.random.uniform()  # noqa: NPY002
        super().__init__(3 + random.randrange(3), terminates=True, seed=seed)

    def _observe(self):
        drawn = self._made + random.gauss(0.0, 1.0) + np.random.normal()  # noqa: NPY002
        return np.array([self._at, drawn], np.float32)


def unmakeable(seed: int):
    raise OSError(f"There is no corridor {seed}.")


def serial(make, batch_size: int) -> SerialSimulators:
    return SerialSimulators(make, CORRIDORS, batch_size, 0, RESULTS)


def in_processes(make, batch_size: int, workers: int) -> ProcessSimulators:
    return ProcessSimulators(make, CORRIDORS, batch_size, 0, RESULTS, workers)


def children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


@pytest.mark.parametrize("terminates", [True, False])
def test_streams_follow_the_convention(terminates):
    actions = np.array([[0, 1], [1, 0], [0, 0], [FAIL, DIE], [1, 1]])  # Ignored after LAST.
    stream = record(serial(partial(Mortal, 3, terminates), 2), actions)
    for index, rewards in enumerate(([0, 1, 12, 3, 0, 11], [0, 11, 2, 3, 0, 11])):
        assert stream.timestep.step_type[:, index].tolist() == [FIRST, MID, MID, LAST, FIRST, MID]
        assert stream.timestep.reward[:, index].tolist() == rewards
        end = 0 if terminates else 1
        assert stream.timestep.discount[:, index].tolist() == [1, 1, 1, end, 1, 1]
        assert stream.timestep.observation[:, index, 0].tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("workers", [1, 2])
def test_streams_depend_on_the_seeds_only_and_not_on_who_steps(workers):
    actions = np.random.default_rng(0).integers(2, size=(20, 3))
    alone, before = record(serial(staggered, 3), actions), children()
    simulators = in_processes(staggered, 3, workers)
    assert simulators.restarts == 0
    assert len(children() - before) == workers
    assert_same(record(simulators, actions), alone)
    assert children() == before
    assert len(np.unique(alone.timestep.observation[..., 1])) == 21 * 3
    last = alone.is_(LAST)
    assert last.sum() == 5 + 4 + 5
    np.testing.assert_array_equal(
        np.stack([alone.results["reached"][last], alone.results["seen"][last]], axis=-1),
        alone.timestep.observation[last],
    )


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_global_generators_give_depends_on_the_seeds_only_and_not_on_who_steps(workers):
    actions = np.zeros((20, 3), int)
    alone = record(SerialSimulators(Global, CORRIDORS, 3, 0, ("reached",)), actions)
    again = ProcessSimulators(Global, CORRIDORS, 3, 0, ("reached",), workers)
    assert_same(record(again, actions), alone)
    assert len(np.unique(alone.timestep.observation[..., 1])) == 21 * 3


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_state_of_pythons_generator_is_all_of_it(monkeypatch, in_memory):
    if not in_memory:  # As in an interpreter that keeps its numbers elsewhere.
        monkeypatch.setattr(workers, "_NUMBERS", None)
    before = random.getstate()
    random.gauss(0.0, 1.0)  # Which keeps the second number of a pair.
    state, expected = workers._python_state(), random.getstate()
    random.seed(7)
    workers._set_python_state(state)
    assert random.getstate() == expected
    random.setstate(before)


def test_the_generators_of_this_process_go_on_as_if_no_simulator_had_drawn():
    np.random.seed(5)  # noqa: NPY002
    before, expected = random.getstate(), np.random.RandomState(5).uniform()
    with workers.generators_kept():  # Checks of types draw, too, outside of it.
        workers.Isolated(Global, 0).reset()
    assert random.getstate() == before
    assert np.random.uniform() == expected  # noqa: NPY002


def test_a_worker_that_dies_is_replaced():
    before = children()
    simulators = in_processes(staggered, 4, 2)  # Simulators 0 and 1, 2 and 3.
    undisturbed = serial(staggered, 4)

    def step(*action):
        # Of the second, only the worker is looked at which does not die.
        calm = undisturbed.step(np.where(np.array(action) < DIE, action, 0))
        timestep = simulators.step(np.array(action))
        numbers = np.stack([timestep.step_type, timestep.reward, timestep.discount], axis=-1)
        return timestep.observation, calm.observation, numbers.tolist()

    try:
        started = children() - before
        undisturbed.reset()
        simulators.reset()
        numbers = []
        for _ in range(3):
            _, _, numbers = step(0, 0, 0, 0)
        assert numbers == [[LAST, 3, 0], [MID, 3, 1]] * 2

        # Simulator 2 has its new episode already when 3 kills them both.
        seen, calm, numbers = step(0, 0, 0, DIE)
        assert numbers == [[FIRST, 0, 1], [LAST, 4, 0], [FIRST, 0, 1], [LAST, 0, 1]]
        assert simulators.restarts == 1
        np.testing.assert_array_equal(seen[:2], calm[:2])
        assert seen[2, 1] != calm[2, 1]  # With a new seed.

        seen, calm, numbers = step(0, 0, 0, 0)
        assert numbers == [[MID, 1, 1], [FIRST, 0, 1], [MID, 1, 1], [FIRST, 0, 1]]
        np.testing.assert_array_equal(seen[:2], calm[:2])
        assert simulators.restarts == 1

        # The other worker, between two steps.
        (other,) = started & children()
        os.kill(other, signal.SIGKILL)
        seen, _, numbers = step(0, 0, 0, 0)
        assert numbers == [[LAST, 0, 1], [LAST, 0, 1], [MID, 2, 1], [MID, 1, 1]]
        assert simulators.restarts == 2
        for _ in range(4):
            _, _, numbers = step(0, 0, 0, 0)
        assert numbers == [[MID, 3, 1], [LAST, 3, 0], [MID, 1, 1], [MID, 1, 1]]
        assert simulators.results["reached"][1] == 3.0
    finally:
        simulators.close()
    assert children() == before


def test_a_worker_that_dies_repeatedly_without_progress_is_an_error(monkeypatch):
    """However it dies; the other worker's deaths and steps do not count."""
    before = children()
    simulators = in_processes(staggered, 2, 2)
    try:
        simulators.reset()
        simulators.step(np.array([DIE, 0]))
        for restarts, end in ((2, DIE), (3, LOSE_ENGINE)):
            while simulators.step(np.array([0, 0])).step_type[1] == LAST:
                pass
            assert simulators.step(np.array([0, end])).step_type[1] == LAST
            assert simulators.restarts == restarts
        simulators.step(np.array([0, 0]))
        again = (
            r"1 to 1 of 2 did not answer within 5 seconds again, .* replaced 2 times, .* 1000 st"
        )
        monkeypatch.setattr(simulators, "_patience", 5.0)  # Of workers that run, not that start.
        with pytest.raises(SimulatorError, match=again):
            simulators.step(np.array([0, HANG]))
    finally:
        simulators.close()
    assert children() == before


def test_a_worker_may_die_any_number_of_times_with_progress_in_between(monkeypatch):
    monkeypatch.setattr(workers, "STEPS_OF_PROGRESS", 5)
    simulators = in_processes(staggered, 1, 1)
    observed = []
    try:
        timestep = simulators.reset()
        for death in range(6):
            for _ in range(6):
                timestep = simulators.step(np.array([0]))
            while timestep.step_type[0] == LAST:  # Where an action has no effect.
                timestep = simulators.step(np.array([0]))
            observed.append(timestep.observation[0, 1])
            assert simulators.step(np.array([DIE])).step_type[0] == LAST
            assert simulators.restarts == death + 1
    finally:
        simulators.close()
    assert len(set(observed)) == 6  # Each time with a new seed.


def stillborn(folder: pathlib.Path, number: int, seed: int) -> Mortal:
    """A corridor whose process dies at the start, at all but the first of `number` starts."""
    (folder / f"{seed}").touch()
    if 1 < len(list(folder.iterdir())) <= number:
        os.kill(os.getpid(), signal.SIGKILL)
    return staggered(seed)


@pytest.mark.parametrize(("number", "is_replaced"), [(2, True), (3, False)])
def test_deaths_at_a_new_start_count(tmp_path, number, is_replaced):
    simulators = in_processes(partial(stillborn, tmp_path, number), 1, 1)
    try:
        simulators.reset()
        if is_replaced:
            assert simulators.step(np.array([DIE])).step_type.tolist() == [LAST]
            assert simulators.restarts == 2
            assert simulators.step(np.array([0])).step_type.tolist() == [FIRST]
        else:
            with pytest.raises(SimulatorError, match="had been replaced 2 times"):
                simulators.step(np.array([DIE]))
    finally:
        simulators.close()


def test_a_simulator_whose_engine_dies_is_replaced():
    simulators = in_processes(staggered, 2, 1)
    try:
        simulators.reset()
        simulators.step(np.array([0, 0]))
        timestep = simulators.step(np.array([0, LOSE_ENGINE]))
        assert timestep.step_type.tolist() == [LAST, LAST]
        assert timestep.discount.tolist() == [1, 1]
        assert simulators.results["reached"].tolist() == [0, 0]
        assert simulators.restarts == 1
        assert simulators.step(np.array([0, 0])).step_type.tolist() == [FIRST, FIRST]
    finally:
        simulators.close()


def test_simulators_may_be_closed_while_another_thread_steps_them():
    before = children()
    simulators = in_processes(staggered, 1, 1)
    simulators.reset()
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(simulators.step, np.array([HANG]))
        time.sleep(0.5)
        simulators.close()
        with pytest.raises(SimulatorError, match="closed during a step"):
            step.result()
    assert simulators.restarts == 0
    assert children() == before


def test_a_script_without_a_main_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tests.environments.test_processes import in_processes, staggered\n"
        "in_processes(staggered, 1, 1)\n"
    )
    outcome = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert "SimulatorError: A worker process" in outcome.stderr
    assert "__name__ ==" in outcome.stderr.splitlines()[-1]


def test_a_simulator_that_fails_is_an_error_with_its_traceback():
    simulators = in_processes(staggered, 2, 1)
    try:
        timestep = simulators.reset()
        cause = "RuntimeError: The corridor has"
        failure = rf"(?s)in its worker process: {cause}.*test_processes\.py.*{cause}"
        with pytest.raises(SimulatorError, match=failure):
            simulators.step(np.array([0, FAIL]))
        assert simulators.restarts == 0
    finally:
        simulators.close()
    del simulators
    # What was returned can be read after the end.
    assert (timestep.step_type[1], timestep.observation[1, 0]) == (FIRST, 0.0)


def test_a_simulator_in_this_process_that_fails_is_an_error_with_its_traceback():
    simulators = serial(staggered, 2)
    simulators.reset()
    cause = "RuntimeError: The corridor has"
    failure = rf"failed: {cause}[^\n]*\n(?s:.*)test_processes\.py(?s:.*){cause}"
    with pytest.raises(SimulatorError, match=failure):
        simulators.step(np.array([0, FAIL]))


def test_a_simulator_that_cannot_be_made_is_an_error_at_the_start():
    before = children()
    with pytest.raises(SimulatorError, match=r"(?s)unmakeable.*OSError: There is no corridor 0"):
        in_processes(unmakeable, 2, 1)
    assert children() == before


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def slow(seed: int) -> Mortal:
    time.sleep(600.0)
    return staggered(seed)


@pytest.mark.parametrize(
    "moment",
    [
        "starting",
        "stepping",
        *(pytest.param(x, marks=pytest.mark.thorough) for x in ("making", "waiting")),
    ],
)
def test_workers_end_with_the_process_that_uses_them(moment):
    """Within two seconds, with the process that forks them, whatever they do."""
    make = "slow" if moment == "making" else "staggered"
    code = f"""
import threading, time
import numpy as np
from tests.environments.test_processes import HANG, in_processes, slow, staggered
if {moment in ("starting", "making")}:
    threading.Thread(target=in_processes, args=({make}, 2, 1), daemon=True).start()
else:
    simulators = in_processes(staggered, 2, 1)
    simulators.reset()
if {moment == "stepping"}:
    threading.Thread(target=simulators.step, args=(np.array([HANG, 0]),), daemon=True).start()
print("started", flush=True)
time.sleep(600.0)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    main, family = psutil.Process(process.pid), list[psutil.Process]()
    while len(family) < (2 if moment == "starting" else 3):  # The tracker, the server, the worker.
        time.sleep(0.05)
        family = main.children(recursive=True)
    time.sleep(0.5)  # The server, of `starting`, imports.
    process.kill()
    process.wait()
    process.stdout.close()
    ended = time.monotonic()
    while any(map(lives, family)):
        time.sleep(0.05)
        # Of which three are for a busy machine. A server that starts imports for seconds first.
        assert time.monotonic() - ended < 5.0


def test_simulators_that_step_for_long_are_closed_together(monkeypatch):
    simulators = in_processes(staggered, 3, 3)
    simulators.reset()
    monkeypatch.setattr(processes, "_SECONDS_TO_CLOSE", 1.0)
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(simulators.step, np.full(3, HANG))
        time.sleep(0.5)
        began = time.monotonic()
        simulators.close()
        assert time.monotonic() - began < 2.5
        with pytest.raises(SimulatorError, match="closed during a step"):
            step.result()


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers):
    with pytest.raises(ValueError, match=f"num_processes is {workers}; expected at least 1"):
        in_processes(staggered, 2, workers)


def test_workers_find_this_package_where_the_working_folder_has_one_of_its_name(tmp_path):
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "__init__.py").write_text("raise SystemExit('Not this one.')\n")
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "from tests.environments.test_processes import in_processes, staggered\n"
        "if __name__ == '__main__':\n"
        "    simulators = in_processes(staggered, 1, 1)\n"
        "    print(simulators.reset().step_type)\n"
        "    simulators.close()\n"
    )
    outcome = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert outcome.stdout == "[0]\n", outcome.stderr


def test_a_long_folder_for_temporary_files_is_no_obstacle(tmp_path):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    code = """
from tests.environments.test_processes import in_processes, staggered
if __name__ == "__main__":
    simulators = in_processes(staggered, 1, 1)
    print(simulators.reset().step_type)
    simulators.close()
"""
    environment = os.environ | {"TMPDIR": str(folder)}
    command = [sys.executable, "-c", code]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.stdout == "[0]\n", outcome.stderr
