"""What a run is made of stays what it is: rules and levels whose files change or go."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil

import pytest

import disco
import environments
from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco_common.checkpoints import CheckpointError, Checkpoints
from environments.suites.sokoban import generator
from evaluation import tuned_settings
from evaluation.config import EvaluationConfig
from evaluation.contenders import make_contenders, rule_contenders
from evaluation.evaluate import Experiment, tasks_of
from evaluation.rules import fingerprint
from evaluation.tuned_settings import (
    SHIPPED,
    Tuned,
    TunedSettings,
)
from launch.support import discovery_rules, evaluations
from launch.support.discoveries import discover
from launch.support.discovery_config import DiscoveryRunConfig, RuleConfig, make_rule
from launch.support.discovery_rules import export
from tests.environments.suites import boxoban
from tests.evaluation.common import BASELINES
from tests.launch.common import evaluate_flags, outcomes
from tests.launch.discover_tiny import get_settings
from tests.launch.tiny_runs import discovery_of
from tests.meta.common import small_rule

REPOSITORY = pathlib.Path(__file__).parents[2]

# Of a discovery: the rule that it starts from.


@pytest.fixture
def start(tmp_path) -> pathlib.Path:
    """A rule file."""
    file = tmp_path / "s.npz"
    disco.save(small_rule(), file)
    return file


def settings_with(start: pathlib.Path) -> DiscoveryRunConfig:
    return dataclasses.replace(get_settings(), meta_steps=1, rule=RuleConfig(start=str(start)))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> pathlib.Path:
    """Those of a discovery from that rule, which made one meta-step."""
    folder = tmp_path_factory.mktemp("made")
    disco.save(small_rule(), folder / "s.npz")
    discovery = discovery_of(settings_with(folder / "s.npz"))
    with contextlib.closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        checkpoints.save(1, discovery.init(), discovery.agents_stacked)
    return folder / "checkpoints"


@pytest.fixture
def finished(start, checkpoints, tmp_path) -> pathlib.Path:
    """The workdir of a discovery that started from a file, and ended."""
    settings, workdir = settings_with(start), tmp_path / "run"
    shutil.copytree(checkpoints, workdir / "checkpoints")
    (workdir / "config.json").write_text(json.dumps(dataclasses.asdict(settings)))
    discover(settings, str(workdir))
    assert (workdir / "start.npz").read_bytes() == start.read_bytes()
    return workdir


def exported(workdir: pathlib.Path) -> disco.DiscoveredRule:
    export(str(workdir), str(workdir.parent / "exported.npz"), meta_step=0)
    return disco.load(workdir.parent / "exported.npz")


def test_rule_to_start_from_is_overwritten(start, finished, caplog):
    disco.save(dataclasses.replace(small_rule(), discount=0.5), start)
    assert fingerprint(exported(finished)) == fingerprint(small_rule())
    caplog.clear()
    discover(settings_with(start), str(finished))
    assert f"{start} is another rule now than the one that the run in {finished} was" in caplog.text
    assert disco.load(finished / "start.npz").discount == small_rule().discount
    start.write_bytes(b"")
    caplog.clear()
    discover(settings_with(start), str(finished))
    assert f"{start} is another rule now" in caplog.text


def test_rule_to_start_from_is_gone(start, finished, caplog):
    start.unlink()
    discover(settings_with(start), str(finished))
    assert fingerprint(exported(finished)) == fingerprint(small_rule())
    assert "another rule" not in caplog.text


def test_rule_file_that_differs_in_its_origin_only_is_the_same_rule(start, finished, caplog):
    disco.save(small_rule(), start, {"seed": 7})
    discover(settings_with(start), str(finished))
    assert "another rule" not in caplog.text


def test_workdir_of_older_code_without_a_copy_falls_back_on_the_path(start, finished):
    (finished / "start.npz").unlink()
    assert fingerprint(exported(finished)) == fingerprint(small_rule())
    start.unlink()
    with pytest.raises(FileNotFoundError, match=r"s\.npz' does not exist"):
        exported(finished)


def test_rule_to_start_from_is_damaged_and_leaves_no_copy(start, tmp_path):
    start.write_bytes(b"no rule")
    with pytest.raises(disco.RuleFileError):
        discover(settings_with(start), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_rule_file_that_is_replaced_while_a_run_starts(start, tmp_path):
    rule = disco.load(start)
    disco.save(dataclasses.replace(rule, discount=0.5), start)
    settings, workdir = settings_with(start), tmp_path / "run"
    workdir.mkdir()
    with pytest.raises(ValueError, match=r"s\.npz' was replaced while the run was starting; try"):
        discovery_rules.keep_start(settings, workdir, rule)
    assert not list(workdir.iterdir())
    discovery_rules.keep_start(settings, workdir, disco.load(start))
    with pytest.raises(ValueError, match="was started with another rule at the same time"):
        discovery_rules.keep_start(settings, workdir, rule)


def test_rule_of_the_zoo_is_copied_too(tmp_path):
    settings = dataclasses.replace(get_settings(), rule=RuleConfig(start="grid57"))
    discovery_rules.keep_start(settings, tmp_path, disco.load("grid57"))
    assert disco.load(tmp_path / "start.npz").sizes == disco.load("grid57").sizes
    assert fingerprint(make_rule(settings, tmp_path)) == fingerprint(disco.load("grid57"))


# Of an evaluation: rules.

CONFIG = EvaluationConfig(
    agent=RuleAgentConfig(
        network=NetworkConfig(torso=(), model=4, head=()),
        num_environments=2,
        unroll_length=5,
        batch_size=2,
        replay_ratio=0.0,
    ),
    seeds=1,
    budget=20,
    baselines=(),
    num_points=1,
    resamples=10,
)


def run(rules, suites, config, workdir, **others):
    experiment = Experiment(tasks_of(suites), config, pathlib.Path(workdir))
    evaluations.run_evaluation(evaluate_flags(*rules, **others), experiment)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A rule file, and the workdir of its evaluation."""
    folder = tmp_path_factory.mktemp("evaluated")
    file, workdir = folder / "tiny.npz", folder / "run"
    disco.save(small_rule(), file)
    run([str(file)], ["catch/5x5"], CONFIG, str(workdir))
    return file, workdir


