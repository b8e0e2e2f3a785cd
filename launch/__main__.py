"""The commands, and what they know by name.

python -m launch
python -m launch suites | environments | rules | agents
python -m launch evaluate --rule=... --workdir=...    (as `python -m launch.evaluate`)
"""

import ast
import pathlib
import runpy
import sys

from disco_common.terminal import message
from launch.support import commands

_FOLDER = pathlib.Path(__file__).parent
_KINDS = ("suites", "environments", "rules", "agents")


def main(arguments: list[str] | None = None) -> int:
    """Print the commands, or the names of a kind, or run a command; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and (_FOLDER / f"{arguments[0]}.py").is_file() and arguments[0].isalpha():
        sys.argv = [f"disco {arguments[0]}", *arguments[1:]]
        runpy.run_module(f"launch.{arguments[0]}", run_name="__main__", alter_sys=True)
        return 0
    if arguments == ["--version"]:
        print(f"disco-update-rules {commands.version()}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print("Commands, each with --help (and --helpfull):\n")
        for name, summary in _commands().items():
            print(f"  python -m launch.{name:12} {summary}")
        print(f"\nNames: python -m launch {' | '.join(_KINDS)}")
        return 0
    if arguments[0] not in _KINDS or len(arguments) > 1:
        said = (
            f"There is no {' '.join(arguments)!r}; expected a command, such as 'discover', or one"
            f" of {', '.join(_KINDS)}."
        )
        print(message(said), file=sys.stderr)
        return 2
    print("\n".join(_names(arguments[0])))
    return 0


def _commands() -> dict[str, str]:
    """Return each command with the first line of its documentation."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in _FOLDER.glob("[a-z]*.py")}
    documented = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in texts.items()}
    return {name: documented[name].partition("\n")[0] for name in sorted(documented)}


def _names(kind: str) -> list[str]:
    """Return all names of a kind; of environments with parameters, examples."""
    if kind in ("suites", "environments"):
        from environments import registry

        return [*registry.suites()] if kind == "suites" else [*registry.names()]
    from disco_common import plugins

    if kind == "agents":
        from agents import registry

        return [f"{x:16}{_paper(x)}" for x in plugins.names(registry.PLUGINS)]
    import disco
    from disco import rule_sources
    from evaluation.rules import PLUGINS

    return [*disco.zoo(), *rule_sources.published(), *plugins.names(PLUGINS)]


def _paper(algorithm: str) -> str:
    from agents import registry

    try:
        return registry.find(algorithm).paper
    except ImportError as error:  # Another package's.
        return message(str(error))


if __name__ == "__main__":
    sys.exit(main())
