"""Time of one agent update by the published rule, relative to that of its network passes.

    python -m benchmarks.update

Catch 8x8, 64 trajectories of 29 steps, MLP 512-512, model LSTM 128, heads 128, Disco103's
sizes. The baseline is the online network's forward pass, its backward pass from the outputs that
the loss reads (with the rule's loss gradient as cotangent), and the target network's forward pass.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from absl import app, flags

import disco
import environments
from agents.rule_agent import AgentConfig, RuleAgent, to_trajectory
from benchmarks.timing import compare
from training import iteration

_REPEATS = flags.DEFINE_integer("repeats", 15, "Timed calls of each program.")


def main(argv: list[str]) -> None:
    """Print times, XLA's counts and the ratio."""
    del argv
    rule = disco.DiscoveredRule.create(jax.random.key(0))
    environment = environments.make("catch/8x8")
    dynamics, task = environment.dynamics, environment.params
    assert isinstance(dynamics, environments.JaxEnvironment)
    agent = RuleAgent.create(AgentConfig(num_environments=64, replay_ratio=0.0), dynamics, rule)
    state = iteration.init(agent, dynamics, task, jax.random.key(1))
    _, collected, _ = jax.jit(partial(iteration.collect, agent, dynamics))(
        task, state, jax.random.key(2)
    )
    batch = to_trajectory(collected)
    unroll = agent.network.unroll
    learner = state.learner

    def update(rule, learner, batch):
        after, _, _ = dataclasses.replace(agent, rule=rule).learn(learner, batch)
        return after

    def network_only(learner, batch, cotangent):
        _, pull_back, outputs = jax.vjp(
            lambda p: rule._unroll(unroll, p, batch), learner.params, has_aux=True
        )
        target_outputs = rule._target_outputs(unroll, learner.rule_state.target_params, batch)
        return outputs, pull_back(cotangent), target_outputs

    loss_outputs, outputs = rule._unroll(unroll, learner.params, batch)
    targets, _ = rule.targets(outputs, outputs, batch, learner.rule_state)
    cotangent = jax.grad(lambda o: rule.output_loss(o, targets, batch)[0])(loss_outputs)
    cotangent = jax.tree.map(jnp.asarray, cotangent)

    programs = {
        "network only": (network_only, (learner, batch, cotangent)),
        "update": (update, (rule, learner, batch)),
    }
    compare(programs, "network only", _REPEATS.value)


if __name__ == "__main__":
    app.run(main)
