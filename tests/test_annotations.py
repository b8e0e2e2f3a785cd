"""That annotations are checked in this process (`tests/annotations.py`)."""

import sys

import jax.numpy as jnp
import jaxtyping
import pytest

from disco import values
from tests.annotations import PACKAGES, unchecked

ROWS, ACTION = jnp.zeros((3, 2, 4)), jnp.zeros((2, 5), jnp.int32)  # Batches of 2 and of 5.


def test_modules_are_checked_from_their_import_on():
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] in PACKAGES}
    assert {"disco", "environments"} <= set(ours)
    specs = (module.__spec__ for module in ours.values())
    loaders = {type(spec.loader).__module__ for spec in specs if spec is not None}
    assert loaders == {"jaxtyping._import_hook"}


def test_a_wrong_shape_is_noticed_unless_it_is_meant():
    with pytest.raises(jaxtyping.TypeCheckError, match=r"parameter 'action'"):
        values.select_action(ROWS, ACTION)
    with unchecked(), pytest.raises(ValueError, match="Incompatible shapes"):
        values.select_action(ROWS, ACTION)
