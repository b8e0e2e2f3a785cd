"""Random keys by address: a key depends on what it is for, and on nothing that ran before it.

A resumed run therefore draws what an uninterrupted one draws, and the number of devices does not
change what is drawn.
"""

import enum
import zlib

import jax
from jaxtyping import Array, Integer, PRNGKeyArray


class Purpose(enum.IntEnum):
    """What a key is for. The numbers are part of every result: add new ones at the end."""

    INITIALIZE = 0
    """An initial agent."""
    TRAIN = 1
    """One update of an agent, and the acting for it."""
    VALIDATE = 2
    """The validation trajectories of one meta-step."""
    REPLAY = 3
    """The sequences that an update draws from a replay in the host's memory."""
    ACT = 4
    """One unroll in host environments."""
    EXAMINE = 5
    """What a trained agent is examined on, once."""
    PERTURB = 6
    """The perturbations of a rule in one generation of an evolution strategy."""


def key(
    seed: int | Integer[Array, ""], purpose: Purpose, *address: int | Integer[Array, ""]
) -> PRNGKeyArray:
    """Return the key of an address.

    Args:
      seed: of the run.
      purpose: of the key.
      *address: which of the purpose's keys: for example the number of an update, then that of an
        agent.
    """
    key = jax.random.fold_in(jax.random.key(seed), purpose)
    for number in address:
        key = jax.random.fold_in(key, number)
    return key


def code(name: str) -> int:
    """Return a name's number for an address: a checksum, the same in every process."""
    return zlib.crc32(name.encode())