def test_rule_file_of_an_evaluation_is_gone(evaluated, capsys, caplog):
    file, workdir = evaluated
    content = file.read_bytes()
    assert (workdir / "rules" / "tiny.npz").read_bytes() == content
    file.unlink()
    capsys.readouterr()
    run([str(file)], ["catch/5x5"], CONFIG, str(workdir))
    assert "2 of 2 runs are finished." in capsys.readouterr().out
    assert f"Rule file '{file}' does not exist" in caplog.text
    assert f"The rule's copy {workdir / 'rules' / 'tiny.npz'} is used." in caplog.text
    with pytest.raises(FileNotFoundError, match=r"other\.npz' does not exist"):
        run([str(file.with_name("other.npz"))], ["catch/5x5"], CONFIG, str(workdir))
    file.write_bytes(content)


def test_rule_file_of_an_evaluation_that_is_another_one_is_refused(evaluated):
    file, workdir = evaluated
    content = file.read_bytes()
    disco.save(small_rule(seed=1), file)
    with pytest.raises(ValueError, match=r"config: rules.tiny is '\w+' there and '\w+' here"):
        run([str(file)], ["catch/5x5"], CONFIG, str(workdir))
    assert (workdir / "rules" / "tiny.npz").read_bytes() == content
    file.write_bytes(content)


def test_a_dry_run_in_the_workdir_of_another_evaluation_is_refused(evaluated):
    _, workdir = evaluated
    arguments = ["--suite=catch/10x5", "--dry_run", f"--workdir={workdir}"]
    ((status, output),) = outcomes("launch.evaluate", {"other": arguments}).values()
    assert status == 2
    assert re.search(r"run with another config: .*tasks is \['catch/5x5'\] there", output)


