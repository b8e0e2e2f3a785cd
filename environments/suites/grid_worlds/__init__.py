"""Grid-worlds whose task is data: the walls, the objects and the horizon are arrays.

The family of Oh et al. (2020), "Discovering reinforcement learning algorithms" (LPG,
arXiv 2007.08794, appendix on the training environments): the agent walks in a maze and
collects objects. Touching an object gives its reward, removes the object, and terminates the
episode with the object's probability; an absent object respawns with its probability per
step. In *fixed* variants an object has one cell. In *random* variants its cell is drawn
for every episode and for every respawn.

Beyond LPG, and off by default: objects that move, keys and doors, actions that slip, and a
reward per step.

The suites `grid57`, `grid_generated` and `lpg` consist of such tasks, `grid_heldout` mostly.
"""

from environments.suites.grid_worlds.dynamics import Draws, GridWorld, GridWorldState, GridWorldTask
from environments.suites.grid_worlds.mazes import ORTHOGONAL, Cell
from environments.suites.grid_worlds.tasks import Object, make_fixed_task, make_task

__all__ = [
    "ORTHOGONAL",
    "Cell",
    "Draws",
    "GridWorld",
    "GridWorldState",
    "GridWorldTask",
    "Object",
    "make_fixed_task",
    "make_task",
]
