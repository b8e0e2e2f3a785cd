"""The rule of a discovery run, as a rule file with a card."""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import disco
from disco_common import files
from disco_common.checkpoints import CheckpointError, CheckpointReader
from disco_common.configuration import from_json
from disco_common.files import write_atomically
from disco_common.json_lines import loads, read_object
from evaluation.report import probe_scores
from evaluation.report.manifest import read_manifest
from evaluation.report.merging import merge
from evaluation.report.rule_card import rule_card
from evaluation.rules import fingerprint
from evaluation.studies import ablations
from launch.support import workdirs
from launch.support.rule_provenance import rule_provenance
from launch.support.settings import DiscoverSettings
from launch.support.setup import TASKS, kept_rule, make_rule

# Fields of `meta.state.DiscoveryState`, and so paths in checkpoints.
_AVERAGE, _TASK_META_STEPS = "average", "task_meta_steps"
_OLD_TASK_META_STEPS = "lived"  # Its name in checkpoints of older versions.


def export(
    workdir: str, output: str, meta_step: int | None = None, evaluations: Sequence[str] = ()
) -> dict[str, Any]:
    """Write an average rule of a run; return its provenance.

    Args:
      workdir: of the run.
      output: rule file to write.
      meta_step: of a probe or a checkpoint, or 0; by default of the best probe, or of the newest
        good checkpoint if there is no probe.
      evaluations: workdirs of evaluations of that rule, for its card.

    Raises:
      ValueError: if the workdir is not that of a discovery run, or has no checkpoint; if a probe is
        damaged; if a folder is not that of an evaluation of the rule.
      CheckpointError: if no checkpoint can be read, or there is none of that meta-step.
    """
    folder = pathlib.Path(workdir)
    settings = _settings(folder)
    rule, found = (
        _first(folder, settings, meta_step)
        or _probed(folder, meta_step)
        or _kept(folder, meta_step)
        or _checkpointed(folder, settings, meta_step)
    )
    if evaluations:
        path = pathlib.Path(output)
        merged = merge([read_manifest(pathlib.Path(name)) for name in evaluations])
        text, numbers = rule_card(path.stem, fingerprint(rule), found, merged)
        found["evaluations"] = numbers
        write_atomically(path.with_suffix(".md"), text)
    disco.save(rule, output, found)
    return found


def _first(
    folder: pathlib.Path, settings: DiscoverSettings, meta_step: int | None
) -> tuple[disco.DiscoveredRule, dict[str, Any]] | None:
    """Return the rule that a run started from, and its provenance, of meta-step 0; None of others.

    Raises as `launch.support.setup.make_rule`.
    """
    if meta_step != 0:
        return None
    return make_rule(settings, folder), rule_provenance(settings, 0, [], [])


def _probed(
    folder: pathlib.Path, meta_step: int | None
) -> tuple[disco.DiscoveredRule, dict[str, Any]] | None:
    """Return the rule and provenance of a meta-step's probe, or of the best one; None if none."""
    made = [one for one in probe_scores.read(folder) if meta_step in (None, one.meta_step)]
    chosen = probe_scores.best(made)
    if chosen is None:
        return None
    rule, header = ablations.read(chosen.rule)
    return rule, header["provenance"] | {"probe_score": chosen.score}


def _kept(
    folder: pathlib.Path, meta_step: int | None
) -> tuple[disco.DiscoveredRule, dict[str, Any]] | None:
    """Return the rule and provenance kept with a meta-step's checkpoint; None if there is none."""
    if meta_step is None or not kept_rule(folder, meta_step).exists():
        return None
    rule, header = ablations.read(kept_rule(folder, meta_step))
    return rule, header["provenance"]


def _checkpointed(
    folder: pathlib.Path, settings: DiscoverSettings, meta_step: int | None
) -> tuple[disco.DiscoveredRule, dict[str, Any]]:
    """Return the average rule in a checkpoint, and its provenance; raises as `export`."""
    groups = _tasks(folder)
    step, state = _checkpoint(folder, make_rule(settings, folder), groups, meta_step)
    return state[_AVERAGE], rule_provenance(settings, step, groups, state[_TASK_META_STEPS])


def _checkpoint(
    folder: pathlib.Path,
    rule: disco.DiscoveredRule,
    groups: Sequence[Sequence[str]],
    meta_step: int | None,
) -> tuple[int, dict[str, Any]]:
    """Return a checkpoint's meta-step, and its average rule and meta-steps on each task.

    Args:
      folder: of the run.
      rule: with the structure and shapes of the rule to read.
      groups: names of the tasks of each group.
      meta_step: of the checkpoint; by default the newest good one.

    Raises:
      ValueError: if there is no checkpoint.
      CheckpointError: if none can be read.
    """
    # The checkpoint's other arrays are not described: they depend on the environments.
    counts = [jax.ShapeDtypeStruct((len(names),), jnp.int32) for names in groups]
    with contextlib.closing(CheckpointReader(folder / workdirs.CHECKPOINTS)) as checkpoints:

        def read(name: str) -> tuple[int, dict[str, Any]] | None:
            like = {_AVERAGE: rule, name: counts}
            if meta_step is None:
                return checkpoints.restore(like, part=True)
            return meta_step, checkpoints.load(meta_step, like, part=True)

        try:
            restored = read(_TASK_META_STEPS)
        except CheckpointError as error:
            try:
                restored = read(_OLD_TASK_META_STEPS)
            except CheckpointError:
                raise error from None
            if restored is not None:
                state = restored[1]
                state[_TASK_META_STEPS] = state.pop(_OLD_TASK_META_STEPS)
    if restored is None:
        raise ValueError(f"{str(folder)!r} has no checkpoint yet.")
    return restored


def _settings(folder: pathlib.Path) -> DiscoverSettings:
    """Return the settings of the run in a folder."""
    try:
        return from_json(DiscoverSettings, read_object(folder / workdirs.CONFIG))
    except OSError as error:
        reason = f"{error}."
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        reason = f"{folder / workdirs.CONFIG}: {error}"
    raise ValueError(f"{str(folder)!r} is not the workdir of a discovery run: {reason}")


def _tasks(folder: pathlib.Path) -> list[list[str]]:
    """Return the task names of each group of a run; none if an older version wrote no names."""
    file = folder / TASKS
    try:
        return [
            [str(name) for name in names]
            for names in loads(files.read_text(file, files.MOST_OBJECT))
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {str(error)[:200].rstrip('.')}.") from error