def test_robustness_goes_on_by_the_copy(evaluated, tmp_path):
    """It is refused for its settings only, and so the rule was found."""
    _, workdir = evaluated
    missing = tmp_path / "tiny.npz"
    arguments = [f"--workdir={workdir}", f"--rule={missing}", "--suite=catch/5x5"]
    ((status, output),) = outcomes("launch.robustness", {"gone": arguments}).values()
    assert "is of a run with another config: command is 'evaluate' there" in output
    assert "rules.tiny" not in output
    assert status == 2


def shared(contenders: dict[str, Tuned]) -> TunedSettings:
    common = tuned_settings.common_settings(CONFIG)
    return TunedSettings(
        tasks=["a"], budget=CONFIG.num_steps, **common, seed=0, contenders=contenders
    )


@pytest.fixture
def tuned(tmp_path):
    """Writes a file of tuned settings of actor-critic with this learning rate."""

    def write(learning_rate: float):
        one = Tuned({"learning_rate": learning_rate}, 1.0, [], [])
        found = shared({"actor_critic": one})
        tuned_settings.write(tmp_path / "tuned.json", found)
        return tmp_path / "tuned.json"

    return write


def test_a_rule_without_tuned_settings_and_tasks_that_were_tuned_on_are_told(
    tuned, evaluated, tmp_path, caplog
):
    config = dataclasses.replace(CONFIG, baselines=("actor_critic_tuned",))
    file, _ = evaluated
    tasks = [environments.make(name) for name in ("catch/5x5", "catch/3x3")]
    found = dataclasses.replace(tuned_settings.read(tuned(0.125)), tasks=["catch/5x5"])
    tuned_settings.write(tmp_path / "tuned.json", found)
    experiment = Experiment(tasks, config, tmp_path)
    evaluations.contenders_of(str(tmp_path / "tuned.json"), experiment, [str(file)])
    assert "has no settings for the rule tiny, which keeps its own" in caplog.text
    assert "was tuned on 1 of the 2 tasks of this evaluation: catch/5x5." in caplog.text


def test_tuned_settings_that_no_contender_reads_are_refused(tuned, tmp_path):
    experiment = Experiment([environments.make("catch/5x5")], CONFIG, tmp_path)
    with pytest.raises(ValueError, match=r"--tuned=.*, and no contender reads it; expected a --ru"):
        evaluations.contenders_of(str(tuned(0.125)), experiment, [])


def test_tuned_settings_are_kept_and_may_not_change(tuned, tmp_path, capsys):
    config = dataclasses.replace(CONFIG, baselines=("actor_critic_tuned",))
    workdir = str(tmp_path / "run")

    def run_with(file):
        run([], ["catch/5x5"], config, workdir, tuned=str(file))

    file = tuned(0.125)
    run_with(file)
    results = json.loads((tmp_path / "run" / "results.json").read_text())["contenders"]
    assert list(results) == ["random", "actor_critic_tuned"]
    assert results["actor_critic_tuned"]["settings"]["agent"]["learning_rate"] == 0.125
    file.unlink()
    capsys.readouterr()
    run_with(file)
    assert "2 of 2 runs are finished." in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"tuned.actor_critic.learning_rate is 0.125 there and 0."):
        run_with(tuned(0.25))
    with pytest.raises(ValueError, match=r"there are no tuned settings of 'actor_critic'"):
        run_with("")
    run_with(SHIPPED)  # Those of the workdir.
    assert "2 of 2 runs are finished." in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"tuned.json has no settings for \['ppo'\]"):
        run(
            [],
            ["catch/5x5"],
            dataclasses.replace(config, baselines=("ppo_tuned",)),
            workdir,
            tuned=str(tmp_path / "tuned.json"),
        )


