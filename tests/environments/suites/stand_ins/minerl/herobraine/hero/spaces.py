import numpy as np


class Dict:
    def __init__(self, spaces):
        self.spaces = spaces

    def __getitem__(self, name):
        return self.spaces[name]

    def __contains__(self, values):
        return values.keys() <= self.spaces.keys() and all(
            value in self.spaces[name] for name, value in values.items()
        )

    def no_op(self):
        return {name: space.no_op() for name, space in self.spaces.items()}


class Enum:
    def __init__(self, *values, default):
        self.values = np.array(sorted(values))
        self.default = default

    def __contains__(self, value):
        return value in self.values.tolist()

    def no_op(self):
        return self.default


class Key:
    def __contains__(self, value):
        return isinstance(value, int) and value in (0, 1)

    def no_op(self):
        return 0


class Box:
    def __init__(self, size, highest):
        self.size, self.highest = size, highest
        # As in the real one, which needs an older NumPy.
        self.dtype = np.float  # noqa: NPY001  # pyright: ignore[reportAttributeAccessIssue]

    def __contains__(self, value):
        return value.shape == (self.size,) and (abs(value) <= self.highest).all()

    def no_op(self):
        return np.zeros(self.size, self.dtype)
