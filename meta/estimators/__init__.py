"""What estimates how to improve a rule, by `estimator` of `meta.config.DiscoveryConfig`.

- `meta_gradient`: derivatives of a meta-loss through a few updates of each agent (DiscoRL).
- `open_es`, `cma_es`: evolution strategies by the scores of agents over whole lifetimes.
- `persistent_es`: one over parts of lifetimes, without the bias that these would have.
- `hybrid`: OpenES of some layers, and meta-gradients of all others.
"""

from collections.abc import Sequence
from typing import Any

import disco
import environments
from meta.config import DiscoveryConfig
from meta.estimators.protocol import Discovery


def make_discovery(
    config: DiscoveryConfig,
    tasks: tuple[environments.Environment, ...],
    rule: disco.DiscoveredRule,
    devices: Sequence[Any] | None = None,
) -> Discovery:
    """Return a run of the configured estimator, which compiles nothing yet.

    By default it uses all devices of all processes.

    Raises:
      ValueError: as the estimator's constructor.
    """
    if config.estimator == "meta_gradient":
        from meta.estimators.meta_gradient import MetaGradient

        return MetaGradient(config, tasks, rule, devices)
    if config.estimator == "hybrid":
        from meta.estimators.hybrid import Hybrid

        return Hybrid(config, tasks, rule, devices)
    if config.estimator == "persistent_es":
        from meta.estimators.persistent import PersistentES

        return PersistentES(config, tasks, rule)
    from meta.estimators.evolution import Evolution

    return Evolution(config, tasks, rule)