def test_an_evaluation_with_the_shipped_settings_goes_on(tmp_path, monkeypatch, capsys):
    """They also have a baseline that it lacks, and another rule of its rule's name."""
    one = Tuned({"learning_rate": 0.125}, 1.0, [], [])
    everyone = {
        "actor_critic": one,
        "ppo": one,
        "tiny": dataclasses.replace(one, parameters_sha256="0" * 64),
    }
    found = shared(everyone)
    monkeypatch.setattr(tuned_settings, "SHIPPED_FILE", tmp_path / "shipped.json")
    tuned_settings.write(tuned_settings.SHIPPED_FILE, found)
    disco.save(small_rule(), tmp_path / "tiny.npz")
    config = dataclasses.replace(CONFIG, baselines=("actor_critic_tuned",))
    for _ in range(2):
        run([str(tmp_path / "tiny.npz")], ["catch/5x5"], config, str(tmp_path / "run"))
    assert "3 of 3 runs are finished." in capsys.readouterr().out
    kept = tuned_settings.read(tmp_path / "run" / "tuned.json")
    assert kept == dataclasses.replace(found, contenders={"actor_critic": one})


def test_settings_that_the_shipped_ones_do_not_fit_are_told(tmp_path, caplog):
    def found(config, *rules):
        experiment = Experiment([environments.make("catch/5x5")], config, tmp_path)
        return evaluations.contenders_of(SHIPPED, experiment, rules)[1]

    config = EvaluationConfig(baselines=("ppo_tuned",), budget=50_000)
    with pytest.raises(ValueError, match=r"ppo_tuned, and .* for config.budget 99968"):
        found(config)
    config = EvaluationConfig(baselines=("ppo",), budget=50_000)
    assert found(config, "grid57") is None
    assert "not this package's tuned ones: they are for config.budget 99968; exp" in caplog.text
    config = EvaluationConfig(baselines=("ppo",), rule_learning_rate=1e-3)
    assert found(config, "grid57") is None
    assert "not this package's tuned ones: config.rule_learning_rate is set." in caplog.text


def test_the_shipped_settings_are_used_where_they_fit(tmp_path, monkeypatch, caplog):
    found = tuned_settings.read(tuned_settings.SHIPPED_FILE)
    shipped = found.contenders
    config = EvaluationConfig(baselines=tuple(f"{kind}_tuned" for kind in BASELINES))
    none = dataclasses.replace(config, baselines=())
    tasks = environments.suite("grid_heldout")

    def settings(config, *rules):
        experiment = Experiment(tasks, config, tmp_path)
        contenders, _ = evaluations.contenders_of(SHIPPED, experiment, rules)
        return evaluations.tuned_of(contenders)

    assert settings(config, "grid57") == {name: x.settings for name, x in shipped.items()}
    assert set(settings(config)) == set(BASELINES)
    assert not caplog.text
    assert set(settings(none, "grid57")) == {"grid57"}
    assert settings(dataclasses.replace(none, budget=50_000), "grid57") == {}
    assert settings(dataclasses.replace(none, rule_discount=0.5), "grid57") == {}
    rates = dataclasses.replace(config, rule_learning_rate=1e-3)
    assert set(settings(rates, "grid57")) == set(BASELINES)
    disco.save(small_rule(), tmp_path / "grid57.npz")  # Another rule of the same name.
    assert set(settings(config, str(tmp_path / "grid57.npz"))) == set(BASELINES)
    fewer = {name: one for name, one in shipped.items() if name not in ("dice", "muzero")}
    monkeypatch.setattr(tuned_settings, "SHIPPED_FILE", tmp_path / "shipped.json")
    tuned_settings.write(tuned_settings.SHIPPED_FILE, dataclasses.replace(found, contenders=fewer))
    with pytest.raises(ValueError, match=r"shipped.json has no settings for \['dice', 'muzero'\]"):
        settings(config)


def test_the_shipped_settings_were_tuned_equally_and_on_discovery_tasks():
    found = tuned_settings.read(tuned_settings.SHIPPED_FILE)
    assert set(found.tasks) <= {task.name for task in environments.suite("grid57")}
    assert len({len(one.trials) for one in found.contenders.values()}) == 1
    assert not [name for name, one in found.contenders.items() if one.at_the_edge]


