"""Discovery with one part less or more, or on other tasks; otherwise `grid57_laptop`.

After DiscoRL, figure 3. There are no probes, as some of the tasks have no reference scores.

    --config=launch/configs/ablations.py:no_value

- `none`: no change, to compare with;
- `fixed_prior`: the weights of the policy target's prior are constants;
- `no_age`: the rule reads neither the agent's age nor the scale of its advantages;
- `no_scale`: the rule does not read the scale of the agent's advantages;
- `no_probability`: the prior's outputs do not read the action's probability and its ratio;
- `predictions`: the rule reads y and z and trains them, as the published one;
- `aux_policy`: agents predict their policy one step later, as with the published one;
- `no_value`: the rule reads no values, returns or advantages, and agents learn none;
- `no_lifetime`: the rule has no lifetime RNN, and so no memory between updates;
- `transformer`: the rule reads trajectories with a two-layer transformer instead of an LSTM;
- `small_agents`: agents with an eighth of the units;
- `toy_environments`: LPG's ten grid-worlds instead of the 57;
- `tasks_1`, `tasks_4`, `tasks_14`: so many of the 57, those of a smaller number among them;
- `generated`: the 256 grid-worlds of `grid_generated`;
- `families`: `grid57`, `grid_generated`, `mdp_generated`, and classic control and bandits of
  gymnax that have no reference scores, so that no evaluation normalises by them;
- `chains`: `delayed_chain`;
- `control`: CartPole, Acrobot and MountainCar.
"""

import dataclasses

import numpy as np

from environments.suites import grid57
from launch.configs import grid57_laptop
from launch.support.discovery_config import DiscoveryRunConfig, ProbeConfig

_RULE = {
    "predictions": {"reads_predictions": True, "y_cost": 1.0, "z_cost": 1.0},
    "aux_policy": {"aux_policy_cost": 1.0},
    "no_value": {"reads_values": False, "value_cost": 0.0},
    "no_lifetime": {"has_lifetime": False},
}
_SIZES = {
    "fixed_prior": {"prior_outputs": 0, "prior_features": 0},
    "no_age": {"agent_features": 0},
    "no_scale": {"agent_features": 1},
    "no_probability": {"prior_features": 0},
    "predictions": {"prediction": 16, "prediction_embedding": 16},
    "transformer": {"transformer_layers": 2},
}
_SHUFFLED = np.random.default_rng(0).permutation(grid57.SUITES["grid57"]).tolist()
_CONTROL = ("gymnax/CartPole-v1", "gymnax/Acrobot-v1", "gymnax/MountainCar-v0")
_BANDITS = ("gymnax/BernoulliBandit-misc", "gymnax/GaussianBandit-misc")
SUITES = {
    "toy_environments": ("lpg",),
    "tasks_1": _SHUFFLED[:1],
    "tasks_4": _SHUFFLED[:4],
    "tasks_14": _SHUFFLED[:14],
    "generated": ("grid_generated",),
    "families": ("grid57", "grid_generated", "mdp_generated", *_CONTROL[1:], *_BANDITS),
    "chains": ("delayed_chain",),
    "control": _CONTROL,
}
ABLATIONS = ("none", *dict.fromkeys([*_SIZES, *_RULE]), "small_agents", *SUITES)


def get_config(ablation: str = "none") -> DiscoveryRunConfig:
    """Return the settings of the run.

    Raises:
      ValueError: if there is no such ablation.
    """
    if ablation not in ABLATIONS:
        raise ValueError(f"The ablation {ablation!r} is unknown; expected one of {ABLATIONS}.")
    settings = dataclasses.replace(grid57_laptop.get_config(), probe=ProbeConfig())
    if ablation == "small_agents":
        small = dataclasses.replace(settings.agent.network, torso=(4,), head=(4,))
        agent = dataclasses.replace(settings.agent, network=small)
        return dataclasses.replace(settings, agent=agent)
    if ablation in SUITES:
        return dataclasses.replace(settings, suite=",".join(SUITES[ablation]))
    sizes = dataclasses.replace(settings.rule.sizes, **_SIZES.get(ablation, {}))
    rule = dataclasses.replace(settings.rule, sizes=sizes, **_RULE.get(ablation, {}))
    return dataclasses.replace(settings, rule=rule)
