r"""Evaluation with the hyper-parameters of the paper: DiscoRL, Extended Data Table 6.

    python -m launch.evaluate --rule=disco_103.npz --suite=crafter \
        --config=launch/configs/evaluate_paper.py:crafter --workdir=runs/crafter

For an accelerator. Families: atari, crafter, dmlab, nethack, procgen, sokoban. The two seeds (three
for Crafter and NetHack, five for Sokoban) are the paper's. The exponents of the warm-ups are
illegible in our copy of the table; they are read as 5, 1, 10 and 1 million steps. Budgets and
replay capacities count actions, each of which takes four frames in Atari and DMLab
(`environments.frames_per_action`).

The budget is that of the published scores which a report prints beside ours (Extended Data Tables 1
to 3 and 5): 200 million steps for Atari, 50 for ProcGen, 300 for DMLab, 1 for Crafter. The learning
rate falls over the environment steps of Table 6: 200 million for ProcGen, 1,000 for DMLab, of which
these scores are the first part. Crafter's second score is at 20 million steps
(`--config.budget=20000000`). NetHack's table gives no budget, and Sokoban has no table: their
budgets are those of Table 6.

If the table gives less than one fresh trajectory per batch (Crafter: 1% of 24), there is one.
"""

from typing import Any

import environments
from agents.networks import NETWORKS
from agents.rule_agent import RuleAgentConfig
from evaluation.config import EvaluationConfig

_MILLION = 1_000_000
_ATARI_FRAMES = environments.frames_per_action("atari")
_DMLAB_FRAMES = environments.frames_per_action("dmlab")


def _column(
    network: str,
    *,
    replayed_steps: int,
    replay_ratio: float,
    environment_steps: int = 200 * _MILLION,
    scored_after: int = 0,
    discount: float = 0.997,
    seeds: int = 2,
    learning_rate: float = 3e-4,
    unroll_length: int = 29,
    batch_size: int = 96,
    **agent: Any,
) -> EvaluationConfig:
    """Return the settings of a column of the table; the defaults are what most columns have.

    `scored_after` are environment steps, by the table of scores; 0 for all. Others are of `agent`.
    """
    num_fresh = max(1, batch_size - round(batch_size * replay_ratio))
    most = {"end_learning_rate": 0.0, "weight_decay": 0.1, "frame_stack": 4}
    return EvaluationConfig(
        RuleAgentConfig(
            network=NETWORKS[network],
            learning_rate=learning_rate,
            num_environments=num_fresh,
            unroll_length=unroll_length,
            batch_size=batch_size,
            replay_ratio=1.0 - num_fresh / batch_size,
            replay_capacity=replayed_steps // unroll_length,
            lifetime=environment_steps if scored_after else 0,  # 0: the budget.
            **(most | agent),
        ),
        seeds=seeds,
        budget=scored_after or environment_steps,
        rule_learning_rate=learning_rate,
        rule_discount=discount,
        baselines=("ppo",),
        num_points=100,
    )


_TABLE = {
    "atari": _column(
        "impala_large",
        warmup=5 * _MILLION // _ATARI_FRAMES,
        environment_steps=200 * _MILLION // _ATARI_FRAMES,
        replayed_steps=1_760_000,
        replay_ratio=0.95,
    ),
    "crafter": _column(
        "crafter",
        end_learning_rate=1.0,
        weight_decay=0.3,
        frame_stack=32,
        batch_size=24,
        environment_steps=50 * _MILLION,
        replayed_steps=400_000,
        replay_ratio=0.99,
        seeds=3,
        scored_after=_MILLION,
    ),
    "dmlab": _column(
        "dmlab",
        learning_rate=5e-4,
        warmup=_MILLION // _DMLAB_FRAMES,
        weight_decay=0.01,
        discount=0.99,
        frame_stack=1,
        environment_steps=1_000 * _MILLION // _DMLAB_FRAMES,
        replayed_steps=220_000,
        replay_ratio=0.9,
        unroll_length=100,
        scored_after=300 * _MILLION // _DMLAB_FRAMES,
    ),
    "nethack": _column(
        "nethack",
        learning_rate=1e-4,
        warmup=10 * _MILLION,
        weight_decay=0.03,
        max_abs_update=0.3,
        replayed_steps=1_760_000,
        replay_ratio=0.95,
        seeds=3,
    ),
    "procgen": _column(
        "impala",
        warmup=_MILLION,
        batch_size=192,
        replayed_steps=880_000,
        replay_ratio=0.9,
        scored_after=50 * _MILLION,
    ),
    "sokoban": _column("impala", replayed_steps=880_000, replay_ratio=0.9, seeds=5),
}
_SAME = {
    **dict.fromkeys(("dmlab_test", "dmlab_r2d2", "dmlab_r2d2_test"), "dmlab"),
    **dict.fromkeys(("procgen_unseen", "procgen_all"), "procgen"),
}


def get_config(family: str) -> EvaluationConfig:
    """Return the settings of an evaluation.

    Raises:
      ValueError: if the table has no such family.
    """
    name = _SAME.get(family, family)
    if name not in _TABLE:
        raise ValueError(
            f"The family of environments {family!r} is not in the paper's table; expected one of"
            f" {sorted({*_TABLE, *_SAME})}, as in --config=launch/configs/evaluate_paper.py:atari."
        )
    return _TABLE[name]
