"""Discovery without one of its parts, otherwise as `grid57_laptop` without probes.

After DiscoRL, figure 3c. Probes are left out as one suite has no reference scores.

    --config=launch/configs/ablations.py:no_value

- `none`: all parts, to compare with;
- `no_aux_policy`: agents do not predict their policy one step later;
- `no_predictions`: the rule neither reads y and z nor trains them;
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
    "no_aux_policy": {"aux_policy_cost": 0.0},
    "no_predictions": {"reads_predictions": False, "y_cost": 0.0, "z_cost": 0.0},
    "no_value": {"reads_values": False, "value_cost": 0.0},
    "no_lifetime": {"has_lifetime": False},
}
ABLATIONS = ("none", *_RULE, "transformer", "small_agents", "toy_environments")


def get_settings(ablation: str = "none") -> DiscoverSettings:
    """Return the settings of the run.

    Raises:
      ValueError: if there is no such ablation.
    """
    if ablation not in ABLATIONS:
        raise ValueError(f"The ablation {ablation!r} is unknown; expected one of {ABLATIONS}.")
    settings = dataclasses.replace(grid57_laptop.get_settings(), probe=ProbeSettings())
    if ablation == "small_agents":
        small = dataclasses.replace(settings.agent.network, torso=(4,), model=4, head=(4,))
        agent = dataclasses.replace(settings.agent, network=small)
        return dataclasses.replace(settings, agent=agent)
    if ablation == "toy_environments":
        return dataclasses.replace(settings, suite="lpg")
    if ablation == "transformer":
        sizes = dataclasses.replace(settings.rule.sizes, transformer_layers=2)
        rule = dataclasses.replace(settings.rule, sizes=sizes)
        return dataclasses.replace(settings, rule=rule)
    rule = dataclasses.replace(settings.rule, **_RULE.get(ablation, {}))
    return dataclasses.replace(settings, rule=rule)


def get_config(ablation: str = "none") -> ConfigDict:
    """Return the config for `--config`."""
    return to_config(get_settings(ablation))
