"""An update of a PyTorch network by a rule, beside that of a JAX network of the same sizes.

    python -m benchmarks.torch_update

The networks are those of `examples.torch_module` and `examples.plain_jax`. An update is the online
and the target network's outputs, loss and gradient, Adam's step and the target network's move;
trajectories are given, as arrays on the host. Both leave the loss and the other metrics to be read.
"Alone" is the same without the rule: the gradient with respect to the outputs is given. It says
what each library itself takes.

Each is measured in a process of its own, as users have it: PyTorch's threads wait for work by
computing, and what another library does in the meantime is slower. Processes take turns; a ratio
is that of two medians over updates.
"""

import concurrent.futures
import copy
import dataclasses
import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import torch
import tqdm
from absl import flags

import disco
import disco.torch
from benchmarks import timing
from examples import plain_jax, torch_module
from launch.support import commands

_RULE = flags.DEFINE_string("rule", "three_families", "Rule file, or a name in the zoo.")
_REPEATS = flags.DEFINE_integer("repeats", 200, "Updates in each process.", lower_bound=3)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Processes of each kind.", lower_bound=1)
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
    seconds: dict[str, list[list[float]]] = {name: [] for name in _UPDATES}
    spawn = multiprocessing.get_context("spawn")
    for name in tqdm.tqdm(list(_UPDATES) * _ROUNDS.value):
        with concurrent.futures.ProcessPoolExecutor(1, spawn) as process:
            found = process.submit(_medians, name, _RULE.value, _REPEATS.value).result()
        seconds[name].append(found)
    for number, (hidden, length, batch_size) in enumerate(_CASES):
        of_case = {name: [x[number] for x in found] for name, found in seconds.items()}
        print(f"{hidden} units, T {length}, B {batch_size}")
        for name, found in of_case.items():
            print(f"  {name}: {timing.text(found)}")
        for kind in ("", " alone"):
            print(f"  {timing.ratio(of_case, f'PyTorch{kind}', f'JAX{kind}')}")


def _medians(name: str, rule_name: str, repeats: int) -> list[float]:
    """Return the median seconds of an update, for each case."""
    make, alone = _UPDATES[name]
    rule = disco.load(rule_name)
    return [
        statistics.median(timing.time_in_turn({"": make(rule, *case, alone)}, repeats)[""])
        for case in _CASES
    ]


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


def _jax_update(
    rule: disco.DiscoveredRule, hidden: int, length: int, batch_size: int, alone: bool
) -> Callable[[], None]:
    plain_jax.HIDDEN = hidden
    params, apply = plain_jax.make_network(
        jax.random.key(0), _OBSERVATION, rule.output_shapes(_ACTIONS)
    )
    optimizer, trajectory = optax.adam(1e-3), _trajectory(length, batch_size)

    def unroll(params, trajectory):
        return apply(params, trajectory.observation)

    def gradient_alone(params, state, trajectory):
        _, pull_back = jax.vjp(lambda params: unroll(params, trajectory), params)
        target_outputs = unroll(state.target_params, trajectory)
        new = 1.0 - rule.target_params_coefficient
        target_params = optax.incremental_update(params, state.target_params, new)
        (gradients,) = pull_back(target_outputs)
        return gradients, dataclasses.replace(state, target_params=target_params), {}

    def gradient(params, state, trajectory):
        gradients, aux = rule.gradient(params, state, trajectory, unroll)
        return gradients, aux.state, aux.metrics

    @jax.jit
    def update(params, optimizer_state, state, trajectory):
        compute = gradient_alone if alone else gradient
        gradients, state, metrics = compute(params, state, trajectory)
        changes, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (optax.apply_updates(params, changes), optimizer_state, state), metrics

    carry = params, optimizer.init(params), rule.init(params)

    def run() -> None:
        nonlocal carry
        carry, _ = jax.block_until_ready(update(*carry, trajectory))

    return run


def _torch_update(
    rule: disco.DiscoveredRule, hidden: int, length: int, batch_size: int, alone: bool
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
        outputs = agent(observation)
        loss = None if alone else loss_of(outputs, target_outputs, trajectory)
        loss_of.move_target(target, agent)
        optimizer.zero_grad()
        if loss is None:
            torch.autograd.backward(list(outputs.values()), list(target_outputs.values()))
        else:
            loss.backward()
        optimizer.step()

    return run


_UPDATES = {
    "JAX": (_jax_update, False),
    "PyTorch": (_torch_update, False),
    "JAX alone": (_jax_update, True),
    "PyTorch alone": (_torch_update, True),
}


if __name__ == "__main__":
    commands.run(main)
