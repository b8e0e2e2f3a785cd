"""`docs/extending.md`, run as it stands in a package that was never installed; and the site."""

import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
from statistics import fmean

import pytest

from tests.launch.common import outcomes_of

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [*(ROOT / "docs" / "guide").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The page's package: its module, and what `pip install` would make of its entry points."""
    folder = tmp_path_factory.mktemp("package")
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "python", "toml", "sh"]
    lamps, dqn, toml, commands = (text for _, text in blocks)
    (folder / "my_lamps.py").write_text(lamps)
    (folder / "my_dqn.py").write_text(dqn)
    project = tomllib.loads(toml)["project"]
    about = folder / "my_lamps-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder, commands


def _run(arguments, package, folder):
    paths = (str(package), str(ROOT))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_a_package_of_ones_own_takes_part_in_all(package, tmp_path):
    module, commands = package
    for line in commands.strip().splitlines():
        command = line.replace("=runs/", f"={tmp_path}/runs/").split()[2:]  # python -m
        [(status, output)] = outcomes_of({"": command}, 600.0, [str(module)]).values()
        assert status == 0, output
    report = tmp_path / "runs" / "lamps" / "report"
    with (report / "scores.csv").open() as file:
        runs = [row for row in csv.DictReader(file) if row["scale"] == "return"]
    scores: dict[tuple[str, str], list[float]] = {}
    for row in runs:
        scores.setdefault((row["task"], row["contender"]), []).append(float(row["score"]))
    for task in ("lamps/4", "lamps/6"):
        mine, counting, random = (
            fmean(scores[task, name]) for name in ("short_traces", "counting", "random")
        )
        assert mine > random + 0.2
        assert counting > 4.0  # Of 5.
        assert fmean(scores[task, "dqn"]) > random + 1.0
    for run in (
        "lamps/runs/dqn/lamps_4/seed_0",
        "catch/runs/dqn_learning_rate=0.003/bsuite_catch%2F0/seed_0",
    ):
        files = {path.name for path in (tmp_path / "runs" / run).iterdir()}
        assert {"result.json", "episodes.jsonl", "metrics.jsonl", "agent.npz"} <= files
    page = (report / "index.html").read_text()
    assert "short_traces" in page
    assert "num_environments 8" in page
    tuned = json.loads((tmp_path / "runs/tuning/tuned.json").read_text())["contenders"]["dqn"]
    assert [set(x["settings"]) for x in tuned["trials"]] == [
        set(),
        {"learning_rate", "target_period"},
    ]
    found = json.loads((tmp_path / "runs/tuned/results.json").read_text())["contenders"]
    assert found["dqn"]["settings"]["discount"] == 0.9
    assert found["dqn_tuned"]["source"]["tuned"] == tuned["settings"]
    listed = _run(["-m", "launch", "agents"], module, tmp_path).stdout
    assert re.search(r"^dqn +Mnih et al. 2015", listed, re.MULTILINE)


@pytest.mark.slow
def test_a_module_of_ones_own_needs_no_package(tmp_path):
    page = (ROOT / "docs" / "extending.md").read_text()
    for name, text in zip(
        ("my_lamps", "my_dqn"), re.findall(r"```python\n(.*?)```", page, re.DOTALL), strict=True
    ):
        (tmp_path / f"{name}.py").write_text(text)
    names = re.search(r"`(--suite=my_lamps:make/4 .*?)`", page)
    assert names
    small = ["--config.budget=1024", "--config.seeds=1", "--config.num_points=4", "--baselines="]
    done = _run(
        ["-m", "launch.evaluate", *names[1].split(), *small, "--workdir=run"], ROOT, tmp_path
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run/runs/my_dqn:ALGORITHM_learning_rate=0.003/my_lamps:make_4/seed_0"
    watch = ("launch.watch", f"--run={run}", f"--output={tmp_path / 'film.gif'}")
    other = f"--workdir={tmp_path / 'other'}"
    cases = {
        "named in a file": watch,
        "allowed": (*watch, "--imports"),
        "unknown": ("launch.evaluate", "--rule=", "--suite=my_lamps:no_such", other),
    }
    found = outcomes_of(cases, path=[str(tmp_path)])
    assert [status for status, _ in found.values()] == [2, 0, 2], found
    named = "A file names 'my_dqn:ALGORITHM', for which a module would be imported"
    assert named in found["named in a file"][1]
    assert (tmp_path / "film.gif").is_file()
    assert "'my_lamps:no_such' cannot be imported: AttributeError" in found["unknown"][1]


def test_an_agent_is_refused_where_it_cannot_act(package, tmp_path):
    command = ("launch.evaluate", "--agent=counting", "--suite=catch/5x5")
    cases = {"": (*command, f"--workdir={tmp_path}/runs")}
    [(status, output)] = outcomes_of(cases, path=[str(package[0])]).values()
    assert status == 2
    assert "Counting is for lamps, not for catch/5x5." in output


def test_names_of_other_packages_are_among_those_that_are_known(package, tmp_path):
    cases = {"": ("launch.evaluate", "--suite=lamp", f"--workdir={tmp_path}/runs")}
    [(status, output)] = outcomes_of(cases, path=[str(package[0])]).values()
    assert status == 2
    assert "lamps" in output


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    sphinx += ["--nitpicky", "-d", str(tmp_path / "doctrees"), str(ROOT / "docs")]
    for builder in ("html", "doctest"):
        done = subprocess.run(
            [*sphinx, "-b", builder, str(tmp_path / builder)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "html" / "guide" / "rule_as_loss.html").read_text()
    assert re.search(r"first fifth \d+, last fifth \d+", page)  # The notebook's output.
    results = (tmp_path / "html" / "guide" / "results.html").read_text()
    assert "_images/" in page.split('id="the-result"')[1]  # Its plot.
    assert "_images/" in results.split('id="beside-other-algorithms"')[1].split("<section")[0]
    assert "_images/" in results.split('id="task-by-task"')[1].split("<section")[0]
    assert (tmp_path / "html" / "source" / "agents" / "protocol.py.html").is_file()
    tried = (tmp_path / "doctest" / "output.txt").read_text()
    assert re.search(r"[1-9]\d* passed and 0 failed", tried)


def _commands(page):
    """Return the commands of a page's blocks, as the command's name and the flags' names."""
    fenced = re.findall(r"^```(\S*)[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    for block in (text for kind, text in fenced if kind in ("", "sh")):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.search(r"python -m (launch\.\w+)(.*)", line.split(" #")[0])
            if found:
                yield found[1], re.findall(r"--(\w+)", found[2])


@pytest.mark.slow
def test_commands_of_pages_have_the_flags_that_pages_give_them():
    flags = {}
    for page in PAGES:
        for command, names in _commands(page):
            flags.setdefault(command, set()).update(names)
    assert {"launch.discover", "launch.evaluate", "launch.watch"} <= flags.keys()
    helps = outcomes_of({command: (command, "--helpfull") for command in flags})
    for command, names in flags.items():
        known = set(re.findall(r"--(?:\[no\])?(\w+)", helps[command][1]))
        assert names <= known, f"{command}: {names - known}"
