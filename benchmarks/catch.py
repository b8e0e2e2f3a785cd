"""Training by the published rule on Catch, as in the authors' evaluation.

    python -m benchmarks.catch --rule=disco_103.npz --seeds=3

Catch 8x8; each update learns from 64 trajectories of 29 steps, drawn from a replay of the last
1,024 after 2 fresh ones were added; MLP 512-512, model LSTM 128, heads 128, learning rate 1e-2.
The published code reaches a mean return of 1.0 after 700 to 750 updates (two seeds).
"""

import jax
import numpy as np
from absl import flags

import disco
import environments
from agents.rule_agent import AgentConfig, RuleAgent
from launch.support import commands
from training import iteration

_RULE = flags.DEFINE_string("rule", None, "Rule file, or a name in the zoo.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Runs, with seeds 0, 1, ...")
_UPDATES = flags.DEFINE_integer("updates", 1000, "Updates of each run.")
_WINDOW = 50


def main() -> None:
    """Print the mean return of the episodes of every 50 updates, and of the last 100."""
    rule = disco.load(_RULE.value)
    environment = environments.make("catch/8x8")
    dynamics, task = environment.dynamics, environment.params
    assert isinstance(dynamics, environments.JaxEnvironment)
    agent = RuleAgent.create(AgentConfig(learning_rate=1e-2), dynamics, rule)

    @jax.jit
    def learn(state, key):
        def update(state, key):
            state, episodes, _ = iteration.advance(agent, dynamics, task, state, key, state.updates)
            return state, episodes

        return jax.lax.scan(update, state, jax.random.split(key, _WINDOW))

    for seed in range(_SEEDS.value):
        key = jax.random.key(seed)
        state = iteration.init(agent, dynamics, task, key)
        returns = []
        for window in range(_UPDATES.value // _WINDOW):
            state, episodes = learn(state, jax.random.fold_in(key, window))
            returns.append(float(episodes.return_sum.sum() / episodes.count.sum()))
            print(
                f"seed {seed}, update {(window + 1) * _WINDOW}: return {returns[-1]:.3f}",
                flush=True,
            )
        print(f"seed {seed}: mean return of the last 100 updates {np.mean(returns[-2:]):.3f}")


if __name__ == "__main__":
    commands.run(main)
