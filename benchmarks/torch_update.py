"""An update of a PyTorch network by a rule, beside that of a JAX network of the same sizes.

    python -m benchmarks.torch_update

The networks are those of `examples.torch_module` and `examples.plain_jax`. An update is the online
and the target network's outputs, loss and gradient, Adam's step and the target network's move;
trajectories are given, as arrays on the host. Both leave the loss and the other metrics to be read.
Medians over updates, in turns.
"""

import copy
import statistics
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import torch
from absl import flags

import disco
import disco.torch
from benchmarks import timing
from examples import plain_jax, torch_module
from launch import commands

_RULE = flags.DEFINE_string("rule", "three_families", "Rule file, or a name in the zoo.")
_REPEATS = flags.DEFINE_integer("repeats", 200, "Updates of each, in turns.", lower_bound=3)
_OBSERVATION, _ACTIONS = 8, 4
_CASES = (  # Hidden units, T, B.
    (64, 16, 16),
    (64, 16, 32),
    (64, 16, 64),
    (128, 16, 16),
    (256, 16, 64),
    (512, 32, 64),
)


def main() -> None:
    """Time and print."""
    rule = disco.load(_RULE.value)
    for hidden, length, batch_size in _CASES:
        updates = {
            "JAX": _jax_update(rule, hidden, length, batch_size),
            "PyTorch": _torch_update(rule, hidden, length, batch_size),
        }
        seconds = timing.time_in_turn(updates, _REPEATS.value)
        least, ratio, most = timing.ratios(seconds, "PyTorch", "JAX")
        times = {name: f"{1e3 * statistics.median(x):.2f} ms" for name, x in seconds.items()}
        print(
            f"{hidden} units, T {length}, B {batch_size}: {times};"
            f" PyTorch / JAX {ratio:.2f} (from {least:.2f} to {most:.2f})",
            flush=True,
        )


def _trajectory(length: int, batch_size: int) -> disco.Trajectory:
    random = np.random.default_rng(0)
    last: Any = random.random((length, batch_size)) < 0.05

    def normal(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    action: Any = random.integers(_ACTIONS, size=(length, batch_size), dtype=np.int32)
    discount: Any = 1.0 - last.astype(np.float32)
    mask: Any = np.ones((length, batch_size), bool)
    return disco.Trajectory(
        observation=normal(length + 1, batch_size, _OBSERVATION),
        action=action,
        reward=normal(length, batch_size),
        discount=discount,
        last=last,
        behaviour_logits=normal(length, batch_size, _ACTIONS),
        mask=mask,
    )


def _jax_update(rule: disco.Rule, hidden: int, length: int, batch_size: int) -> Callable[[], None]:
    plain_jax.HIDDEN = hidden
    params, apply = plain_jax.make_network(
        jax.random.key(0), _OBSERVATION, rule.output_shapes(_ACTIONS)
    )
    optimizer, trajectory = optax.adam(1e-3), _trajectory(length, batch_size)

    @jax.jit
    def update(params, optimizer_state, state, trajectory):
        gradients, aux = rule.gradient(
            params, state, trajectory, lambda params, x: apply(params, x.observation)
        )
        changes, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (optax.apply_updates(params, changes), optimizer_state, aux.state), aux.metrics

    carry = params, optimizer.init(params), rule.init(params)

    def run() -> None:
        nonlocal carry
        carry, _ = jax.block_until_ready(update(*carry, trajectory))

    return run


def _torch_update(
    rule: disco.Rule, hidden: int, length: int, batch_size: int
) -> Callable[[], None]:
    torch_module.HIDDEN = hidden
    loss_of = disco.torch.RuleLoss(rule)
    agent = torch_module.Agent(_OBSERVATION, rule.output_shapes(_ACTIONS))
    target = copy.deepcopy(agent)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, fused=True)
    found = _trajectory(length, batch_size)
    observation = torch.from_numpy(found.observation)
    trajectory = disco.torch.Trajectory(
        *(torch.from_numpy(getattr(found, name)) for name in disco.torch.Trajectory._fields)
    )

    def run() -> None:
        with torch.inference_mode():
            target_outputs = target(observation)
        loss = loss_of(agent(observation), target_outputs, trajectory)
        loss_of.move_target(target, agent)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


if __name__ == "__main__":
    commands.run(main)