def test_rule_of_another_discount_is_copied_as_it_is(tmp_path):
    config = dataclasses.replace(CONFIG, rule_discount=0.5)
    file = tmp_path / "tiny.npz"
    disco.save(small_rule(), file)
    evaluations.keep_rules(
        tmp_path, make_contenders(rule_contenders([str(file), "grid57"], config), config), config
    )
    assert (tmp_path / "rules" / "tiny.npz").read_bytes() == file.read_bytes()
    assert (tmp_path / "rules" / "grid57.npz").exists()


def test_rule_file_that_is_replaced_while_an_evaluation_starts(tmp_path):
    file = tmp_path / "tiny.npz"
    disco.save(small_rule(), file)
    contenders = make_contenders(rule_contenders([str(file)], CONFIG), CONFIG)
    disco.save(small_rule(seed=1), file)
    with pytest.raises(
        ValueError, match=r"tiny\.npz' was replaced while the run was starting; try"
    ):
        evaluations.keep_rules(tmp_path, contenders, CONFIG)
    assert not list((tmp_path / "rules").iterdir())


# Files that tasks are read from.


def write_levels(file: pathlib.Path, first: int) -> None:
    file.write_text(boxoban.to_text(generator.generate("test", 4)[first : first + 2]))


def test_levels_of_an_evaluation_may_not_change(tmp_path):
    file, workdir = tmp_path / "levels.txt", tmp_path / "run"
    write_levels(file, 0)
    suite = f"sokoban/file:{file}"
    run([], [suite], CONFIG, str(workdir))
    write_levels(file, 1)
    with pytest.raises(ValueError, match=rf"task_files.{suite} is '\w+' there and '\w+' here"):
        run([], [suite], CONFIG, str(workdir))


def test_levels_of_a_discovery_may_not_change(tmp_path):
    file, workdir = tmp_path / "levels.txt", tmp_path / "run"
    write_levels(file, 0)
    suite = f"sokoban/file:{file}"
    settings = dataclasses.replace(get_settings(), suite=suite)
    workdir.mkdir()
    (workdir / "checkpoints").touch()  # So that it ends before anything is compiled.
    for _ in range(2):
        with pytest.raises(CheckpointError, match="Cannot write checkpoints"):
            discover(settings, str(workdir))
        assert list(json.loads((workdir / "sources.json").read_text())) == [suite]
    write_levels(file, 1)
    changed = rf"files that tasks of .*: {suite} is '\w+' there and '"
    for is_dry in (False, True):
        with pytest.raises(ValueError, match=changed):
            discover(settings, str(workdir), is_dry=is_dry)
    other = dataclasses.replace(settings, seed=settings.seed + 1)
    with pytest.raises(ValueError, match="run with another config: seed is"):
        discover(other, str(workdir), is_dry=True)
    write_levels(file, 0)
    with pytest.raises(CheckpointError, match="Cannot write checkpoints"):
        discover(settings, str(workdir))


@pytest.mark.parametrize(
    ("baselines", "name", "is_read"),
    [
        (("impala",), "agent.frame_stack", False),
        (("impala",), "agent.network.torso", False),
        (("ppo",), "agent.frame_stack", False),
        (("hand_set",), "agent.network.torso", True),
        (("hand_set",), "agent.learning_rate", False),
        (("hand_set",), "rule_lifetime", False),
        (("ppo",), "budget", True),
    ],
)
def test_a_setting_that_nobody_reads_is_refused(baselines, name, is_read):
    config = EvaluationConfig(baselines=baselines)
    if is_read:
        make_contenders([], config, changes={name: None})
        return
    with pytest.raises(ValueError, match=f"--config.{name} is given, and no contender reads it"):
        make_contenders([], config, changes={name: None})


def test_the_network_of_images_is_read_by_baselines_without_one():
    network = NetworkConfig(torso=(8,), channels=(4,))
    agent = dataclasses.replace(EvaluationConfig().agent, network=network)
    for baseline, is_read in (("muesli", True), ("impala", True), ("ppo", False)):
        config = EvaluationConfig(agent=agent, baselines=(baseline,))
        with contextlib.nullcontext() if is_read else pytest.raises(ValueError, match="reads it"):
            make_contenders([], config, changes={"agent.network.channels": (4,)})
