"""The training loop that the examples share: any network, a rule, a gymnax task."""

import argparse
from collections.abc import Callable

import jax
import optax
from jax.experimental import checkify

import disco
import environments
from agents.policy_agent import PolicyAgent
from agents.rule_agent import to_trajectory
from training import collection

BATCH_SIZE, UNROLL_LENGTH = 16, 16


def arguments() -> argparse.Namespace:
    """Return the command-line arguments of an example."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rule", default="grid57", help="rule file, or a name in the zoo")
    parser.add_argument("--environment", default="gymnax/CartPole-v1")
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--check_values", action="store_true", help="notice numbers that no rule can learn from"
    )
    return parser.parse_args()


def learn(
    make_network: Callable[[jax.Array, int, dict], tuple[disco.Params, Callable]],
) -> list[float]:
    """Train a network, and print the mean return of the episodes since the last print.

    Args:
      make_network: from a key, the observation's size and the rule's output shapes to
        `(params, apply)`. `apply(params, observation)` returns all outputs, for any leading axes.
    """
    args = arguments()
    rule = disco.load(args.rule)
    environment = environments.make(args.environment)
    dynamics, task = environment.dynamics, environment.params
    assert isinstance(dynamics, environments.JaxEnvironment)  # Host environments: `training.host`.
    observation_spec = dynamics.observation_spec()
    assert not isinstance(observation_spec, dict)
    (observation_size,) = observation_spec.shape
    key = jax.random.key(args.seed)
    output_shapes = rule.output_shapes(environments.num_actions(dynamics))
    params, apply = make_network(key, observation_size, output_shapes)
    optimizer = optax.adam(args.learning_rate)
    agent = PolicyAgent(lambda params, x, memory: (apply(params, x)["logits"], memory))
    actor = collection.start(agent, dynamics, task, key, BATCH_SIZE)

    def unroll(params, trajectory):
        return apply(params, trajectory.observation)

    @jax.jit
    @checkify.checkify
    def update(params, opt_state, rule_state, actor, key):
        actor, batch, episodes = collection.collect(
            agent, dynamics, task, params, actor, key, UNROLL_LENGTH
        )
        trajectory = to_trajectory(batch)
        if args.check_values:
            disco.check_values(trajectory, unroll(params, trajectory), rule_state, params)
        # The rule replaces the gradient of a loss.
        grads, aux = rule.gradient(params, rule_state, trajectory, unroll)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, aux.state, actor, episodes

    opt_state, rule_state = optimizer.init(params), rule.init(params)
    returns = Returns(args.updates)
    for step in range(1, args.updates + 1):
        error, (params, opt_state, rule_state, actor, episodes) = update(
            params, opt_state, rule_state, actor, jax.random.fold_in(key, step)
        )
        error.throw()  # Raises if --check_values found an error.
        returns.add(float(episodes.return_sum), float(episodes.count))
        returns.print(step)
    return returns.printed


class Returns:
    """The mean returns of episodes, ten times in a training run.

    Attributes:
      printed: the means so far.
    """

    def __init__(self, updates: int):
        """Start before the first of so many updates."""
        self.printed: list[float] = []
        self._interval, self._total, self._count = max(updates // 10, 1), 0.0, 0.0

    def add(self, return_sum: float, count: float) -> None:
        """Add episodes that ended."""
        self._total, self._count = self._total + return_sum, self._count + count

    def print(self, update: int) -> None:
        """Print the mean since the last print, if it is time and episodes have ended."""
        if update % self._interval == 0 and self._count:
            self.printed.append(self._total / self._count)
            print(
                f"update {update}: mean return {self.printed[-1]:.1f} of {self._count:.0f} episodes"
            )
            self._total, self._count = 0.0, 0.0
