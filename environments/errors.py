"""What goes wrong when an environment is asked for by name."""


class EnvironmentNameError(ValueError):
    """No environment or suite has this name, or its parameters are malformed.

    The message says what was asked, what would be right, and where to find all names.
    """


class MissingPackageError(ImportError):
    """An environment needs an optional package that is not installed."""


def require(condition: bool, message: str) -> None:
    """Raises a `ValueError` with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)
