"""What is damaged, who reads it, and what reading may come to."""

import contextlib
import dataclasses
import hashlib
import io
import json
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.fuzz import damage, names

# JAX is imported by the functions that need it: the process that damages does without.

WRITTEN = "original"


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of file or folder.

    Attributes:
      write: makes a good one in a folder.
      read: what is in the folder, as a JSON value; prints nothing.
      damage: damages something in a folder. Returns what was done, and whether what is read may
        then be something else than what was written, as it is well-formed.
      names_files: whether what is said of damage names the file.
      keeps_files: whether reading changes no file.
    """

    write: Callable[[pathlib.Path], None]
    read: Callable[[pathlib.Path], Any]
    damage: Callable[[random.Random, pathlib.Path], tuple[str, bool]]
    names_files: bool = True
    keeps_files: bool = True


def _digest(arrays: Any) -> str:
    import jax
    import numpy as np

    sha = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(arrays):
        leaf = np.asarray(leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        sha.update(leaf.tobytes())
    return sha.hexdigest()


# Rule files.


def _write_rule(folder: pathlib.Path) -> None:
    import disco
    from tests.disco.common import small_rule

    disco.save(small_rule(), folder / "rule.npz", {"agent": {"learning_rate": 1e-3}, "seed": 7})


def _read_rule(folder: pathlib.Path) -> Any:
    from disco import rule_files

    rule, header = rule_files.read(folder / "rule.npz")
    return [_digest(rule), rule.num_bins, rule.discount, json.dumps(header)]


def _damage_rule(rng: random.Random, folder: pathlib.Path) -> tuple[str, bool]:
    path = folder / "rule.npz"
    if rng.random() < 0.5:
        return rng.choice(damage.ACCIDENTS)(rng, path), False
    meant = (damage.hostile_header, damage.hostile_header, damage.hostile_array)
    if rng.random() < 0.1:  # These take longer.
        meant = (damage.hostile_archive,)
    return rng.choice(meant)(rng, path), True


# Evaluations.


def _write_evaluation(folder: pathlib.Path) -> None:
    from tests.evaluation.common import CONFIG, write_evaluation

    config = dataclasses.replace(CONFIG, baselines=("actor_critic",))
    write_evaluation(folder / "evaluation", config, tasks=("catch/5x5",))


def _read_evaluation(folder: pathlib.Path) -> Any:
    from evaluation.report.stored import merge, read_manifest

    (found,) = merge([read_manifest(folder / "evaluation")])
    if not found.folders:
        raise ValueError("; ".join(found.problems) or f"{folder}: no run is finished")
    assert found.comparisons is not None
    if found.problems:  # Named in a report; what is left is right.
        assert all(str(folder) in problem for problem in found.problems), found.problems
        return [*found.problems]
    return [
        _digest({name: dataclasses.asdict(x) for name, x in found.contender_curves.items()}),
        [contender.name for contender in found.contenders],
        found.seeds,
        len(found.missing),
    ]


def _damage_evaluation(rng: random.Random, folder: pathlib.Path) -> tuple[str, bool]:
    path = rng.choice(sorted(folder.rglob("*.json")))
    if rng.random() < 0.5:
        # The manifest has no checksum: what it says is taken for what was meant.
        return f"{path.name} {rng.choice(damage.ACCIDENTS)(rng, path)}", True
    return f"{path.name} {damage.hostile_json(rng, path, 'crc32')}", True


# Discoveries.


def _write_discovery(folder: pathlib.Path) -> None:
    from evaluation.report.discoveries import PANELS
    from launch.configs import grid57_laptop

    run = folder / "discovery"
    run.mkdir()
    settings = dataclasses.asdict(grid57_laptop.get_config())
    (run / "config.json").write_text(json.dumps(settings))
    agents = {"task": ["catch/5x5"], "validation_reward": [0.5], "steps_since_reset": [100]}
    (run / "metrics.jsonl").write_text(
        "".join(
            json.dumps(
                dict.fromkeys(PANELS, 0.1 * step)
                | {"meta_step": step, "episode_return": None, "agents": agents}
            )
            + "\n"
            for step in range(1, 6)
        )
    )


def _read_discovery(folder: pathlib.Path) -> Any:
    from disco_common.configuration import from_json
    from disco_common.json_lines import read_object
    from evaluation.report.discoveries import read_discovery
    from launch.support.discovery_config import DiscoveryRunConfig

    run = folder / "discovery"
    try:
        settings = from_json(DiscoveryRunConfig, read_object(run / "config.json"))
    except ValueError as error:
        raise ValueError(f"{run}: {error}") from error
    found = read_discovery(run)
    return [json.dumps(dataclasses.asdict(settings)), list(found.problems), str(found.metrics)]


def _damage_discovery(rng: random.Random, folder: pathlib.Path) -> tuple[str, bool]:
    path = rng.choice(sorted((folder / "discovery").iterdir()))
    if rng.random() < 0.5:  # Neither file has a checksum.
        return f"{path.name} {rng.choice(damage.ACCIDENTS)(rng, path)}", True
    hostile = damage.hostile_lines if path.suffix == ".jsonl" else damage.hostile_json
    return f"{path.name} {hostile(rng, path)}", True


# Checkpoints.


def _state(step: int) -> Any:
    import numpy as np

    rng = np.random.default_rng(step)
    return {
        "rule": {"w": rng.normal(size=(7, 5)).astype(np.float32), "step": np.int32(step)},
        "agents": rng.normal(size=(3, 4)).astype(np.float32),
    }


def _write_checkpoints(folder: pathlib.Path) -> None:
    from disco_common.checkpoints import Checkpoints

    checkpoints = Checkpoints(folder / "checkpoints")
    for step in (1, 2):
        checkpoints.save(step, _state(step))
        checkpoints.wait()
    checkpoints.close()


def _read_checkpoints(folder: pathlib.Path) -> Any:
    from disco_common.checkpoints import Checkpoints

    with contextlib.closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        restored = checkpoints.restore(_state(0))
    if restored is None:
        return None
    step, state = restored
    # The newest good one; that it is what was written under this step.
    return "good" if _digest(state) == _digest(_state(step)) else f"step {step} is another"


def _damage_checkpoints(rng: random.Random, folder: pathlib.Path) -> tuple[str, bool]:
    steps = sorted((folder / "checkpoints").iterdir())
    if rng.random() < 0.1:
        return damage.renamed_step(rng, rng.choice(steps)), False
    if rng.random() < 0.1:
        gone = rng.choice(steps)
        shutil.rmtree(gone)
        return f"{gone.name} is gone", False
    path = rng.choice(sorted(x for x in rng.choice(steps).rglob("*") if x.is_file()))
    name = path.relative_to(folder / "checkpoints")
    if rng.random() < 0.5:
        try:
            return f"{name} {damage.hostile_json(rng, path)}", False
        except (ValueError, TypeError):  # No JSON.
            pass
    return f"{name} {rng.choice(damage.ACCIDENTS)(rng, path)}", False


# Files that flags name, and others of a workdir.


def _write_files(folder: pathlib.Path) -> None:
    import numpy as np

    from evaluation import tuned_settings
    from evaluation.scoring import references
    from tests.environments.suites.test_sokoban import FIRST
    from training import records

    shutil.copy(tuned_settings.SHIPPED_FILE, folder / "tuned.json")
    shutil.copy(references.SHIPPED, folder / "references.json")
    (folder / "levels.txt").write_text(FIRST)
    (folder / "config.py").write_text("from launch.configs.grid57_laptop import get_config\n")
    (folder / "config.json").write_text("{}")
    known = {"command": "launch.discover", "arguments": ["--config.seed=3"]}
    (folder / "arguments.json").write_text(json.dumps(known))
    records.save_agent(folder, {"w": np.arange(6.0)})


def _read_files(folder: pathlib.Path) -> Any:
    import numpy as np

    from evaluation import tuned_settings
    from evaluation.scoring import references
    from launch.support import commands
    from launch.support.command_flags import parse_config
    from tests.environments.suites import boxoban
    from training import records

    arguments = []
    with (
        mock.patch("sys.argv", ["-m", f"--workdir={folder}"]),
        contextlib.redirect_stderr(io.StringIO()) as said,
        contextlib.suppress(SystemExit),
    ):
        arguments = commands._known_arguments("launch.discover")
    if said.getvalue() and not arguments:
        raise ValueError(said.getvalue().strip())
    return [
        arguments,
        str(tuned_settings.read(folder / "tuned.json")),
        str(references.read(folder / "references.json")),
        _digest(boxoban.read(folder / "levels.txt")),
        str(parse_config([f"--config={folder / 'config.py'}"])),
        _digest(records.load_agent(folder, {"w": np.zeros(6)})),
    ]


def _damage_files(rng: random.Random, folder: pathlib.Path) -> tuple[str, bool]:
    # Without config.json no arguments are read.
    path = rng.choice(sorted(x for x in folder.iterdir() if x.name != "config.json"))
    if rng.random() < 0.5:
        return f"{path.name} {damage.misplaced(rng, path)}", False
    if path.suffix == ".json" and rng.random() < 0.5:
        return f"{path.name} {damage.hostile_json(rng, path)}", True
    return f"{path.name} {rng.choice(damage.ACCIDENTS)(rng, path)}", True


# Values of flags.


def _write_names(folder: pathlib.Path) -> None:
    (folder / "flag.json").write_text(json.dumps(["--suite", "catch/5x5"]))


def _read_names(folder: pathlib.Path) -> Any:
    flag, value = json.loads((folder / "flag.json").read_text())
    return ["accepted", flag, value, names.read(flag, value, folder)]


def _damage_names(rng: random.Random, folder: pathlib.Path) -> tuple[str, bool]:
    flag, value = names.hostile(rng)
    (folder / "flag.json").write_text(json.dumps([flag, value]))
    return f"{flag}={repr(value)[:100]}", False


TARGETS = {
    "rule": Target(_write_rule, _read_rule, _damage_rule),
    "evaluation": Target(_write_evaluation, _read_evaluation, _damage_evaluation),
    "discovery": Target(_write_discovery, _read_discovery, _damage_discovery),
    "files": Target(_write_files, _read_files, _damage_files),
    "names": Target(_write_names, _read_names, _damage_names, names_files=False),
    "checkpoints": Target(
        _write_checkpoints, _read_checkpoints, _damage_checkpoints, keeps_files=False
    ),
}
