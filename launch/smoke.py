"""Play a thousand steps in each environment of a suite, as a test of its installation.

    python -m launch.smoke --suite=nethack
    python -m launch.smoke --suite=atari57 --agent=random

Each environment is played with random actions and by an untrained agent. The command prints the sum
of all rewards, the number of episodes that ended, their mean return, length and suite's results,
and the steps per second. Environments with continuous actions are played with random actions only:
a rule's agents need discrete actions.
"""

from absl import flags

from launch.support import commands

_AGENTS = ("random", "untrained")


def main() -> None:
    """Run the command."""
    from dm_env import specs
    from rich.table import Table

    from disco_common.terminal import console, printable
    from evaluation.evaluate import resolve
    from launch.support.playing import play

    values = flags.FLAGS
    table = Table(title=f"{values.steps} steps in each environment")
    headings = "environment agent reward episodes return length steps/s results".split()
    for heading in headings:
        table.add_column(heading, no_wrap=heading == "environment")
    agents = [name.strip() for name in values.agent.split(",")]
    if unknown := set(agents) - set(_AGENTS):
        raise ValueError(f"--agent has {sorted(unknown)}; expected some of {list(_AGENTS)}.")
    for task in resolve([name.strip() for name in values.suite.split(",")]):
        is_discrete = isinstance(task.dynamics.action_spec(), specs.DiscreteArray)
        for agent in agents if is_discrete else ["random"]:
            outcome = play(task, agent, values.steps, values.num_environments)
            results = ", ".join(f"{k} {x:.3g}" for k, x in outcome["results"].items() if x)
            name = printable(task.name)
            table.add_row(
                name,
                agent,
                _shown(outcome["reward"]),
                str(outcome["episodes"]),
                _shown(outcome["return"]),
                _shown(outcome["length"]),
                f"{values.steps / outcome['seconds']:.0f}",
                results,
            )
            print(
                f"{name}, {agent}: reward {_shown(outcome['reward'])},"
                f" {outcome['episodes']} episodes, mean return {_shown(outcome['return'])}",
                flush=True,
            )
    console(log_width=150).print(table)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _define_flags() -> None:
    flags.DEFINE_string("suite", None, "Suites or environments, by commas.", required=True)
    flags.DEFINE_string("agent", ",".join(_AGENTS), "Agents: random, untrained, or both.")
    flags.DEFINE_integer("steps", 1000, "Steps in each environment.", lower_bound=1)
    flags.DEFINE_integer(
        "num_environments", 4, "Parallel instances that share the steps.", lower_bound=1
    )


if __name__ == "__main__":
    commands.run(main, _define_flags)
