import json
import math

import pytest

from environments.registry import members_of
from evaluation.published import FOLDER, METRICS, published_scores, published_tables

MILLION = 1_000_000
ATARI = ("Random", "Human", "IMPALA", "STACX", "Muesli", "MuZero", "Dreamer", "Disco57", "Disco103")
PROCGEN = ("Random", "Human", "PPO", "PPG", "Dreamer", "MuZero", "Disco57", "Disco103")
DICE = (
    *("Random", "Human", "Human world record", "Rainbow", "IMPALA", "LASER", "R2D2", "NGU"),
    *("Agent57", "DiCE baseline", "DiCE"),
)
WITH_IRIS = ("Random", "Human", "MuZero", "EfficientZero", "IRIS")
DMLAB = ("Random", "Human", "IMPALA", "Disco57", "Disco103")


def _discorl():
    return [x for table in published_tables() for x in table.scores if x.source.startswith("Oh")]


def _score(task, agent, budget, paper="Oh", metric="return"):
    [found] = [
        s
        for s in published_scores(task, metric)
        if (s.agent, s.budget) == (agent, budget) and s.source.startswith(paper)
    ]
    return found


def _agents(task, paper):
    return tuple(score.agent for score in published_scores(task) if score.source.startswith(paper))


@pytest.mark.parametrize(
    ("suite", "paper", "agents"),
    [
        ("atari57", "Oh", ATARI),
        ("atari57", "Xiao", DICE),
        ("procgen16", "Oh", PROCGEN),
        ("control_proprio", "Hafner", ("DDPG", "MPO", "DMPO", "D4PG", "DreamerV3")),
        ("control_vision", "Hafner", ("SAC", "CURL", "DrQ-v2", "DreamerV3")),
        ("atari100k", "Micheli et al. 2023", WITH_IRIS),
        ("atari100k", "Micheli et al. 2024", ("Δ-IRIS",)),
        ("atari100k", "Robine", ("TWM",)),
        ("atari100k", "Zhang", ("STORM",)),
        ("atari100k", "Alonso", ("DIAMOND",)),
    ],
)
def test_every_task_of_a_suite_has_every_agents_score(suite, paper, agents):
    for task in members_of(suite):
        assert _agents(task, paper) == agents, task


def test_tasks_are_environments():
    suites = ("atari57", "atari100k", "procgen16", "dmlab30_test", "control_proprio")
    known = {name for suite in (*suites, "control_vision") for name in members_of(suite)}
    known |= {"crafter/reward", "nethack/NetHackChallenge"}
    tasks = {
        score.task
        for table in published_tables()
        for score in table.scores
        if score.metric == "return"
    }
    assert tasks <= known
    experiments = {name.rpartition("/")[0] for name in members_of("bsuite_first")}
    assert {
        score.task for table in published_tables() for score in table.scores
    } - tasks == experiments | {
        "bsuite/mnist",
        "bsuite/mnist_noise",
        "bsuite/mnist_scale",
    }


def test_tasks_are_those_of_the_papers_tables():
    tasks = {score.task for score in _discorl()}
    families = [task.partition("/")[0] for task in tasks]
    counts = {family: families.count(family) for family in set(families)}
    assert counts == {"atari": 57, "procgen": 16, "dmlab_test": 30, "nethack": 1, "crafter": 1}
    assert tasks >= {"nethack/NetHackChallenge", "crafter/reward"}
    for task in tasks:
        if task.startswith("dmlab_test/"):
            assert _agents(task, "Oh") == DMLAB


@pytest.mark.parametrize(
    ("task", "agent", "budget", "score"),
    [
        ("atari/Alien", "Disco103", 200 * MILLION, 333105),
        ("atari/MontezumaRevenge", "Disco57", 200 * MILLION, 2559),
        ("atari/UpNDown", "Muesli", 200 * MILLION, 549190),
        ("atari/Skiing", "Human", None, -4337),
        ("atari/Zaxxon", "Random", None, 32),
        ("procgen/bigfish", "MuZero", 30 * MILLION, 30.80),
        ("procgen/fruitbot", "Random", None, -0.5),
        ("procgen/starpilot", "Disco103", 50 * MILLION, 44.07),
        ("dmlab_test/language_execute_random_task", "IMPALA", 1000 * MILLION, -49.9),
        ("dmlab_test/skymaze_irreversible_path_varied", "Disco103", 300 * MILLION, 68.17),
        ("nethack/NetHackChallenge", "Disco57", None, 938.10),
        ("nethack/NetHackChallenge", "Leaderboard 2nd (KakaoBrain)", None, 2062.79),
        ("crafter/reward", "Dreamer", MILLION, 11.70),
        ("crafter/reward", "Disco57", MILLION, 7.58),
        ("crafter/reward", "Disco103", 20 * MILLION, 14.56),
    ],
)
def test_scores_are_as_printed(task, agent, budget, score):
    found = _score(task, agent, budget)
    assert found.score == score
    assert found.note == ""
    assert "Extended Data Table" in found.source


