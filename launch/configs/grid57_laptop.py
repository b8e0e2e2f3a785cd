"""Discovery on `grid57` on a laptop: minutes on two cores.

A small rule and small agents. Tuned on discovery tasks only. The 20 agents of the population take
turns on the 57 tasks.

Unlike the published rule, this one can be learned in minutes, as it starts from a rule that learns:
the policy target is the agent's policy, plus advantages that are not normalised, and the
meta-network changes the weights of both and adds to the target (`policy_prior`, `advantage_weight`,
`action_advantage_weight`, `sizes.prior_outputs`). Its outputs start at 0. Agents have no y, z and
aux_pi, which made rules worse at this budget and updates slower
(`docs/measurements/discovery.md`).
"""

from agents.networks import NetworkConfig
from agents.rule_agent import RuleAgentConfig
from disco import MetaNetworkSizes
from launch.support.discovery_config import DiscoveryRunConfig, ProbeConfig, RuleConfig
from meta.config import MetaConfig, ObjectiveConfig, PopulationConfig, ValueFunctionConfig

STEPS_PER_META_STEP = 6 * 8 * 16  # K = 6 updates, 8 environments, unrolls of 16 steps.
# An evaluation lasts 99,968 steps, and scores the last fifth of them. Agents that live as long and
# longer give updates of these ages a share like the evaluation's.
LIFETIMES = (200 * STEPS_PER_META_STEP, 130 * STEPS_PER_META_STEP)
_RULE = RuleConfig(
    sizes=MetaNetworkSizes(
        prediction=2,
        prediction_embedding=2,
        action_features=10,
        action_hidden=8,
        action_embedding=4,
        trajectory=16,
        lifetime=8,
        lifetime_input=8,
        prior_outputs=3,
        agent_features=2,
        prior_features=2,
    ),
    num_bins=21,
    max_value=15.0,
    policy_prior=0.99,
    advantage_weight=5.0,
    action_advantage_weight=0.1,
    normalize_advantage=False,
    y_cost=0.0,
    z_cost=0.0,
    aux_policy_cost=0.0,
    reads_predictions=False,
    masks_moments=True,
)


def get_config() -> DiscoveryRunConfig:
    """Return the settings of the run."""
    return DiscoveryRunConfig(
        suite="grid57",
        meta_steps=200,
        checkpoint_interval=50,
        log_interval=10,
        rule=_RULE,
        agent=RuleAgentConfig(
            network=NetworkConfig(torso=(32,), model=0, head=(32,)),
            learning_rate=1e-2,
            end_learning_rate=0.1,
            lifetime=LIFETIMES[-1],
            num_environments=8,
            unroll_length=16,
            batch_size=16,
            replay_ratio=0.5,
        ),
        value_function=ValueFunctionConfig(hidden=(64,), learning_rate=1e-3),
        objective=ObjectiveConfig(
            policy_entropy_cost=1e-2,
            prediction_entropy_cost=1e-4,
            target_kl_cost=0.0,
            target_mean_cost=0.0,
        ),
        population=PopulationConfig(
            size=20,
            lifetimes=LIFETIMES,
            first_reset_after=20 * STEPS_PER_META_STEP,
        ),
        meta=MetaConfig(
            num_updates=6,
            validation_trajectories=64,
            validation_length=16,
            validation_from_training=True,
            learning_rate=3e-4,
            max_gradient_norm=0.2,
            adam_b2=0.98,
        ),
        probe=ProbeConfig(interval=100, num_tasks=12),
    )
