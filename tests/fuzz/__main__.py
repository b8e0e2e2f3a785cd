"""Damages what commands read, and looks at what they make of it.

    python -m tests.fuzz                                    # a minute
    python -m tests.fuzz --seconds=600 --seed=3 --only=rule,checkpoints
    python -m tests.fuzz --case=rule:17                     # one again, with its traceback

Rule files, run files, files that flags name, and checkpoints are truncated, their bits are flipped,
pipes, devices and links stand in their place, and their sizes, headers and values are made hostile
(`tests.fuzz.damage`). So are values of flags (`tests.fuzz.names`). Another process reads them. What
it comes to is right if it is what was written (of checkpoints, what an older one holds), or one
sentence that names the file; values of flags must be refused. A traceback, more than 1 GiB of
memory beyond what was there, 20 seconds, or a changed file is a failure: the exit status is then 1,
and each failure is printed with its case.
The same seed makes the same cases.
"""

import hashlib
import pathlib
import random
import shutil
import sys
import tempfile
import time

from absl import app, flags

from tests.fuzz.reading import Reader
from tests.fuzz.targets import TARGETS, WRITTEN

MOST_BYTES = 1 << 30
MOST_SECONDS = 20.0
_LONGEST = 2_000  # Characters of a sentence.

_SECONDS = flags.DEFINE_float("seconds", 60.0, "To go on for.", lower_bound=0.0)
_SEED = flags.DEFINE_integer("seed", 0, "Of all cases.")
_ONLY = flags.DEFINE_list("only", list(TARGETS), "Targets, by name.")
_CASE = flags.DEFINE_string("case", "", "TARGET:NUMBER, the only case to run.")


def run_case(
    reader: Reader, name: str, number: int, seed: int, folder: pathlib.Path, good: str
) -> tuple[str, str]:
    """Damages a copy of what was written and has it read.

    Returns:
      What was done to it, and what is wrong with what that came to; empty if nothing is.
    """
    copy = folder / "case"
    shutil.copytree(folder / name / WRITTEN, copy)
    try:
        rng = random.Random(f"{seed} {name} {number}")
        done, may_differ = TARGETS[name].damage(rng, copy)
        before = _hashes(copy)
        kind, what, memory = reader.ask("read", name, copy, MOST_SECONDS)
        if kind == "value":
            wrong = "" if what == good or may_differ else f"another value: {what[:300]}"
        elif kind == "refused":
            wrong = _wrong_sentence(what, copy if TARGETS[name].names_files else None)
        else:
            wrong = f"{kind}: {what}"
        if not wrong and memory > MOST_BYTES:
            wrong = f"{memory / 2**30:.1f} GiB of memory"
        if not wrong and TARGETS[name].keeps_files and _hashes(copy) != before:
            wrong = "files were changed"
        return done, wrong
    finally:
        shutil.rmtree(copy)


def _wrong_sentence(message: str, folder: pathlib.Path | None) -> str:
    if folder is not None and str(folder) not in message:
        return f"no file is named: {message[:500]}"
    if "\n" in message or "\x1b" in message or len(message) > _LONGEST:
        return f"no sentence: {message[:500]!r} ({len(message)} characters)"
    return ""


def _hashes(folder: pathlib.Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if _is_plain(path) else ""
        for path in sorted(folder.rglob("*"))
    }


def _is_plain(path: pathlib.Path) -> bool:
    return path.is_file() and path.stat().st_size < MOST_BYTES


def main(argv: list[str]) -> None:
    """The command."""
    names = _ONLY.value
    unknown = [*argv[1:], *(name for name in names if name not in TARGETS)]
    only, _, number = _CASE.value.partition(":")
    if only and (only not in TARGETS or not number.isdigit()):
        unknown.append(f"--case={_CASE.value}")
    if unknown:
        raise app.UsageError(f"Unknown {unknown}; expected some of {', '.join(TARGETS)}.")
    names = [only] if only else names
    reader, failures, counts = Reader(), [], dict.fromkeys(names, 0)
    with tempfile.TemporaryDirectory(prefix="disco-fuzz-") as temporary:
        folder = pathlib.Path(temporary).resolve()
        good = {}
        for name in names:
            original = folder / name / WRITTEN
            original.mkdir(parents=True)
            failure = reader.ask("write", name, original, 300.0)
            if failure is not None:
                sys.exit(f"{name} cannot be written: {failure}")
            answer = reader.ask("read", name, original, 300.0)
            if answer[0] != "value":
                sys.exit(f"{name} cannot be read: {answer}")
            good[name] = answer[1]
        end = time.monotonic() + _SECONDS.value
        case, shown = 0, time.monotonic()
        while time.monotonic() < end and not (only and case):
            for name in names:
                which = int(number) if only else case
                done, wrong = run_case(reader, name, which, _SEED.value, folder, good[name])
                counts[name] += 1
                if wrong or only:
                    print(f"{name}:{which}: {done}: {wrong or 'as it should be'}", flush=True)
                if wrong:
                    failures.append(f"{name}:{which}")
            case += 1
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                print(f"{sum(counts.values())} cases, {len(failures)} failures", flush=True)
    reader.close()
    total = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{total}; {len(failures)} failures with --seed={_SEED.value}.")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    app.run(main)
