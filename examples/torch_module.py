"""A PyTorch network learns CartPole by a discovered rule.

python -m examples.torch_module
"""

import copy

import numpy as np
import torch

import disco
import disco.torch
import environments
from environments.simulators import EpisodeTracker
from examples.training import BATCH_SIZE, UNROLL_LENGTH, Returns, arguments

HIDDEN = 64


class Agent(torch.nn.Module):
    """Outputs per state from a torso, outputs per action from torso and action."""

    def __init__(self, observation_size: int, output_shapes: dict[str, tuple[int, ...]]):
        super().__init__()
        self.num_actions = output_shapes["logits"][0]
        self.ranks = {name: len(shape) for name, shape in output_shapes.items()}
        self.torso = torch.nn.Linear(observation_size, HIDDEN)
        self.action = torch.nn.Linear(HIDDEN + self.num_actions, HIDDEN)
        self.heads = torch.nn.ModuleDict(
            {name: torch.nn.Linear(HIDDEN, shape[-1]) for name, shape in output_shapes.items()}
        )

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return all outputs, for any leading axes."""
        state = torch.relu(self.torso(observation))
        leading = (*state.shape[:-1], self.num_actions)
        states = state[..., None, :].expand(*leading, HIDDEN)
        actions = torch.eye(self.num_actions).expand(*leading, self.num_actions)
        by_action = torch.relu(self.action(torch.cat([states, actions], dim=-1)))
        return {
            name: self.heads[name](state if rank == 1 else by_action)
            for name, rank in self.ranks.items()
        }


def collect(agent: Agent, simulators: environments.Simulators, timestep, tracker, returns):
    """Return observations, a trajectory, and the time step that the next one starts from."""
    rows, observations = [], []
    for _ in range(UNROLL_LENGTH):
        observation = torch.from_numpy(np.array(timestep.observation))
        with torch.no_grad():
            logits = agent(observation)["logits"]
        action = torch.distributions.Categorical(logits=logits).sample()
        starts_next = timestep.last()  # The next step leads to a new episode's first state.
        timestep = simulators.step(action.numpy())
        for episode in tracker.follow(timestep, simulators.results, simulators.restarts):
            returns.add(episode.episode_return, 1)
        rows.append(
            disco.torch.Trajectory(
                action=action,
                reward=torch.from_numpy(np.array(timestep.reward)),
                discount=torch.from_numpy(np.array(timestep.discount)),
                last=torch.from_numpy(np.array(timestep.last())),
                behaviour_logits=logits,
                mask=torch.from_numpy(~starts_next),
            )
        )
        observations.append(observation)
    observations.append(torch.from_numpy(np.array(timestep.observation)))
    trajectory = disco.torch.Trajectory(*(torch.stack(x) for x in zip(*rows, strict=True)))
    return torch.stack(observations), trajectory, timestep


def main() -> list[float]:
    """Train the network; return the mean returns that were printed."""
    args = arguments()
    torch.manual_seed(args.seed)
    rule = disco.torch.RuleLoss(disco.load(args.rule))
    environment = environments.make(args.environment)
    observation_spec = environment.dynamics.observation_spec()
    assert not isinstance(observation_spec, dict)
    (observation_size,) = observation_spec.shape
    num_actions = environments.num_actions(environment.dynamics)
    agent = Agent(observation_size, rule.output_shapes(num_actions))
    target = copy.deepcopy(agent)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, fused=True)
    simulators = environments.start(environment, BATCH_SIZE, args.seed)
    timestep, returns = simulators.reset(), Returns(args.updates)
    tracker = EpisodeTracker(BATCH_SIZE)
    for step in range(1, args.updates + 1):
        observation, trajectory, timestep = collect(agent, simulators, timestep, tracker, returns)
        with torch.inference_mode():
            target_outputs = target(observation)
        loss = rule(agent(observation), target_outputs, trajectory)
        rule.move_target(target, agent)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        returns.print(step)
    simulators.close()
    return returns.printed


if __name__ == "__main__":
    main()
