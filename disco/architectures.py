"""Architectures of the meta-network, by the name that a rule file gives.

They differ in the network that reads the features of a trajectory from its end to its start.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from jaxtyping import Array, Bool, Float

from disco import lstm, transformer

LSTM = "lstm"
TRANSFORMER = "transformer"


class Architecture(NamedTuple):
    """A network that reads a trajectory backwards.

    Attributes:
      layer_shapes: maps the number of features of a transition, the width of the network and its
        number of layers to [inputs, outputs] of every linear map, by name.
      apply: maps the linear maps `{name: {"w", "b"}}`, the transitions' features `[T, B, F]` and
        whether each transition ends its episode to numbers from -1 to 1, `[T, B, width]`.
    """

    layer_shapes: Callable[[int, int, int], dict[str, tuple[int, int]]]
    apply: Callable[
        [Mapping[str, Mapping[str, Array]], Float[Array, "T B F"], Bool[Array, "T B"]],
        Float[Array, "T B H"],
    ]


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        LSTM: Architecture(lstm.layer_shapes, lstm.read_backwards),
        TRANSFORMER: Architecture(transformer.layer_shapes, transformer.read),
    }
)
