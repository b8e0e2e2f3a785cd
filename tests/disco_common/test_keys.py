"""Keys depend on their address only, and differ between addresses."""

import itertools

import jax
import numpy as np

from disco_common import keys
from disco_common.keys import Purpose


def _bits(*address):
    return tuple(np.asarray(jax.random.key_data(keys.key(*address))).tolist())


def test_each_address_has_its_own_key():
    addresses = list(itertools.product((0, 1), Purpose, range(3), range(3)))
    assert len({_bits(*address) for address in addresses}) == len(addresses)


def test_a_key_is_the_same_in_and_out_of_jit():
    inside = jax.jit(lambda i: jax.random.key_data(keys.key(7, Purpose.TRAIN, i, 2)))(5)
    assert tuple(np.asarray(inside).tolist()) == _bits(7, Purpose.TRAIN, 5, 2)


def test_purposes_keep_their_numbers():
    """Results of released versions depend on them."""
    assert [int(purpose) for purpose in Purpose] == list(range(len(Purpose)))
    assert (Purpose.INITIALIZE, Purpose.TRAIN) == (0, 1)