@pytest.mark.parametrize(
    ("task", "agent", "budget", "copy", "score"),
    [
        ("atari/IceHockey", "Random", None, "-1", -11),
        ("procgen/chaser", "Dreamer", 50 * MILLION, "521", 5.21),
        (
            "dmlab_test/language_answer_quantitative_question",
            "Disco57",
            300 * MILLION,
            "242",
            2.42,
        ),
        ("dmlab_test/natlab_fixed_large_map", "Disco57", 300 * MILLION, "4117", 41.17),
        ("crafter/reward", "Disco57", 20 * MILLION, "1348", 13.18),
    ],
)
def test_mended_scores_say_so(task, agent, budget, copy, score):
    found = _score(task, agent, budget)
    assert found.score == score
    assert f"reads '{copy}'" in found.note


@pytest.mark.parametrize(
    ("paper", "task", "agent", "budget", "score"),
    [
        ("Hafner", "dmlab_test/natlab_fixed_large_map", "IMPALA", 10_000 * MILLION, 34.7),
        ("Hafner", "control_proprio/hopper_hop", "DMPO", 500_000, 71.5),
        ("Hafner", "control_vision/quadruped_walk", "DrQ-v2", MILLION, 660.3),
        ("Hafner", "atari100k/ChopperCommand", "SPR", 400_000, 946),
        ("Hafner", "atari/MontezumaRevenge", "DreamerV3", 200 * MILLION, 2512),
        ("Hafner", "crafter/reward", "DreamerV2", MILLION, 9.0),
        ("Xiao", "atari/Jamesbond", "DiCE", 200 * MILLION, 567020),
        ("Xiao", "atari/WizardOfWor", "R2D2", 10_000 * MILLION, 133264),
        ("Xiao", "atari/Zaxxon", "Human world record", None, 83700),
        ("Micheli et al. 2023", "atari100k/KungFuMaster", "IRIS", 400_000, 21759.8),
        ("Micheli et al. 2024", "atari100k/Gopher", "Δ-IRIS", 400_000, 9348.6),
        ("Robine", "atari100k/UpNDown", "TWM", 400_000, 15981.74),
        ("Zhang", "atari100k/Hero", "STORM", 400_000, 11044.3),
        ("Alonso", "atari100k/Breakout", "DIAMOND", 400_000, 132.48),
    ],
)
def test_scores_of_other_papers_are_as_printed(paper, task, agent, budget, score):
    found = _score(task, agent, budget, paper)
    assert found.score == score
    assert found.note == ""


def test_other_kinds_of_scores_are_kept_apart():
    assert _score("crafter/reward", "DreamerV3", MILLION, "Hafner").plus_minus == 1.9
    found = _score("crafter/reward", "DreamerV3", MILLION, "Hafner", "crafter_score")
    assert (found.score, found.plus_minus) == (14.5, 1.6)
    assert published_scores("bsuite/catch") == ()
    assert _score("bsuite/catch", "Muesli", None, "Hafner", "bsuite_score").score == 0.955


def test_scores_of_single_runs():
    found = _score("atari100k/Pong", "IRIS", 400_000, "Micheli")
    assert found.runs == (19.3, 18.5, 16.6, 6.2, 12.4)
    assert found.score == pytest.approx(14.6)


def test_world_models_have_five_runs_in_every_game():
    for task in members_of("atari100k"):
        for paper, agent in (("Robine", "TWM"), ("Zhang", "STORM"), ("Alonso", "DIAMOND")):
            assert len(_score(task, agent, 400_000, paper).runs) == 5, (task, agent)


