"""Simulations per second of MuZero's search, beside the search without Gumbel noise, in turns.

    python -m benchmarks.search

A batch of states, and some simulations in each, by the model of the laptop's preset and by one of
the paper preset's sizes, both with CartPole's observations. `gumbel` is what agents do
(`agents.muzero.search`), `plain` is `mctx.muzero_policy` with the same model, and `model alone`
steps the model and predicts as often as a search does: what remains is the tree's own time.
"""

from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
from absl import app, flags

import environments
from agents.latent_model import latent_model
from agents.muzero.config import PAPER, MuZeroConfig
from agents.muzero.search import model_for_search, search
from agents.networks import NetworkConfig
from benchmarks.timing import compare

_BATCH = flags.DEFINE_integer("batch_size", 64, "States.", lower_bound=1)
_SIMULATIONS = flags.DEFINE_integer("num_simulations", 16, "Of each search.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 20, "Turns.", lower_bound=1)
_NETWORKS = {
    "laptop": MuZeroConfig().network,
    "paper's model": NetworkConfig(
        torso=(512,), model=PAPER.network.model, head=PAPER.network.head
    ),
}


def main(argv: list[str]) -> None:
    """Print medians."""
    del argv
    dynamics = environments.make("gymnax/CartPole-v1").dynamics
    for name, network in _NETWORKS.items():
        config = PAPER if name != "laptop" else MuZeroConfig()
        model = latent_model(network, dynamics, config.num_bins)
        params = model.init(jax.random.key(0))
        embedding = jax.random.normal(jax.random.key(1), (_BATCH.value, network.torso[-1]))
        sizes = {"discount": config.discount, "max_value": config.max_value}

        def gumbel(params: Any, embedding: Any, model=model, sizes=sizes) -> Any:
            return search(
                model,
                params,
                embedding,
                jax.random.key(2),
                num_simulations=_SIMULATIONS.value,
                max_considered_actions=16,
                **sizes,
            )

        def plain(params: Any, embedding: Any, model=model, sizes=sizes) -> Any:
            root, recurrent = model_for_search(model, params, embedding, **sizes)
            with jax.numpy_dtype_promotion("standard"):
                found = mctx.muzero_policy(
                    params, jax.random.key(2), root, recurrent, _SIMULATIONS.value
                )
            return found.action

        def alone(params: Any, embedding: Any, model=model, sizes=sizes) -> Any:
            root, recurrent = model_for_search(model, params, embedding, **sizes)
            action = jnp.zeros(_BATCH.value, jnp.int32)

            def step(state, _):
                output, state = recurrent(params, jax.random.key(0), action, state)
                return state, output.value

            return jax.lax.scan(step, root.embedding, None, _SIMULATIONS.value)[1]

        print(f"{name}:")
        functions = {"plain": plain, "gumbel": gumbel, "model alone": alone}
        programs = {kind: (function, (params, embedding)) for kind, function in functions.items()}
        for kind, seconds in compare(programs, "plain", _REPEATS.value).items():
            rate = _BATCH.value * _SIMULATIONS.value / np.median(seconds)
            print(f"{kind}: {rate:,.0f} simulations/s", flush=True)


if __name__ == "__main__":
    app.run(main)
