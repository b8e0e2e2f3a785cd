"""Exports the rule of a discovery run, averaged over its last meta-steps, as a rule file.

    python -m launch.export --workdir=runs/first --output=first.npz
    python -m launch.export --workdir=runs/first --output=first.npz --evaluations=runs/first_heldout

With evaluations of that rule (workdirs of `launch.evaluate`), a card is written beside the file,
`first.md`: what it was discovered on, how it compares with the other contenders, and where it
fails. The file's header has the same figures.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

import disco
from agents.checkpoints import Checkpoints
from disco.atomic import write_atomically
from evaluation import archive
from evaluation.cards import card
from evaluation.contenders import fingerprint
from launch import commands
from launch.configuration import from_json
from launch.provenance import code_version
from launch.settings import DiscoverSettings
from launch.setup import make_discovery
from meta.run import restore


def export(
    workdir: str, output: str, meta_step: int | None = None, evaluations: Sequence[str] = ()
) -> dict[str, Any]:
    """Writes the average rule of a checkpoint; returns its provenance.

    Args:
      workdir: of the run.
      output: rule file to write.
      meta_step: of the checkpoint; by default the newest good one.
      evaluations: workdirs of evaluations of that rule, for its card.

    Raises:
      ValueError: if the workdir is not of a discovery run, or has no checkpoint; if a folder is not
        of an evaluation of that rule.
      CheckpointError: if no checkpoint can be read, or there is none of that meta-step.
    """
    folder = pathlib.Path(workdir)
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{workdir!r} is not the workdir of a discovery run: {error}.") from error
    settings = from_json(DiscoverSettings, config)
    # On as many devices as there are here.
    discovery = make_discovery(dataclasses.replace(settings, devices_per_agent=1))
    checkpoints = Checkpoints(folder / "checkpoints", keep=settings.checkpoints_kept)
    try:
        if meta_step is None:
            restored = restore(discovery, checkpoints)
        else:
            like, agents = discovery.abstract_state, discovery.agents_stacked
            restored = meta_step, checkpoints.load(meta_step, like, agents)
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
    if evaluations:
        path = pathlib.Path(output)
        found = archive.gather(
            [archive.read_manifest(pathlib.Path(name), from_json) for name in evaluations]
        )
        text, figures = card(path.stem, fingerprint(state.average), provenance, found)
        provenance["evaluations"] = figures
        write_atomically(path.with_suffix(".md"), text)
    disco.save(state.average, output, provenance)
    return provenance


def main() -> None:
    """The command."""
    output = flags.FLAGS.output
    evaluations = [name.strip() for name in flags.FLAGS.evaluations if name.strip()]
    provenance = export(flags.FLAGS.workdir, output, flags.FLAGS.meta_step, evaluations)
    print(f"Wrote {output}: the average rule after {provenance['meta_steps']} meta-steps.")
    if evaluations:
        print(f"Wrote {pathlib.Path(output).with_suffix('.md')}, its card.")


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder of the discovery run.", required=True)
    flags.DEFINE_string("output", None, "Rule file to write (.npz).", required=True)
    flags.DEFINE_integer(
        "meta_step", None, "Of the checkpoint; by default the newest good one.", lower_bound=0
    )
    flags.DEFINE_list("evaluations", [], "Workdirs of evaluations of that rule, for its card.")
    commands.run(main)