@pytest.mark.parametrize(
    ("paper", "agent", "scored_on"),
    [
        ("Micheli et al. 2023", "IRIS", "100 evaluation episodes"),
        ("Micheli et al. 2023", "MuZero", ""),
        ("Zhang", "STORM", "20 evaluation episodes"),
        ("Hafner", "IRIS", "evaluation episodes"),
        ("Hafner", "DreamerV3", "training episodes"),
    ],
)
def test_episodes_that_scores_are_of(paper, agent, scored_on):
    assert _score("atari100k/Pong", agent, 400_000, paper).scored_on == scored_on


def test_a_doubtful_score_of_an_authors_file_says_so():
    found = _score("atari100k/Freeway", "STORM", 400_000, "Zhang")
    assert found.score == 0
    assert "come out with 34" in found.note


@pytest.mark.parametrize(
    ("task", "agent", "budget", "score"),
    [
        ("atari100k/Pong", "CURL", 400_000, -18),
        ("atari100k/Pong", "SPR", 400_000, -5),
        ("atari/Skiing", "Random", None, -17098),
        ("atari/Skiing", "DreamerV2", 200 * MILLION, -9813),
        ("atari/Tennis", "Human", None, -8),
        ("atari/IceHockey", "IQN", 200 * MILLION, -5),
        ("atari/Pitfall", "Rainbow", 200 * MILLION, -12),
    ],
)
def test_lost_minus_signs_are_there_again(task, agent, budget, score):
    found = _score(task, agent, budget, "Hafner")
    assert found.score == score
    assert "minus sign is lost" in found.note


def test_humans_are_better_than_chance_on_every_task():
    for task in {score.task for score in _discorl()} - {"nethack/NetHackChallenge"}:
        assert _score(task, "Random", None).score < _score(task, "Human", None).score, task


def test_only_learned_scores_have_a_budget():
    for score in _discorl():
        learned = score.agent not in ("Random", "Human") and "nethack" not in score.task
        assert (score.budget is not None) == learned, score
        assert score.budget_unit == ("frames" if score.task.startswith("atari") else "steps")


def test_scores_on_test_levels_are_found_by_the_level_to_train_on():
    on_test = published_scores("dmlab_test/rooms_collect_good_objects")
    assert on_test
    assert published_scores("dmlab/rooms_collect_good_objects") == on_test
    assert {score.trained_on for score in published_scores("atari/Pong")} == {"atari/Pong"}


def test_a_task_of_no_paper_has_no_scores():
    assert published_scores("catch/8x8") == ()
    assert published_scores("procgen_unseen/chaser") == ()


def _is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def _tables():
    for path in sorted(FOLDER.glob("*.json")):
        for table in json.loads(path.read_text())["tables"]:
            yield pytest.param(table, id=f"{path.stem}, {table['table']}")


@pytest.mark.parametrize("table", [*_tables()])
def test_files_are_what_the_reader_takes_them_for(table):
    assert table["budget_unit"] in ("frames", "steps")
    assert table.get("metric", "return") in METRICS
    columns = [(x["agent"], x["budget"]) for x in table["columns"]]
    assert len({*columns}) == len(columns)
    assert all(budget is None or (type(budget) is int and budget > 0) for _, budget in columns)
    printed = {}
    for row in table["rows"]:
        assert len(row["scores"]) == len(row.get("plus_minus", columns)) == len(columns)
        numbers = [*row["scores"], *row.get("plus_minus", ())]
        assert all(x is None or _is_number(x) for x in numbers), row
        printed |= {(row["task"], *x): y for x, y in zip(columns, row["scores"], strict=True)}
        by_agent = dict(zip([agent for agent, _ in columns], row["scores"], strict=True))
        for agent, runs in row.get("runs", {}).items():
            assert sum(runs) / len(runs) == pytest.approx(by_agent[agent], abs=1e-3)
    assert len(printed) == len(columns) * len(table["rows"])
    for note in table.get("notes", ()):
        assert printed[note["task"], note["agent"], note["budget"]] == note["score"]
    for aggregate in table.get("aggregates", ()):
        assert len(aggregate["printed"]) == len(columns)
        assert {*aggregate.get("explanations", ())} <= {agent for agent, _ in columns}


def test_no_score_is_there_twice():
    for path in FOLDER.glob("*.json"):
        paper = json.loads(path.read_text())["paper"]
        own = [
            x for table in published_tables() for x in table.scores if x.source.startswith(paper)
        ]
        assert len({(x.task, x.agent, x.budget, x.metric) for x in own}) == len(own)
