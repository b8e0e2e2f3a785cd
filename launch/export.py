"""Exports the rule of a discovery run as a rule file.

    python -m launch.export --workdir=runs/first --output=first.npz
"""

import json
import pathlib
import subprocess
import sys
from importlib import metadata
from typing import Any

import jax
from absl import app, flags

import disco
from launch.configuration import from_json
from launch.settings import DiscoverSettings
from launch.setup import make_discovery
from meta.checkpoints import CheckpointError, Checkpoints
from meta.run import restore

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the discovery run.", required=True)
_OUTPUT = flags.DEFINE_string("output", None, "Rule file to write (.npz).", required=True)


def export(workdir: str, output: str) -> dict[str, Any]:
    """Writes the rule of the newest good checkpoint; returns its provenance.

    Raises:
      ValueError: if the workdir is not of a discovery run, or has no checkpoint.
      CheckpointError: if no checkpoint can be read.
    """
    folder = pathlib.Path(workdir)
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{workdir!r} is not the workdir of a discovery run: {error}.") from error
    settings = from_json(DiscoverSettings, config)
    discovery = make_discovery(settings)
    checkpoints = Checkpoints(folder / "checkpoints", keep=settings.checkpoints_kept)
    try:
        restored = restore(discovery, checkpoints)
    finally:
        checkpoints.close()
    if restored is None:
        raise ValueError(f"{workdir!r} has no checkpoint yet.")
    step, state = restored
    provenance = {
        "code_version": code_version(),
        "jax_version": jax.__version__,
        "environments": settings.suite,
        "meta_steps": step,
        "environment_steps": step * discovery.steps_per_meta_step * discovery.population_size,
        "seed": settings.seed,
        **{name: config[name] for name in ("agent", "population", "meta", "objective")},
    }
    disco.save(state.rule, output, provenance)
    return provenance


def code_version() -> str:
    """The package's version, and the commit where the code lies in a git checkout."""
    version = metadata.version("disco")
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version}+{commit}"


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments {argv[1:]}.")
    try:
        provenance = export(_WORKDIR.value, _OUTPUT.value)
    except (ValueError, OSError, CheckpointError) as error:
        sys.exit(f"launch.export: {error}")
    print(f"Wrote {_OUTPUT.value}: the rule after {provenance['meta_steps']} meta-steps.")


if __name__ == "__main__":
    app.run(main)
