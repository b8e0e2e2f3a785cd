"""The text that `--help` prints: what a command does, examples, and its flags by topic.

Commands take seconds to import, and so `launch.support.start` prints stored texts. After a change
of flags write them again:

    python -m launch.support.help
"""

import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable

from absl import flags

from launch.support.start import TEXTS

_WIDTH = 100
_TOPICS = {
    "Which run": ("workdir", "run", "runs", "meta_step", "output", "title"),
    "What is compared": (
        *("rule", "agent", "size", "baselines", "tuned", "references", "trials", "vary"),
        *("evaluations", "study"),
    ),
    "On which tasks": ("suite", "env_kwargs"),
    "Settings": ("config", "print_config"),
    "Where its numbers are shown": ("tensorboard", "wandb_project"),
    "How it is run": (
        *("dry_run", "executor", "runs_per_job", "ray_address", "ray_cpus_per_job"),
        *("ray_gpus_per_job", "coordinator", "num_processes", "process_id", "coordinator_timeout"),
    ),
}
_REST = "Further flags"
_OWN = ("launch.", "benchmarks.", "ml_collections.")
_IS_COMMAND = re.compile(r"^    commands\.run\(main", re.MULTILINE)
_REPEATED = "; repeat this option to specify a list of values"  # absl adds it.


def text() -> str:
    """Return the help of the command that runs, whose flags are defined."""
    documentation = inspect.cleandoc(sys.modules["__main__"].__doc__ or "")
    found = {flag.name: flag for flag in _own_flags()}
    parts = [documentation]
    for topic, names in [*_TOPICS.items(), (_REST, tuple(found))]:
        lines = [_described(found.pop(name)) for name in names if name in found]
        if lines:
            parts.append("\n".join([f"{topic}:", *lines]))
    parts.append("--version prints the version; --helpfull lists the flags of all libraries.")
    return "\n\n".join(parts) + "\n"


def _own_flags() -> Iterable[flags.Flag]:
    """Return the flags of this project's modules."""
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module == sys.argv[0] or module.startswith(_OWN):
            yield from sorted(defined, key=lambda flag: flag.name)


def _described(flag: flags.Flag) -> str:
    """Return a flag's name, its help and its default value, indented."""
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}=…"
    default = flag.default
    is_shown = default not in (None, "", [], False) and flag.name != "config"
    end = f" Default: {flag.default_as_str}." if is_shown else ""
    words = " ".join((flag.help or "").split()).removesuffix(_REPEATED)
    indent = " " * 6
    described = textwrap.fill(
        words + end,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"  {name}\n{described}"


def main() -> None:
    """Write the stored texts of all commands."""
    TEXTS.mkdir(exist_ok=True)
    for path in sorted(TEXTS.parent.glob("*.py")):
        if _IS_COMMAND.search(path.read_text(encoding="utf-8")):
            (TEXTS / f"{path.stem}.txt").write_text(of(path.stem), encoding="utf-8")
            print(path.stem)


def of(command: str) -> str:
    """Return what a command prints for `--help` if no text is stored."""
    code = (
        f"import runpy; runpy.run_module('launch.{command}', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        cwd=TEXTS.parent.parent,
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, JAX_PLATFORMS="cpu"),
    )
    return done.stdout


if __name__ == "__main__":
    main()
