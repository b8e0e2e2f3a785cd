"""Discovery with one part less or more, otherwise as `grid57_laptop` without probes.

After DiscoRL, figure 3c. Probes are left out as one suite has no reference scores.

    --config=launch/configs/ablations.py:no_value

- `none`: no change, to compare with;
- `fixed_prior`: the weights of the policy target's prior are constants;
- `no_age`: the rule does not read the agent's age;
- `predictions`: the rule reads y and z and trains them, as the published one;
- `aux_policy`: agents predict their policy one step later, as with the published one;
- `no_value`: the rule reads no values, returns or advantages, and agents learn none;
- `no_lifetime`: the rule has no lifetime RNN, and so no memory between updates;
- `transformer`: the rule reads trajectories with a two-layer transformer instead of an LSTM;
- `small_agents`: agents with an eighth of the units;
- `toy_environments`: LPG's five tabular grid-worlds instead of the 57.
"""

import dataclasses

from ml_collections import ConfigDict

from launch.configs import grid57_laptop
from launch.configuration import to_config
from launch.settings import DiscoverSettings, ProbeSettings

_RULE = {
    "predictions": {"reads_predictions": True, "y_cost": 1.0, "z_cost": 1.0},
    "aux_policy": {"aux_policy_cost": 1.0},
    "no_value": {"reads_values": False, "value_cost": 0.0},
    "no_lifetime": {"has_lifetime": False},
}
_SIZES = {
    "fixed_prior": {"prior_outputs": 0},
    "no_age": {"agent_features": 0},
    "predictions": {"prediction": 16, "prediction_embedding": 16},
    "transformer": {"transformer_layers": 2},
}
ABLATIONS = ("none", *dict.fromkeys([*_SIZES, *_RULE]), "small_agents", "toy_environments")


def get_settings(ablation: str = "none") -> DiscoverSettings:
    """Return the settings of the run.

    Raises:
      ValueError: if there is no such ablation.
    """
    if ablation not in ABLATIONS:
        raise ValueError(f"The ablation {ablation!r} is unknown; expected one of {ABLATIONS}.")
    settings = dataclasses.replace(grid57_laptop.get_settings(), probe=ProbeSettings())
    if ablation == "small_agents":
        small = dataclasses.replace(settings.agent.network, torso=(4,), head=(4,))
        agent = dataclasses.replace(settings.agent, network=small)
        return dataclasses.replace(settings, agent=agent)
    if ablation == "toy_environments":
        return dataclasses.replace(settings, suite="lpg")
    sizes = dataclasses.replace(settings.rule.sizes, **_SIZES.get(ablation, {}))
    rule = dataclasses.replace(settings.rule, sizes=sizes, **_RULE.get(ablation, {}))
    return dataclasses.replace(settings, rule=rule)


def get_config(ablation: str = "none") -> ConfigDict:
    """Return the config for `--config`."""
    return to_config(get_settings(ablation))
