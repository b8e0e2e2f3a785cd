"""Sizes of the meta-network."""

import dataclasses

from disco.architectures import LSTM, TRANSFORMER
from disco.transformer import NUM_HEADS

# See `meta_network._features`.
STATE_FEATURES = 23  # Per transition, besides those of actions and of the agent.
ACTION_FEATURES = (9, 10)  # Per action: the published ones, and one more.
_AT_MOST = {"prior_outputs": 3, "agent_features": 2, "prior_features": 2}
_MAY_BE_0 = ("transformer_layers", *_AT_MOST)


@dataclasses.dataclass(frozen=True)
class MetaNetworkSizes:
    """Widths of the meta-network. The defaults are Disco103's.

    Raises ValueError if a size is out of range.

    Attributes:
      prediction: Y, the logits of each of the predictions y and z.
      prediction_embedding: hidden units of the nets that embed a prediction as one number.
      action_features: features of each action. The published 9, or 10: the tenth is the
        normalised advantage at the action taken and 0 at the others. In the published rule only
        the LSTM reads that advantage; the policy target would have to learn to multiply it with
        the indicator of the action taken.
      action_hidden: channels of the first block over actions, and of the policy target's.
      action_embedding: channels of the second block over actions.
      trajectory: units of the backward LSTM.
      transformer_layers: layers of a backward transformer (`disco.transformer`) with the width of
        the LSTM, which it replaces; 0 for the LSTM.
      lifetime: units of the lifetime RNN.
      lifetime_input: numbers that it reads per update.
      prior_outputs: outputs for each transition that change the prior of the policy target: 1 for
        the weight of the agent's own logits, 2 for that of the advantage of the action taken, too,
        3 for that of the advantages of all actions, too; 0 for constants
        (`AnchoredRule.policy_prior`, `advantage_weight`, `action_advantage_weight`).
      agent_features: numbers of the agent that both networks, and the outputs of the prior, read:
        with 1 its age, with 2 also the scale of its advantages (`disco.anchored.agent_features`); 0
        as published.
      prior_features: numbers of the action taken that the outputs of the prior read: with 1 the
        logarithm of its probability, with 2 also that of the ratio to its probability when it was
        taken (`disco.anchored.prior_features`).
    """

    prediction: int = 600
    prediction_embedding: int = 16
    action_features: int = 9
    action_hidden: int = 16
    action_embedding: int = 2
    trajectory: int = 256
    transformer_layers: int = 0
    lifetime: int = 128
    lifetime_input: int = 16
    prior_outputs: int = 0
    agent_features: int = 0
    prior_features: int = 0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            size, least = getattr(self, field.name), int(field.name not in _MAY_BE_0)
            if type(size) is not int or size < least:
                raise ValueError(
                    f"sizes.{field.name} is {size!r}; expected an integer of at least {least}."
                )
            if size > (most := _AT_MOST.get(field.name, size)):
                raise ValueError(f"sizes.{field.name} is {size}; expected 0 to {most}.")
        if self.transformer_layers and self.trajectory % NUM_HEADS:
            raise ValueError(
                f"sizes.trajectory is {self.trajectory}; expected a multiple of the"
                f" transformer's {NUM_HEADS} heads."
            )
        if self.prior_features and not self.prior_outputs:
            raise ValueError(
                f"sizes.prior_features is {self.prior_features} and sizes.prior_outputs 0; expected"
                " outputs that read them."
            )
        if self.action_features not in ACTION_FEATURES:
            expected = " or ".join(str(number) for number in ACTION_FEATURES)
            raise ValueError(
                f"sizes.action_features is {self.action_features}; expected {expected}."
            )

    @property
    def features(self) -> int:
        """Features per transition that the backward LSTM and the lifetime RNN read."""
        return STATE_FEATURES + self.agent_features + 2 * self.action_embedding

    @property
    def is_published(self) -> bool:
        """Whether the network has no inputs and outputs but the published ones."""
        return not (self.agent_features or self.prior_outputs or self.prior_features)

    @property
    def architecture(self) -> str:
        """The architecture's name in `disco.architectures`."""
        return TRANSFORMER if self.transformer_layers else LSTM
