"""`robustness`: whether an encoding or a scale of rewards changes what an agent learns.

Twelve tasks that `varied_heldout` has, too, each in six encodings and with three scales of rewards:
what differs is what an agent sees of the same task. `benchmarks.robustness` makes the table.

| encoding | inputs |
| --- | --- |
| `given` | the planes of a grid-world, the features of a state |
| `permuted` | these in another order, and half as many copies and complements |
| `wide` | 1,600: copies and complements, so that half of those of 0 and 1 are 1 |
| `distracted` | half are noise |
| `projected_64`, `projected_256` | random linear maps to so many |

The tasks are of the families whose best return is known: three grid-worlds, rooms and decision
processes each, two bandits, and a chain, the first of `varied_heldout` that PPO had learned half of
in the table of `docs/measurements/varied.md`, in an encoding of `varied`.
"""

import functools
import itertools

import numpy as np

from environments.base import Environment, JaxEnvironment
from environments.encodings import Encoded
from environments.noise import NoisyRewards
from environments.suites import mdp_generated, varied
from environments.suites.varied.contexts import Contexts

TASKS = (465, 466, 469, 472, 473, 474, 475, 478, 482, 484, 488, 491)
"""By their numbers in `varied`."""
ENCODINGS = ("given", "permuted", "wide", "distracted", "projected_64", "projected_256")
SCALES = {"x1e-2": 1e-2, "x1": 1.0, "x1e2": 1e2}
_DYNAMICS: dict[str, JaxEnvironment] = {
    "rooms": varied.ROOMS,
    "grid": NoisyRewards(varied.GRID),
    "mdp": NoisyRewards(mdp_generated.Ring()),
    "chain": varied.ROOMS,
    "bandit": Contexts(),
}


def _family(number: int) -> str:
    return varied.VARIANTS[number % len(varied.VARIANTS)].family


_PARTS = {
    f"robustness/{number}_{_family(number)}_{encoding}_{scale}": (number, encoding, scale)
    for encoding, number, scale in itertools.product(ENCODINGS, TASKS, SCALES)
}
SUITES = {"robustness": tuple(_PARTS)}


def parts(name: str) -> tuple[int, str, str]:
    """Return the task's number, its encoding and its scale, by names."""
    return _PARTS[name]


@functools.cache
def make(name: str) -> Environment:
    """Make an environment of the suite, for example `robustness/465_rooms_wide_x1`."""
    number, encoding, scale = parts(name)
    dynamics, noise = _encoded(_DYNAMICS[_family(number)], encoding)
    rng = np.random.default_rng([varied.SEED, number, ENCODINGS.index(encoding)])
    params = dynamics.draw(rng, varied.draw(number)[0], SCALES[scale], noise)
    return Environment(name=name, dynamics=dynamics, params=params)


def _encoded(dynamics: JaxEnvironment, encoding: str) -> tuple[Encoded, float]:
    """Return the dynamics in an encoding, and the part of its inputs that is noise."""
    given = Encoded(dynamics)
    if encoding == "given":
        return given, 0.0
    kind, _, size = encoding.partition("_")
    if kind == "projected":
        return Encoded(dynamics, kind, int(size)), 0.0
    number = given.num_values
    sizes = {"permuted": number * 3 // 2, "wide": 1600, "distracted": 2 * number}
    noise = 0.5 if encoding == "distracted" else 0.0
    return Encoded(dynamics, "selected", sizes[encoding]), noise
