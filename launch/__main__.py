"""The commands, and what they know by name.

python -m launch
python -m launch suites | environments | rules | agents | baselines
"""

import ast
import pathlib
import sys

_FOLDER = pathlib.Path(__file__).parent
_KINDS = ("suites", "environments", "rules", "agents", "baselines")


def main(arguments: list[str]) -> int:
    """Print the commands, or the names of a kind; return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(f"Commands, each with --help (and --helpfull):\n\n{_commands()}\n")
        print(f"Names: python -m launch {' | '.join(_KINDS)}")
        return 0
    if arguments[0] not in _KINDS or len(arguments) > 1:
        print(
            f"There is no {' '.join(arguments)!r}; expected a command, as in `python -m"
            f" launch.discover`, or one of {', '.join(_KINDS)}.",
            file=sys.stderr,
        )
        return 2
    print("\n".join(_names(arguments[0])))
    return 0


def _commands() -> str:
    """Return each command with the first sentence of its documentation."""
    lines = []
    for path in sorted(_FOLDER.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if (
            path.stem.startswith("_")
            or path.stem == "child"
            or 'if __name__ == "__main__":' not in text
        ):
            continue
        summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        lines.append(f"  python -m launch.{path.stem:12} {summary}")
    return "\n".join(lines)


def _names(kind: str) -> list[str]:
    """Return all names of a kind; of environments with parameters, examples."""
    if kind in ("suites", "environments"):
        from environments import registry

        return [*registry.suites()] if kind == "suites" else [*registry.names()]
    from disco_common import plugins

    if kind == "agents":
        from agents.registry import PLUGINS

        return plugins.names(PLUGINS)
    if kind == "baselines":
        from evaluation.config import BASELINES

        return list(BASELINES)
    import disco
    from evaluation.contenders import PLUGINS

    return [*disco.zoo(), *plugins.names(PLUGINS)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
