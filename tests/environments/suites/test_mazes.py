import numpy as np
import pytest

from environments.suites.grid_worlds import mazes


def connected(maze) -> bool:
    """Whether every free cell can be reached from every other."""
    row, column = np.argwhere(~maze)[0].tolist()
    return bool(((mazes.distances(maze, (row, column)) >= 0) | maze).all())


@pytest.mark.parametrize("maker", [mazes.bars, mazes.four_rooms, mazes.corridors])
def test_random_mazes_have_walls_and_are_connected(maker):
    for seed in range(30):
        maze = maker(np.random.default_rng(seed), 7, 9)
        assert maze.shape == (7, 9)
        assert maze.any()
        assert connected(maze)


def test_bars_leave_no_cell_that_could_cut_the_maze():
    for seed in range(10):
        maze = mazes.bars(np.random.default_rng(seed), 8, 8)
        for cell in np.argwhere(~maze):
            blocked = maze.copy()
            blocked[tuple(cell)] = True
            assert connected(blocked)


def test_distances_go_around_walls():
    maze = mazes.parse(".#.\n.#.\n...")
    np.testing.assert_array_equal(
        mazes.distances(maze, (0, 0)), [[0, -1, 6], [1, -1, 5], [2, 3, 4]]
    )
    assert not connected(mazes.parse(".#."))


def test_goods_are_placed_within_reach():
    maze = mazes.corridors(np.random.default_rng(0), 7, 7)
    for seed in range(10):
        start, goods, hazards = mazes.place(np.random.default_rng(seed), maze, 2, 1)
        maze_with_hazards = maze.copy()
        maze_with_hazards[hazards[0]] = True
        steps = mazes.distances(maze_with_hazards, start)
        assert all(steps[cell] >= 2 for cell in goods)


def test_impossible_mazes_are_refused():
    with pytest.raises(ValueError, match="odd sizes, found 4x5"):
        mazes.corridors(np.random.default_rng(0), 4, 5)
    with pytest.raises(ValueError, match="equally long"):
        mazes.parse("..\n...")
    with pytest.raises(ValueError, match="at least 4 free cells, found 3"):
        mazes.place(np.random.default_rng(0), mazes.room(1, 3), 2, 1)
