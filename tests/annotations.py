"""Each call of ours is checked against its annotations, and so is each dataclass when it is made.

Shapes and dtypes included. Child processes of tests run unchecked.
"""

import contextlib
from collections.abc import Iterator

import jaxtyping

PACKAGES = """agents benchmarks disco disco_common environments evaluation launch meta
    training""".split()


def check() -> None:
    """Modules that are imported from now on; as everywhere in types, an int will do for a float."""
    jaxtyping.install_import_hook(
        PACKAGES, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """What our own code says to callers who hand over what annotations forbid."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
