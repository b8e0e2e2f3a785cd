"""Export the rule of a discovery run, averaged over some meta-steps, as a rule file.

    python -m launch.export --workdir=runs/first --output=first.npz
    python -m launch.export --workdir=runs/first --output=first.npz --evaluations=runs/first_heldout

If the run has probes (`launch.support.discovery_rules`), it is the rule with the best one,
otherwise the newest one that the run keeps, with each checkpoint. `--meta_step=0` writes the rule
that the run started from, with the same settings of agents: what discovery has added is by how much
the other rule is better than this one.

The run may still be running, its workdir may be read-only, and its environments need not be
installed: the command reads only the settings and the rules.

With evaluations of that rule (workdirs of `launch.evaluate`), the command also writes a card,
`first.md`: the tasks of the discovery, a comparison with the other contenders, and the tasks on
which the rule fails.
"""

import pathlib

from absl import flags

from launch.support import commands
from launch.support.command_flags import define_output_file, define_path, listed_paths


def main() -> None:
    """Run the command."""
    from disco_common.terminal import printable
    from launch.support.discovery_rules import export

    output = flags.FLAGS.output
    evaluations = listed_paths(flags.FLAGS.evaluations)
    found = export(flags.FLAGS.workdir, output, flags.FLAGS.meta_step, evaluations)
    score = f", whose probe has {found['probe_score']:.2f}" if "probe_score" in found else ""
    average = f"average rule after {found['meta_steps']} meta-steps{score}"
    made = average if found["meta_steps"] else "first rule of the run"
    print(f"Wrote {printable(output)}: the {made}.")
    if evaluations:
        print(f"Wrote {printable(pathlib.Path(output).with_suffix('.md'))}, its card.")


def _define_flags() -> None:
    define_path("workdir", "Folder of the discovery run.")
    define_output_file("output", "Rule file to write (.npz).", suffix=".npz")
    flags.DEFINE_integer(
        "meta_step",
        None,
        "Step of a probe or a checkpoint, also of one that has been deleted; 0: the rule that the"
        " run started from. By default that of the best probe, and without probes the newest good"
        " one.",
        lower_bound=0,
    )
    flags.DEFINE_multi_string(
        "evaluations", [], "Workdirs of evaluations of the rule, for its card; see launch.report."
    )


if __name__ == "__main__":
    commands.run(main, _define_flags)
