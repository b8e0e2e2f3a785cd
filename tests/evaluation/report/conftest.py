"""Reports that several modules of tests look at."""

import dataclasses

import pytest

from evaluation.report.html_report import write_report
from evaluation.report.stored import merge
from tests.evaluation.common import DISCOVERY, HOSTILE, TASKS, picture, write_evaluation


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    missing = {("grid57", "catch/8x8", 1), ("actor_critic", "catch/5x5", 0)}
    evaluations = [
        write_evaluation(folder / "whole"),
        write_evaluation(folder / "less", tasks=TASKS[:1], skip=missing, prediction=picture()),
        write_evaluation(folder / "atari", tasks=("atari/Pong", "atari/DoubleDunk")),
    ]
    output = folder / "report"
    files = write_report(output, merge(evaluations), [DISCOVERY], "Ours <&> theirs")
    assert all(path.is_file() for path in files)
    return output


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """A report in which all that others choose is a piece of HTML."""
    folder = tmp_path_factory.mktemp("hostile")
    names = iter(HOSTILE)
    [merged] = merge([write_evaluation(folder / "one", prediction=picture())])
    renamed = {x.name: next(names) for x in merged.contenders if x.kind != "random"}
    renamed["random"] = "random"
    tasks: dict[str, str] = dict(zip(TASKS, HOSTILE[3:5], strict=True))
    merged = dataclasses.replace(
        merged,
        tasks=tuple(tasks.values()),
        contenders=tuple(dataclasses.replace(x, name=renamed[x.name]) for x in merged.contenders),
        contender_curves={
            renamed[name]: dataclasses.replace(x, devices=HOSTILE)
            for name, x in merged.contender_curves.items()
        },
        folders={(renamed[c], tasks[t], s): path for (c, t, s), path in merged.folders.items()},
        sources=tuple(
            dataclasses.replace(
                x, folder=folder / HOSTILE[3].replace("/", "_"), provenance={"machine": HOSTILE[0]}
            )
            for x in merged.sources
        ),
        references={tasks[t]: x for t, x in merged.references.items()},
        missing=((HOSTILE[0], HOSTILE[5], 7),),
        problems=HOSTILE,
    )
    discovery = DISCOVERY._replace(
        name=HOSTILE[0], config={"suite": HOSTILE[0], "seed": HOSTILE[5]}, problems=HOSTILE
    )
    output = folder / "report"
    write_report(output, [merged], [discovery], title=HOSTILE[0])
    return output / "index.html"
