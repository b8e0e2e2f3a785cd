"""The commands."""

from environments import MissingPackageError

try:
    import agents  # noqa: F401
except MissingPackageError as error:
    raise SystemExit(str(error)) from None
