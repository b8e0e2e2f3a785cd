"""disco: reinforcement-learning update rules as a library.

    rule = disco.load("disco_103.npz")
    state = rule.init(params)
    grads, aux = rule.gradient(params, state, trajectory, unroll)

`Rule` is the interface of update rules, `Trajectory` the data that a rule learns from.
"""

from disco.anchored import AnchoredMemory, AnchoredRule, AnchoredTargets
from disco.architectures import MetaNetworkSizes
from disco.checks import check_values
from disco.discovered import DiscoveredMemory, DiscoveredRule, DiscoveredTargets
from disco.hand_designed_rules import ActorCritic, HandSetRule, PolicyGradient, hand_designed
from disco.rule import Rule, UpdateResiduals
from disco.rule_files import load, load_header, recommended, save
from disco.rule_sources import RuleFileError, zoo
from disco.types import Aux, Outputs, Params, RuleState, Trajectory, Unroll

__version__ = "0.1.0"

__all__ = [
    "ActorCritic",
    "AnchoredMemory",
    "AnchoredRule",
    "AnchoredTargets",
    "Aux",
    "DiscoveredMemory",
    "DiscoveredRule",
    "DiscoveredTargets",
    "HandSetRule",
    "MetaNetworkSizes",
    "Outputs",
    "Params",
    "PolicyGradient",
    "Rule",
    "RuleFileError",
    "RuleState",
    "Trajectory",
    "Unroll",
    "UpdateResiduals",
    "check_values",
    "hand_designed",
    "load",
    "load_header",
    "recommended",
    "save",
    "zoo",
]
